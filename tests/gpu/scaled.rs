//! Products of operands in fp8 with factors beside them on the GPU.

#[path = "../support/scaled.rs"]
mod shared;

use crate::device::Gpu;
use crate::Test;
use candle::{Device, Result};

type Check = fn(&Device) -> Result<()>;

pub fn tests() -> Vec<(String, Test)> {
    let checks: [(&str, Check); 2] = [("matmul_scaled", shared::products), ("matmul_scaled_special", shared::special)];
    let test = |(name, check): (&str, Check)| -> (String, Test) {
        let run = move |gpu: &Gpu| check(&Device::Cuda(gpu.device.clone())).map_err(|error| error.to_string());
        (name.into(), Box::new(run))
    };
    checks.map(test).into()
}
