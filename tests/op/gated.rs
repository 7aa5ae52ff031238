//! Gated products on the CPU.

#[path = "../support/gated.rs"]
mod products;

use candle::{DType, Device, Result, Tensor};
use candle_tilegemm::nn::GateFunction;
use candle_tilegemm::problem::Gate;
use candle_tilegemm::Gemm;

const CPU: &Device = &Device::Cpu;

#[test]
fn gated_products_are_those_of_f64() -> Result<()> {
    products::products(CPU)
}

#[test]
fn gated_products_go_into_tensors() -> Result<()> {
    products::into(CPU)
}

#[test]
fn other_gated_products_are_refused() -> Result<()> {
    products::refusals(CPU)
}

/// 257 and 1.0078125 have more digits than bf16 and, one of them, as many: rounded before the gate, the product would be 256 * 1.0078125 = 258.
#[test]
fn a_gated_product_is_rounded_once() -> Result<()> {
    let x = Tensor::new(&[[1f32, 1.]], CPU)?.to_dtype(DType::BF16)?;
    let w = Tensor::new(&[[256f32, 1.], [1., 0.0078125]], CPU)?.to_dtype(DType::BF16)?; // a gate of 257
    let y = Gemm::new().gate(Gate::Halves, GateFunction::SwiGlu).forward(&x, &w.t()?)?; // 259.0078
    assert_eq!(y.to_dtype(DType::F32)?.to_vec2::<f32>()?, [[260.0]]);
    Ok(())
}
