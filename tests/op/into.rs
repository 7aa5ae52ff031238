//! Products into tensors that exist, on the CPU.

#[path = "../support/merged.rs"]
mod merged;
#[path = "../support/into.rs"]
pub(crate) mod products;

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

#[test]
fn feed_forward_parts_are_as_in_f64() -> Result<()> {
    merged::mlps(CPU)
}

#[test]
fn merged_blocks_are_layers_beside_one_another() -> Result<()> {
    merged::of_blocks(CPU)
}

#[test]
fn merged_layers_have_the_names_of_safetensors() -> Result<()> {
    merged::of_names(CPU)
}

#[test]
fn merged_layers_that_do_not_fit_are_refused() -> Result<()> {
    merged::refusals(CPU)
}
