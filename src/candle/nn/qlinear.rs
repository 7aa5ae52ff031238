//! A layer with the weights of a GGUF file.

use super::beside::Beside;
use crate::candle::activation::activated;
use crate::candle::cpu::sums_of;
#[cfg(feature = "cuda")]
use crate::candle::cuda::quantized::{self, Operands, Product, Weights};
use crate::candle::numbers::put;
use crate::candle::op::Gemm;
#[cfg(feature = "cuda")]
use crate::candle::tensors::unwritten;
use crate::candle::tensors::{Block, FLOATS};
use crate::problem::Activation;
use ::candle::quantized::{QMatMul, QTensor};
#[cfg(feature = "cuda")]
use ::candle::Device;
use ::candle::{bail, DType, Module, Result, Shape, Tensor};
use std::sync::Arc;

const BLOCK: Block = Block("QLinear");

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

    /// [`forward`](Module::forward) into a tensor of the result's shape, in the type of x, whose rows may be apart. Rows of x may be apart, too. The bits are
    /// those of [`forward`](Module::forward), unless the place in memory asks for another kernel.
    ///
    /// On a GPU it allocates nothing and copies nothing, and is legal in a capture after [`prepare`](crate::prepare).
    ///
    /// ```
    /// use candle::quantized::{GgmlDType, QTensor};
    /// use candle::{DType, Device, Tensor};
    /// use candle_tilegemm::nn::QLinear;
    ///
    /// let ones = Tensor::ones((2, 32), DType::F32, &Device::Cpu)?;
    /// let layer = QLinear::from_arc(QTensor::quantize(&ones, GgmlDType::Q8_0)?.into(), None)?;
    /// let wide = Tensor::zeros((1, 3), DType::F32, &Device::Cpu)?;
    /// layer.forward_into(&ones.narrow(0, 0, 1)?, &wide.narrow(1, 0, 2)?)?;
    /// let y = wide.to_vec2::<f32>()?;
    /// assert!((y[0][1] - 32.).abs() < 0.1 && y[0][2] == 0.);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for `forward`; a tensor that does not fit or shares memory with an input; tensors that track gradients; on a GPU an input whose rows are no rows of
    /// numbers side by side, and dequantised weights of another type than x.
    pub fn forward_into(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        self.write(x, Beside::Nothing, out)
    }

    /// [`forward_residual`](Self::forward_residual) into a tensor that exists, which may be the residual itself. With weights in blocks and few rows another tensor is
    /// some microseconds faster.
    ///
    /// # Errors
    /// As for [`forward_into`](Self::forward_into).
    pub fn forward_residual_into(&self, x: &Tensor, residual: &Tensor, out: &Tensor) -> Result<()> {
        self.write(x, Beside::Residual(residual), out)
    }

    /// [`forward_gated`](Self::forward_gated) into a tensor that exists, which may be `up` itself; see [`forward_residual_into`](Self::forward_residual_into).
    ///
    /// # Errors
    /// As for [`forward_into`](Self::forward_into).
    pub fn forward_gated_into(&self, x: &Tensor, up: &Tensor, out: &Tensor) -> Result<()> {
        self.write(x, Beside::Up(up), out)
    }

    pub(super) fn activation(&self) -> Activation {
        self.activation
    }

    /// Rows and columns of the weights.
    pub(super) fn sizes(&self) -> Result<(usize, usize)> {
        match &self.weight {
            QMatMul::QTensor(weight) => weight.shape().dims2(),
            QMatMul::Tensor(weight) | QMatMul::TensorF16(weight) => weight.dims2(),
        }
    }

    /// Checks what [`write`](Self::write) gets, which has something to do. Returns whether the result is the tensor beside.
    fn fits(&self, x: &Tensor, beside: Beside, out: &Tensor) -> Result<bool> {
        let ((rows, k), n) = (self.sizes()?, out.dims().last().copied().unwrap_or(0));
        if x.dims().last() != Some(&k) || n != rows {
            bail!(
                "QLinear: x is {:?} and the result {:?}; expected rows of {k} and of {rows} numbers",
                x.dims(),
                out.dims()
            );
        }
        BLOCK.among("x", x, &FLOATS)?;
        BLOCK.same("the result", out, x)?;
        let shape = [&x.dims()[..x.rank() - 1], &[n]].concat();
        if out.dims() != shape {
            bail!("QLinear: the result is {:?}; expected {shape:?}", out.dims());
        }
        self.check(x, &shape, beside)?;
        let c = beside.tensor();
        for (what, tensor) in
            [("x", Some(x)), ("the bias", self.bias.as_ref()), (beside.name(), c), ("the result", Some(out))]
        {
            tensor.map_or(Ok(()), |tensor| BLOCK.untracked(what, tensor))?;
        }
        BLOCK.apart("x", x, out)?;
        c.map_or(Ok(false), |c| BLOCK.apart_or_same(beside.name(), c, out))
    }

    /// The product, of operands that fit, if it is one of blocks on a GPU. `in_place`: the result is the tensor beside.
    #[cfg(feature = "cuda")]
    fn of_blocks<'a>(
        &'a self,
        x: &'a Tensor,
        beside: Beside<'a>,
        out: &'a Tensor,
        in_place: bool,
    ) -> Result<Option<Product<'a>>> {
        let (n, k) = self.sizes()?;
        let (QMatMul::QTensor(weight), Some(b)) = (&self.weight, quantized::format_for(x, &self.weight)) else {
            return Ok(None);
        };
        let of = Operands {
            x: BLOCK.rows("x", x, k)?,
            narrow_x: None,
            weight: Weights::Blocks(weight, b),
            bias: self.bias.as_ref(),
            c: beside.tensor().map(|c| BLOCK.rows(beside.name(), c, n)).transpose()?,
            gates_c: beside.is_gated(),
            in_place,
            out: BLOCK.rows("the result", out, n)?,
        };
        Ok(Some(Product { of, activation: self.activation }))
    }

    /// Writes the results of layers of one x, side by side if all of them are products of blocks on a GPU; false: nothing is written yet. Each layer has its residual and
    /// its columns of the result.
    #[cfg(feature = "cuda")]
    pub(super) fn write_beside(x: &Tensor, layers: &[(&Self, Option<Tensor>, Tensor)]) -> Result<bool> {
        let Device::Cuda(device) = x.device() else { return Ok(false) };
        let mut products = Vec::with_capacity(layers.len());
        for (layer, residual, out) in layers {
            let beside = residual.as_ref().map_or(Beside::Nothing, Beside::Residual);
            let in_place = layer.fits(x, beside, out)?;
            match layer.of_blocks(x, beside, out, in_place)? {
                Some(product) if out.elem_count() > 0 => products.push(product),
                _ => return Ok(false),
            }
        }
        quantized::products(device, &products)?;
        Ok(true)
    }

    fn write(&self, x: &Tensor, beside: Beside, out: &Tensor) -> Result<()> {
        let _in_place = self.fits(x, beside, out)?;
        if out.elem_count() == 0 {
            return Ok(());
        }
        #[cfg(feature = "cuda")]
        if let (Device::Cuda(device), Some(product)) = (x.device(), self.of_blocks(x, beside, out, _in_place)?) {
            return quantized::product(device, &product);
        }
        match &self.weight {
            QMatMul::Tensor(weight) | QMatMul::TensorF16(weight) if weight.dtype() == x.dtype() => {
                self.gemm(beside).forward_into(x, &weight.t()?, out)
            }
            _ if x.device().is_cpu() => put(&self.product(x, beside)?, out),
            QMatMul::QTensor(_) => BLOCK.elsewhere(x.device()),
            QMatMul::Tensor(weight) | QMatMul::TensorF16(weight) => bail!(
                "QLinear: x is in {:?}, and the dequantised weights are in {:?}; convert x before a product into a tensor",
                x.dtype(),
                weight.dtype()
            ),
        }
    }

    /// The product with dequantised weights.
    fn gemm(&self, beside: Beside) -> Gemm {
        let gemm = Gemm::new().activation(self.activation);
        let gemm = self.bias.as_ref().map_or(gemm.clone(), |bias| gemm.bias(bias));
        beside.after(gemm)
    }

    fn product(&self, x: &Tensor, beside: Beside) -> Result<Tensor> {
        let shape =
            self.sizes().map(|(n, _)| [x.dims().split_last().map_or(&[][..], |(_, rows)| rows), &[n]].concat())?;
        #[cfg(feature = "cuda")]
        if quantized::format_for(x, &self.weight).is_some() {
            self.check(x, &shape, beside)?;
            let out = unwritten(&shape, x.dtype(), x.device())?;
            let dense = |tensor: &Tensor| tensor.detach().contiguous();
            let of = Self { bias: self.bias.as_ref().map(dense).transpose()?, ..self.clone() };
            let c = beside.tensor().map(dense).transpose()?;
            of.write(&dense(x)?, beside.with(c.as_ref()), &out)?;
            return Ok(out);
        }
        match (&self.weight, beside) {
            // A gate is apart: this way its factors get gradients.
            (QMatMul::Tensor(weight) | QMatMul::TensorF16(weight), Beside::Nothing | Beside::Residual(_))
                if weight.dtype() == x.dtype() && weight.dims().last() == x.dims().last() =>
            {
                self.check(x, &shape, beside)?;
                return self.gemm(beside).forward(x, &weight.t()?);
            }
            _ => {}
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
        for (what, tensor, shape) in
            [("the bias", self.bias.as_ref(), columns), (beside.name(), beside.tensor(), shape)]
        {
            let Some(tensor) = tensor.filter(|tensor| tensor.dims() != shape || tensor.dtype() != x.dtype()) else {
                continue;
            };
            bail!("QLinear: {what} is {:?} {:?}, expected {:?} {shape:?}", tensor.dtype(), tensor.dims(), x.dtype());
        }
        Ok(())
    }
}

impl Module for QLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.product(x, Beside::Nothing)
    }
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
