//! Constructors by name, as candle-transformers' `quantized_nn` has them.

use super::QLinear;
use ::candle::quantized::QTensor;
use ::candle::{Result, Shape};
use std::sync::Arc;

/// A layer with a bias, as `quantized_nn::linear` of candle-transformers makes one: weights `weight`, (out, in), and a bias `bias`, (out). `tensor` gives the
/// tensor of a shape and a name; with candle-transformers' `VarBuilder` of a GGUF file, `|shape, name| vb.get(shape, name)`.
///
/// ```
/// use candle::quantized::{GgmlDType, QTensor};
/// use candle::{DType, Device, Module, Tensor};
/// use candle_tilegemm::nn::qlinear;
///
/// let tensor = |shape, name: &str| {
///     let format = if name == "bias" { GgmlDType::F32 } else { GgmlDType::Q4_0 };
///     QTensor::quantize(&Tensor::ones(shape, DType::F32, &Device::Cpu)?, format).map(Into::into)
/// };
/// let y = qlinear(32, 4, tensor)?.forward(&Tensor::zeros((2, 32), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1.0; 4]; 2]); // the bias
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Those of `tensor`, of `QMatMul::from_arc`, and of candle's `dequantize` of the bias.
pub fn qlinear(in_dim: usize, out_dim: usize, tensor: impl Fn(Shape, &str) -> Result<Arc<QTensor>>) -> Result<QLinear> {
    qlinear_b(in_dim, out_dim, true, tensor)
}

/// A layer without a bias; see [`qlinear`].
///
/// # Errors
/// As for [`qlinear`].
pub fn qlinear_no_bias(
    in_dim: usize,
    out_dim: usize,
    tensor: impl Fn(Shape, &str) -> Result<Arc<QTensor>>,
) -> Result<QLinear> {
    qlinear_b(in_dim, out_dim, false, tensor)
}

/// A layer with or without a bias; see [`qlinear`].
///
/// ```
/// use candle::quantized::{GgmlDType, QTensor};
/// use candle::{DType, Device, Module, Tensor};
/// use candle_tilegemm::nn::qlinear_b;
///
/// let zeros = |shape, name: &str| {
///     let format = if name == "bias" { GgmlDType::F32 } else { GgmlDType::Q8_0 };
///     QTensor::quantize(&Tensor::zeros(shape, DType::F32, &Device::Cpu)?, format).map(Into::into)
/// };
/// let layer = qlinear_b(64, 3, true, zeros)?;
/// let y = layer.forward(&Tensor::ones((2, 64), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[0.; 3]; 2]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// As for [`qlinear`].
pub fn qlinear_b(
    in_dim: usize,
    out_dim: usize,
    bias: bool,
    tensor: impl Fn(Shape, &str) -> Result<Arc<QTensor>>,
) -> Result<QLinear> {
    let weight = tensor((out_dim, in_dim).into(), "weight")?;
    let device = weight.device();
    let bias = bias.then(|| tensor(out_dim.into(), "bias")?.dequantize(&device)).transpose()?;
    QLinear::from_arc(weight, bias)
}
