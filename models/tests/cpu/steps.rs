//! Steps on the CPU. `decoders` has them for the GPU.

use crate::common::steps::CHECKS;
use candle::{Device, Result};

#[test]
fn steps() -> Result<()> {
    for (name, check) in CHECKS {
        println!("{name}");
        check(&Device::Cpu)?;
    }
    Ok(())
}
