//! Steps on the CPU. The GPU has the same tests in gpu.rs.

mod common;

use candle::{Device, Result};
use common::steps::CHECKS;

#[test]
fn steps() -> Result<()> {
    for (name, check) in CHECKS {
        println!("{name}");
        check(&Device::Cpu)?;
    }
    Ok(())
}
