//! Layers with narrow weights on the GPU.

#[path = "../support/narrow.rs"]
mod shared;

use crate::device::Gpu;
use crate::Test;
use candle::{Device, Result};

type Check = fn(&Device) -> Result<()>;
/// The same, for whether the device rounds activations.
type CheckIn8Bits = fn(&Device, bool) -> Result<()>;

pub fn tests() -> Vec<(String, Test)> {
    let checks: [(&str, Check); 10] = [
        ("narrow_layers", shared::layers),
        ("narrow_layers_into", shared::into),
        ("narrow_layers_not_finite", shared::not_finite),
        ("narrow_layers_beyond_f16", shared::beyond_f16),
        ("narrow_layers_moved", shared::moved),
        ("narrow_layers_gated_in_8_bits", shared::gated_in_8_bits),
        ("narrow_experts", shared::experts),
        ("narrow_experts_all_to_one", shared::all_to_one_expert),
        ("narrow_experts_with_a_router", shared::layer_of_experts),
        ("narrow_clamped_gates", shared::clamped_gates),
    ];
    let test = |(name, check): (&str, Check)| -> (String, Test) {
        let run = move |gpu: &Gpu| check(&Device::Cuda(gpu.device.clone())).map_err(|error| error.to_string());
        (name.into(), Box::new(run))
    };
    let in_8_bits: [(&str, CheckIn8Bits); 3] = [
        ("narrow_layers_in_8_bits", shared::eight_bits),
        ("narrow_layers_special_in_8_bits", shared::special_in_8_bits),
        ("narrow_experts_in_8_bits", shared::experts_in_8_bits),
    ];
    let in_8_bits = in_8_bits.map(|(name, check)| -> (String, Test) {
        let run = move |gpu: &Gpu| {
            let rounds = cfg!(feature = "layers") && gpu.info.capability / 10 == 9;
            check(&Device::Cuda(gpu.device.clone()), rounds).map_err(|error| error.to_string())
        };
        (name.into(), Box::new(run))
    });
    checks.map(test).into_iter().chain(in_8_bits).collect()
}
