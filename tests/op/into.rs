//! Products into tensors that exist, on the CPU.

#[path = "../support/into.rs"]
mod products;

use candle::{Device, Result};

const CPU: &Device = &Device::Cpu;

#[test]
fn dense_products_are_those_of_forward_and_of_f64() -> Result<()> {
    products::dense(CPU)
}

#[test]
fn batches_factors_and_other_types_are_those_of_forward() -> Result<()> {
    products::of_other_kinds(CPU)
}

#[test]
fn products_of_blocks_are_those_of_forward() -> Result<()> {
    products::quantised(CPU)
}

#[test]
fn layers_of_experts_are_those_of_forward() -> Result<()> {
    products::experts(CPU)
}

#[test]
fn what_cannot_be_written_is_refused() -> Result<()> {
    products::refusals(CPU)
}
