//! A layer with the weights of a GGUF file.

mod load;

pub use load::{qlinear, qlinear_b, qlinear_no_bias};

use super::beside::Beside;
use super::kind::Kind;
use crate::candle::activation::activated;
use crate::candle::cpu::sums_of;
#[cfg(feature = "cuda")]
use crate::candle::cuda::quantized::{self, Operands, Product, Weights};
use crate::candle::numbers::put;
use crate::candle::op::Gemm;
use crate::candle::qweights::QWeights;
#[cfg(feature = "cuda")]
use crate::candle::tensors::unwritten;
use crate::candle::tensors::{Block, FLOATS};
use crate::problem::Activation;
#[cfg(feature = "cuda")]
use crate::problem::Format;
use ::candle::quantized::{QMatMul, QTensor};
use ::candle::{bail, DType, Device, Module, Result, Tensor};
use std::sync::Arc;

const BLOCK: Block = Block("QLinear");

/// `activation(x @ weight^T + bias)` with quantised weights, as candle's `QMatMul` and the layer `quantized_nn::Linear` of candle-transformers.
///
/// Inputs are in f32, bf16 or f16, of any rank and strides, and the result has the input's type; bias and residual have it, too. Sums and epilogue are in f32, and
/// the result is rounded once. Weights in blocks run on this crate's kernels on a GPU (feature `gguf`), and as in candle's `QMatMul` on the CPU; formats that candle
/// does not have are dequantised there, some rows at a time. Weights that were dequantised run as a [`Gemm`].
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
    weight: Weight,
    bias: Option<Tensor>,
    activation: Activation,
}

#[derive(Debug, Clone)]
enum Weight {
    Blocks(QWeights),
    /// Dequantised, as in `QMatMul`.
    Tensor(Tensor),
    TensorF16(Tensor),
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
        let weight = match weight {
            QMatMul::QTensor(weight) => Weight::Blocks(weight.into()),
            QMatMul::Tensor(weight) => Weight::Tensor(weight),
            QMatMul::TensorF16(weight) => Weight::TensorF16(weight),
        };
        Self { weight, bias, activation: Activation::Identity }
    }

    /// A layer with weights of shape (out, in) in any block format. Dense weights are dequantised, as by `QMatMul::from_arc`.
    ///
    /// ```
    /// use candle::{DType, Device, Module, Tensor};
    /// use candle_tilegemm::nn::{QLinear, QWeights};
    /// use candle_tilegemm::Format;
    ///
    /// // Two rows of 32 numbers, all of them 113: the scale 1 in f16, and code 15.
    /// let blocks = [&[0x00, 0x3c][..], &[0xff; 16]].concat().repeat(2);
    /// let weights = QWeights::from_bytes(Format::IQ4_NL, blocks, (2, 32), &Device::Cpu)?;
    /// let layer = QLinear::from_blocks(weights, None)?;
    /// let y = layer.forward(&Tensor::ones((1, 32), DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[32.0 * 113.0; 2]]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Weights that are no matrix.
    pub fn from_blocks(weight: impl Into<QWeights>, bias: Option<Tensor>) -> Result<Self> {
        let weight = weight.into();
        weight.shape().dims2()?;
        match weight.as_qtensor() {
            Some(weight) => Self::from_arc(weight.clone(), bias),
            None => Ok(Self { weight: Weight::Blocks(weight), bias, activation: Activation::Identity }),
        }
    }

    /// The same layer with a function applied to its output.
    pub fn with_activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Weights in blocks, (out, in); `None` of weights that were dequantised.
    pub fn blocks(&self) -> Option<&QWeights> {
        match &self.weight {
            Weight::Blocks(weight) => Some(weight),
            _ => None,
        }
    }

    /// Weights that were dequantised, (out, in).
    pub fn dequantised(&self) -> Option<&Tensor> {
        match &self.weight {
            Weight::Blocks(_) => None,
            Weight::Tensor(weight) | Weight::TensorF16(weight) => Some(weight),
        }
    }

    pub(super) fn to_device(&self, device: &Device) -> Result<Self> {
        let weight = match &self.weight {
            Weight::Blocks(weight) => Weight::Blocks(weight.to_device(device)?),
            Weight::Tensor(weight) => Weight::Tensor(weight.to_device(device)?),
            Weight::TensorF16(weight) => Weight::TensorF16(weight.to_device(device)?),
        };
        let bias = self.bias.as_ref().map(|bias| bias.to_device(device)).transpose()?;
        Ok(Self { weight, bias, activation: self.activation })
    }

    pub(super) fn kind(&self) -> Kind {
        match &self.weight {
            Weight::Blocks(weight) => Kind::Blocks(weight.stored()),
            Weight::Tensor(weight) | Weight::TensorF16(weight) => Kind::Dequantised(weight.dtype()),
        }
    }

    pub(super) fn device(&self) -> Device {
        match &self.weight {
            Weight::Blocks(weight) => weight.device(),
            Weight::Tensor(weight) | Weight::TensorF16(weight) => weight.device().clone(),
        }
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
            Weight::Blocks(weight) => weight.shape().dims2(),
            Weight::Tensor(weight) | Weight::TensorF16(weight) => weight.dims2(),
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
        let Some((weight, b)) = self.on_gpu(x) else { return Ok(None) };
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

    /// Weights in blocks that this crate's kernels multiply x with.
    #[cfg(feature = "cuda")]
    fn on_gpu(&self, x: &Tensor) -> Option<(&QWeights, Format)> {
        let weight = self.blocks()?;
        quantized::format_for(x, weight).map(|format| (weight, format))
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
        match self.dequantised() {
            Some(weight) if weight.dtype() == x.dtype() => self.gemm(beside).forward_into(x, &weight.t()?, out),
            _ if x.device().is_cpu() => put(&self.product(x, beside)?, out),
            None => BLOCK.elsewhere(x.device()),
            Some(weight) => bail!(
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
        if self.on_gpu(x).is_some() {
            self.check(x, &shape, beside)?;
            let out = unwritten(&shape, x.dtype(), x.device())?;
            let dense = |tensor: &Tensor| tensor.detach().contiguous();
            let of = Self { bias: self.bias.as_ref().map(dense).transpose()?, ..self.clone() };
            let c = beside.tensor().map(dense).transpose()?;
            of.write(&dense(x)?, beside.with(c.as_ref()), &out)?;
            return Ok(out);
        }
        match (self.dequantised(), beside) {
            // A gate is apart: this way its factors get gradients.
            (Some(weight), Beside::Nothing | Beside::Residual(_))
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
            Weight::Blocks(weight) => weight.product(&x.to_dtype(sums_of(x.dtype()))?.contiguous()?),
            Weight::Tensor(weight) => product(x, weight),
            Weight::TensorF16(weight) => product(&x.to_dtype(DType::F16)?, weight),
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
