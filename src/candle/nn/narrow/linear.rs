//! A layer with narrow weights.

use super::floats;
use super::quantize::Quantizer;
use super::scheme::Activations;
use super::tensors::Array;
use super::weight::QuantWeight;
use crate::candle::nn::Linear;
use crate::candle::numbers::put;
use crate::candle::op::Gemm;
use crate::candle::tensors::{Block, FLOATS};
use crate::problem::Activation;
use ::candle::{bail, DType, Device, Module, Result, Tensor};
use std::sync::Arc;

const BLOCK: Block = Block("QuantLinear");

/// `activation(x @ weight^T + bias)` with weights in a few bits, or as they come where a config leaves a module as it is.
///
/// Inputs are in f32, bf16 or f16, of any rank and strides, and the result has the input's type; bias and residual have it, too. Weights count as the f32 numbers that
/// [`QuantWeight::dequantize`] gives, sums and epilogue are in f32, and the result is rounded once. Activations are not quantised.
///
/// On the CPU each call dequantises the weights. On other devices there are no kernels yet: the call is refused.
///
/// ```
/// use candle::{Device, Module, Tensor};
/// use candle_tilegemm::nn::narrow::Quantizer;
/// use candle_tilegemm::nn::QuantLinear;
///
/// let weight = Tensor::new(&[[7.5f32, -1.], [0., 0.5]], &Device::Cpu)?;
/// let bias = Tensor::new(&[0f32, 1.], &Device::Cpu)?;
/// let layer = QuantLinear::quantize(&weight, Some(bias), Quantizer::Int4 { group: None, zeros: false })?;
/// let y = layer.forward(&Tensor::new(&[[0f32, 1.]], &Device::Cpu)?)?.to_vec2::<f32>()?;
/// assert_eq!(y[0][0], -1.);
/// assert!((y[0][1] - 1.5).abs() < 0.04);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct QuantLinear {
    weight: Weight,
    bias: Option<Tensor>,
    activation: Activation,
    activations: Activations,
    device: Device,
}

#[derive(Debug, Clone)]
enum Weight {
    Plain(Tensor),
    Narrow(Arc<QuantWeight>),
}

impl QuantLinear {
    /// A layer with weights, (out, in), and a bias, (out), on the bias' device.
    ///
    /// # Errors
    /// A bias of another shape.
    pub fn new(weight: QuantWeight, bias: Option<Tensor>) -> Result<Self> {
        let [n, _] = weight.shape();
        if let Some(bias) = bias.as_ref().filter(|bias| bias.dims() != [n]) {
            bail!("QuantLinear: the bias is {:?}; expected {:?}", bias.dims(), [n]);
        }
        let device = bias.as_ref().map_or(Device::Cpu, |bias| bias.device().clone());
        let weight = Weight::Narrow(Arc::new(weight));
        Ok(Self { weight, bias, activation: Activation::Identity, activations: Activations::Wide, device })
    }

    /// A layer in fp8: weights, (out, in), in F8E4M3, and factors in f32, bf16 or f16, which multiply: one, one for each row, (out) or (out, 1), or one for each block of
    /// 128 x 128, (out / 128, in / 128), rounded up.
    ///
    /// # Errors
    /// Tensors of other types and shapes.
    pub fn fp8(weight: &Tensor, scale: &Tensor, bias: Option<Tensor>) -> Result<Self> {
        let (n, k) = weight.dims2()?;
        if weight.dtype() != DType::F8E4M3 {
            bail!("QuantLinear: the weights are in {:?}; expected F8E4M3", weight.dtype());
        }
        BLOCK.among("the scale", scale, &FLOATS)?;
        let device = weight.device();
        let codes = weight.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<float8::F8E4M3>()?;
        let codes: Vec<u8> = codes.into_iter().map(|code| code.to_bits()).collect();
        let values = scale.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        let scale = Array { name: "QuantLinear: the scale".into(), values, dims: scale.dims().to_vec() };
        Ok(Self::new(floats::fp8(&codes, [n, k], &scale, &[n], None)?, bias)?.on(device))
    }

    /// A layer with weights, (out, in), in 16 or 32 bits, rounded to the nearest in fewer.
    ///
    /// # Errors
    /// As for [`QuantWeight::quantize`] and [`new`](Self::new).
    pub fn quantize(weight: &Tensor, bias: Option<Tensor>, to: Quantizer) -> Result<Self> {
        Ok(Self::new(QuantWeight::quantize(weight, to)?, bias)?.on(weight.device()))
    }

    /// The same layer with a function applied to its output.
    pub fn with_activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// The same layer with another leave for quantised activations, of which no product makes use yet.
    pub fn with_activations(mut self, activations: Activations) -> Self {
        self.activations = activations;
        self
    }

    pub(super) fn on(mut self, device: &Device) -> Self {
        self.device = device.clone();
        self
    }

    /// The narrow weights, (out, in); none of a module that a config leaves as it is.
    pub fn weight(&self) -> Option<&QuantWeight> {
        match &self.weight {
            Weight::Narrow(weight) => Some(weight),
            Weight::Plain(_) => None,
        }
    }

    /// The weights, (out, in), that are not narrow.
    pub fn plain_weight(&self) -> Option<&Tensor> {
        match &self.weight {
            Weight::Narrow(_) => None,
            Weight::Plain(weight) => Some(weight),
        }
    }

    /// Bias, (out).
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Whether a config allows quantised activations.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// `forward(x) + residual`. The residual has the shape and the type of the result.
    ///
    /// # Errors
    /// As for `forward`, and a residual of another shape or type.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.product(x, Some(("the residual", residual, false)))
    }

    /// `forward(x) * up`: a layer of gates (SwiGLU, GEGLU), with its activation. The tensor `up` has the shape and the type of the result.
    ///
    /// # Errors
    /// As for `forward`, and a tensor of another shape or type.
    pub fn forward_gated(&self, x: &Tensor, up: &Tensor) -> Result<Tensor> {
        self.product(x, Some(("the gated tensor", up, true)))
    }

    /// [`forward`](Module::forward) into a tensor of the result's shape, in the type of x, whose rows may be apart.
    ///
    /// # Errors
    /// As for `forward`; a tensor that does not fit or shares memory with x; tensors that track gradients.
    pub fn forward_into(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        self.write(x, None, out)
    }

    /// [`forward_residual`](Self::forward_residual) into a tensor that exists, which may be the residual itself.
    ///
    /// # Errors
    /// As for [`forward_into`](Self::forward_into).
    pub fn forward_residual_into(&self, x: &Tensor, residual: &Tensor, out: &Tensor) -> Result<()> {
        self.write(x, Some(("the residual", residual, false)), out)
    }

    /// [`forward_gated`](Self::forward_gated) into a tensor that exists, which may be `up` itself.
    ///
    /// # Errors
    /// As for [`forward_into`](Self::forward_into).
    pub fn forward_gated_into(&self, x: &Tensor, up: &Tensor, out: &Tensor) -> Result<()> {
        self.write(x, Some(("the gated tensor", up, true)), out)
    }

    /// Rows and columns of the weights.
    fn sizes(&self) -> Result<[usize; 2]> {
        match &self.weight {
            Weight::Narrow(weight) => Ok(weight.shape()),
            Weight::Plain(weight) => weight.dims2().map(Into::into),
        }
    }

    fn write(&self, x: &Tensor, beside: Option<Beside>, out: &Tensor) -> Result<()> {
        let shape = self.fits(x, beside)?;
        BLOCK.same("the result", out, x)?;
        if out.dims() != shape {
            bail!("QuantLinear: the result is {:?}; expected {shape:?}", out.dims());
        }
        let inputs = [("x", Some(x)), ("the bias", self.bias.as_ref()), ("the result", Some(out))];
        for (what, tensor) in inputs.into_iter().chain(beside.map(|(what, tensor, _)| (what, Some(tensor)))) {
            tensor.map_or(Ok(()), |tensor| BLOCK.untracked(what, tensor))?;
        }
        BLOCK.apart("x", x, out)?;
        if let Some((what, tensor, _)) = beside {
            BLOCK.apart_or_same(what, tensor, out)?;
        }
        match &self.weight {
            Weight::Plain(weight) => self.gemm(beside).forward_into(x, &weight.t()?, out),
            Weight::Narrow(_) => put(&self.product(x, beside)?, out),
        }
    }

    fn product(&self, x: &Tensor, beside: Option<Beside>) -> Result<Tensor> {
        self.fits(x, beside)?;
        match &self.weight {
            Weight::Plain(weight) => self.gemm(beside).forward(x, &weight.t()?),
            Weight::Narrow(weight) => {
                let wide = |tensor: &Tensor| tensor.to_dtype(DType::F32);
                let bias = self.bias.as_ref().map(wide).transpose()?;
                let tensor = beside.map(|(_, tensor, _)| wide(tensor)).transpose()?;
                let beside = beside.zip(tensor.as_ref()).map(|((what, _, gates), tensor)| (what, tensor, gates));
                let of = Self { bias, ..self.clone() };
                of.gemm(beside).forward(&wide(x)?, &weight.to_tensor()?.t()?)?.to_dtype(x.dtype())
            }
        }
    }

    fn gemm(&self, beside: Option<Beside>) -> Gemm {
        let gemm = Gemm::new().activation(self.activation);
        let gemm = self.bias.as_ref().map_or(gemm.clone(), |bias| gemm.bias(bias));
        match beside {
            None => gemm,
            Some((_, residual, false)) => gemm.residual(residual),
            Some((_, up, true)) => gemm.gated(up),
        }
    }

    /// Checks what a product gets; the shape of its result.
    fn fits(&self, x: &Tensor, beside: Option<Beside>) -> Result<Vec<usize>> {
        let [n, k] = self.sizes()?;
        let Some((_, rows)) = x.dims().split_last().filter(|(columns, _)| **columns == k) else {
            bail!("QuantLinear: x is {:?}; expected rows of {k} numbers", x.dims());
        };
        let shape = [rows, &[n]].concat();
        BLOCK.among("x", x, &FLOATS)?;
        if !x.device().same_device(&self.device) {
            bail!("QuantLinear: x is on {:?}; expected {:?}", x.device().location(), self.device.location());
        }
        let bias = self.bias.as_ref().map(|bias| ("the bias", bias, &shape[rows.len()..]));
        for (what, tensor, shape) in bias.into_iter().chain(beside.map(|(what, tensor, _)| (what, tensor, &shape[..])))
        {
            if tensor.dims() != shape || tensor.dtype() != x.dtype() {
                bail!(
                    "QuantLinear: {what} is {:?} {:?}, expected {:?} {shape:?}",
                    tensor.dtype(),
                    tensor.dims(),
                    x.dtype()
                );
            }
        }
        match &self.weight {
            Weight::Narrow(weight) if !x.device().is_cpu() => bail!(
                "QuantLinear: no kernel of this build multiplies by weights in {} on {:?}; they run on the CPU",
                weight.codes(),
                x.device().location()
            ),
            _ => Ok(shape),
        }
    }
}

/// What the output meets, by its name, and whether it is multiplied by it instead of added.
type Beside<'a> = (&'static str, &'a Tensor, bool);

impl Module for QuantLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.product(x, None)
    }
}

impl From<Linear> for QuantLinear {
    fn from(layer: Linear) -> Self {
        let (weight, bias) = (layer.weight().clone(), layer.bias().cloned());
        let device = weight.device().clone();
        Self {
            weight: Weight::Plain(weight),
            bias,
            activation: layer.activation,
            activations: Activations::Wide,
            device,
        }
    }
}
