//! A layer with the weights of a GGUF file.

#[cfg(feature = "cuda")]
use super::super::cuda::quantized::Operands;
use crate::candle::activation::activated;
use crate::candle::cpu::sums_of;
use crate::candle::op::Gemm;
use crate::problem::Activation;
use ::candle::quantized::{QMatMul, QTensor};
use ::candle::{bail, DType, Module, Result, Shape, Tensor};
use std::sync::Arc;

/// `activation(x @ weight^T + bias)` with quantised weights, as candle's `QMatMul` and the layer `quantized_nn::Linear` of candle-transformers.
///
/// Inputs are in f32, bf16 or f16, of any rank and strides, and the result has the input's type; bias and residual have it, too. Sums and epilogue are in f32, and
/// the result is rounded once. Weights in blocks run on this crate's kernels on a GPU (feature `gguf`), and as in candle's `QMatMul` on the CPU. Weights that were
/// dequantised run as a [`Gemm`].
///
/// ```
/// use candle::quantized::{GgmlDType, QTensor};
/// use candle::{Device, Module, Tensor};
/// use candle_tilegemm::{nn::QLinear, Activation};
///
/// let weight = Tensor::ones((2, 32), candle::DType::F32, &Device::Cpu)?;
/// let weight = QTensor::quantize(&weight, GgmlDType::Q8_0)?;
/// let bias = Tensor::new(&[0f32, -64.], &Device::Cpu)?;
/// let layer = QLinear::from_arc(weight.into(), Some(bias))?.with_activation(Activation::Relu);
/// let y = layer.forward(&Tensor::ones((1, 32), candle::DType::F32, &Device::Cpu)?)?.to_vec2::<f32>()?;
/// assert!((y[0][0] - 32.).abs() < 0.1 && y[0][1] == 0.);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct QLinear {
    weight: QMatMul,
    bias: Option<Tensor>,
    activation: Activation,
}

impl QLinear {
    /// A layer with weights of shape (out, in).
    ///
    /// # Errors
    /// As for `QMatMul::from_arc`.
    pub fn from_arc(weight: Arc<QTensor>, bias: Option<Tensor>) -> Result<Self> {
        Ok(Self::from_weights(QMatMul::from_arc(weight)?, bias))
    }

    /// A layer with weights of shape (out, in) and a bias of shape (out).
    pub fn from_weights(weight: QMatMul, bias: Option<Tensor>) -> Self {
        Self { weight, bias, activation: Activation::Identity }
    }

    /// The same layer with a function applied to its output.
    pub fn with_activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Weights, (out, in).
    pub fn weight(&self) -> &QMatMul {
        &self.weight
    }

    /// Bias, (out).
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// `forward(x) + residual`, in one kernel where a kernel fuses the addition. The residual has the shape and the type of the result.
    ///
    /// # Errors
    /// As for `QMatMul`, and for a residual of another shape.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.product(x, Beside::Residual(residual))
    }

    /// `forward(x) * up`, in one kernel where a kernel fuses the product: a layer of gates (SwiGLU, GEGLU), with its activation. The tensor `up` has the
    /// shape and the type of the result.
    ///
    /// ```
    /// use candle::quantized::{GgmlDType, QTensor};
    /// use candle::{DType, Device, Module, Tensor};
    /// use candle_tilegemm::{nn::QLinear, Activation};
    ///
    /// let cpu = Device::Cpu;
    /// let ones = Tensor::ones((32, 32), DType::F32, &cpu)?;
    /// let layer = || QLinear::from_arc(QTensor::quantize(&ones, GgmlDType::Q8_0)?.into(), None);
    /// let (gate, up, down) = (layer()?.with_activation(Activation::Silu), layer()?, layer()?);
    /// let x = Tensor::ones((1, 32), DType::F32, &cpu)?;
    /// // The feed-forward part of a Llama, with its residual, in four kernels.
    /// let y = down.forward_residual(&gate.forward_gated(&x, &up.forward(&x)?)?, &x)?;
    /// assert_eq!(y.dims(), [1, 32]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for `QMatMul`, and for a tensor of another shape.
    pub fn forward_gated(&self, x: &Tensor, up: &Tensor) -> Result<Tensor> {
        self.product(x, Beside::Up(up))
    }

    fn product(&self, x: &Tensor, beside: Beside) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        {
            let (c, gates_c) = match beside {
                Beside::Nothing => (None, false),
                Beside::Residual(residual) => (Some(residual), false),
                Beside::Up(up) => (Some(up), true),
            };
            let operands = Operands { x, weight: &self.weight, bias: self.bias.as_ref(), c, gates_c };
            if let Some(y) = operands.product(self.activation)? {
                return Ok(y);
            }
        }
        let y = self.sums(x)?;
        self.check(x, y.dims(), beside)?;
        let (out, sums) = (x.dtype(), y.dtype());
        let biased = match &self.bias {
            Some(bias) => y.broadcast_add(&bias.to_dtype(sums)?)?,
            None => y,
        };
        match beside {
            Beside::Nothing => activated(self.activation, &biased, out),
            Beside::Residual(residual) => {
                (activated(self.activation, &biased, sums)? + residual.to_dtype(sums)?)?.to_dtype(out)
            }
            Beside::Up(up) => (activated(self.activation, &biased, sums)? * up.to_dtype(sums)?)?.to_dtype(out),
        }
    }

    /// `x @ weight^T` in the type of sums.
    fn sums(&self, x: &Tensor) -> Result<Tensor> {
        let product =
            |x: &Tensor, weight: &Tensor| Gemm::new().out_dtype(sums_of(weight.dtype())).forward(x, &weight.t()?);
        match &self.weight {
            QMatMul::QTensor(_) => self.weight.forward(&x.to_dtype(sums_of(x.dtype()))?.contiguous()?),
            QMatMul::Tensor(weight) => product(x, weight),
            QMatMul::TensorF16(weight) => product(&x.to_dtype(DType::F16)?, weight),
        }
    }

    /// Whether bias, residual and gated tensor have the shapes that the result's shape asks for, and the type of x.
    fn check(&self, x: &Tensor, shape: &[usize], beside: Beside) -> Result<()> {
        let columns = shape.last().map_or(&[][..], std::slice::from_ref);
        let (what, c) = match beside {
            Beside::Nothing => ("", None),
            Beside::Residual(residual) => ("residual", Some(residual)),
            Beside::Up(up) => ("gated tensor", Some(up)),
        };
        for (what, tensor, shape) in [("bias", self.bias.as_ref(), columns), (what, c, shape)] {
            let Some(tensor) = tensor.filter(|tensor| tensor.dims() != shape || tensor.dtype() != x.dtype()) else {
                continue;
            };
            bail!(
                "QLinear: the {what} is {:?} {:?}, expected {:?} {shape:?}",
                tensor.dtype(),
                tensor.dims(),
                x.dtype()
            );
        }
        Ok(())
    }
}

impl Module for QLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.product(x, Beside::Nothing)
    }
}

/// What the output of a layer meets.
#[derive(Clone, Copy)]
enum Beside<'a> {
    Nothing,
    Residual(&'a Tensor),
    Up(&'a Tensor),
}

impl From<QMatMul> for QLinear {
    fn from(weight: QMatMul) -> Self {
        Self::from_weights(weight, None)
    }
}

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
