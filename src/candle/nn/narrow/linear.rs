//! A layer with narrow weights.

use super::device::{DeviceWeight, Placed};
use super::eight_bits::EightBits;
#[cfg(feature = "cuda")]
use super::eight_bits::Rounded;
use super::floats;
use super::quantize::Quantizer;
use super::scheme::Activations;
use super::tensors::Array;
use super::weight::QuantWeight;
#[cfg(feature = "cuda")]
use crate::candle::cuda::quantized::{self, Operands, Product, Weights};
use crate::candle::nn::beside::Beside;
use crate::candle::nn::Linear;
use crate::candle::numbers::put;
use crate::candle::op::Gemm;
#[cfg(feature = "cuda")]
use crate::candle::tensors::unwritten;
#[cfg(feature = "cuda")]
use crate::candle::tensors::Rows;
use crate::candle::tensors::{Block, FLOATS};
#[cfg(feature = "cuda")]
use crate::layer::GateFunction;
use crate::problem::Activation;
use ::candle::{bail, DType, Device, Module, Result, Tensor};

const BLOCK: Block = Block("QuantLinear");

/// `activation(x @ weight^T + bias)` with weights in a few bits, or as they come where a config leaves a module as it is.
///
/// Inputs are in f32, bf16 or f16, of any rank and strides, and the result has the input's type; bias and residual have it, too. Sums and epilogue are in f32, and the
/// result is rounded once.
///
/// On the CPU each call dequantises the weights, which count as the f32 numbers that [`QuantWeight::dequantize`] gives. On a GPU (feature `narrow`) the weights are
/// in memory there and nowhere else; a kernel may round a weight to 16 bits, and activations in f32 to bf16.
///
/// Where a config asks for it ([`Activations::Dynamic`]), activations are rounded to 8 bits first (W8A8): on the CPU, and on Hopper with the features `narrow` and
/// `layers`, beside fp8 with one factor, one for each row or one for each block of 128 x 128, and beside int8 without zero points and with one factor or one for each
/// row. A row of x has a factor, or 128 numbers of it beside blocks: the largest magnitude / 448, or / 127. Elsewhere they stay as they come.
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
}

#[derive(Debug, Clone)]
enum Weight {
    Plain(Tensor),
    Narrow(Placed),
}

impl QuantLinear {
    /// A layer with weights, (out, in), and a bias, (out), on the bias' device.
    ///
    /// # Errors
    /// A bias of another shape, and a device without room.
    pub fn new(weight: QuantWeight, bias: Option<Tensor>) -> Result<Self> {
        let device = bias.as_ref().map_or(Device::Cpu, |bias| bias.device().clone());
        Self::on_host(weight, bias)?.to_device(&device)
    }

    /// The layer with weights on the CPU, wherever the bias is.
    fn on_host(weight: QuantWeight, bias: Option<Tensor>) -> Result<Self> {
        let [n, _] = weight.shape();
        if let Some(bias) = bias.as_ref().filter(|bias| bias.dims() != [n]) {
            bail!("QuantLinear: the bias is {:?}; expected {:?}", bias.dims(), [n]);
        }
        let weight = Weight::Narrow(weight.into());
        Ok(Self { weight, bias, activation: Activation::Identity, activations: Activations::Wide })
    }

    /// The layer with these weights and a bias on a device.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub(super) fn new_on(weight: QuantWeight, bias: Option<Tensor>, device: &Device) -> Result<Self> {
        Self::on_host(weight, bias)?.to_device(device)
    }

    /// The same layer on a device. Narrow weights on a GPU leave the memory of the host, unless another layer has them, too.
    ///
    /// # Errors
    /// A device without room, and those of copies.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        let weight = match &self.weight {
            Weight::Plain(weight) => Weight::Plain(weight.to_device(device)?),
            Weight::Narrow(weight) if device.is_cpu() => Weight::Narrow(weight.to_device(device)?),
            Weight::Narrow(weight) => Weight::Narrow(weight.with_factors_of_8_bits(None).to_device(device)?),
        };
        // Kernels read it as a list.
        let bias = self.bias.as_ref().map(|bias| bias.to_device(device)?.contiguous()).transpose()?;
        Ok(Self { weight, bias, ..self.clone() })
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
        Self::new_on(floats::fp8(&codes, [n, k], &scale, &[n], None)?, bias, device)
    }

    /// A layer with weights, (out, in), in 16 or 32 bits, rounded to the nearest in fewer.
    ///
    /// # Errors
    /// As for [`QuantWeight::quantize`] and [`new`](Self::new).
    pub fn quantize(weight: &Tensor, bias: Option<Tensor>, to: Quantizer) -> Result<Self> {
        Self::new_on(QuantWeight::quantize(weight, to)?, bias, weight.device())
    }

    /// The same layer with a function applied to its output.
    pub fn with_activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// The same layer with activations in 8 bits ([`Activations::Dynamic`]) or as they come.
    pub fn with_activations(mut self, activations: Activations) -> Self {
        self.activations = activations;
        self
    }

    /// The narrow weights, (out, in), of a layer on the CPU. A layer on a GPU has [`device_weight`](Self::device_weight), which can be read back.
    pub fn weight(&self) -> Option<&QuantWeight> {
        match &self.weight {
            Weight::Narrow(weight) => weight.host(),
            Weight::Plain(_) => None,
        }
    }

    /// The narrow weights, (out, in), of a layer that is not on the CPU.
    pub fn device_weight(&self) -> Option<&DeviceWeight> {
        match &self.weight {
            Weight::Narrow(weight) => weight.elsewhere(),
            Weight::Plain(_) => None,
        }
    }

    /// The weights, (out, in), that are not narrow, of a module that a config leaves as it is.
    pub fn plain_weight(&self) -> Option<&Tensor> {
        match &self.weight {
            Weight::Plain(weight) => Some(weight),
            Weight::Narrow(_) => None,
        }
    }

    pub(in crate::candle::nn) fn activation(&self) -> Activation {
        self.activation
    }

    /// Layers of one input over one another, of narrow weights on the host: one product where their weights have one form, and activations are the same.
    ///
    /// Not where factors would become such as fast kernels lack: those in e4m3 beside another alpha, and those of blocks that are cut short beside activations in 8
    /// bits.
    pub(in crate::candle::nn) fn can_be_over(&self, other: &Self) -> bool {
        let is_one = |x: &QuantWeight, y: &QuantWeight| {
            let has_whole_blocks = x.shape()[0].is_multiple_of(x.scales().shared()[0]);
            x.stacks_with(y) && x.alpha() == y.alpha() && (has_whole_blocks || self.activations != Activations::Dynamic)
        };
        self.weight().zip(other.weight()).is_some_and(|(x, y)| is_one(x, y))
            && (self.activation, self.activations) == (other.activation, other.activations)
    }

    /// The layers as one, with this bias.
    ///
    /// # Errors
    /// Layers that are not on the host, or whose weights have different forms.
    pub(in crate::candle::nn) fn over_one_another(layers: &[&Self], bias: Option<Tensor>) -> Result<Self> {
        let weights = layers.iter().map(|layer| layer.weight()).collect::<Option<Vec<_>>>();
        let (Some(weights), [first, ..]) = (weights, layers) else {
            bail!("QuantLinear: layers to merge that are not on the CPU");
        };
        let weights: Vec<QuantWeight> = weights.into_iter().cloned().collect();
        let of = Self::new(QuantWeight::stack(&weights)?, bias)?;
        Ok(of.with_activation(first.activation).with_activations(first.activations))
    }

    /// Where the weights are.
    pub fn device(&self) -> &Device {
        match &self.weight {
            Weight::Plain(weight) => weight.device(),
            Weight::Narrow(weight) => weight.device(),
        }
    }

    /// Bias, (out).
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// What becomes of activations, by the config.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// `forward(x) + residual`. The residual has the shape and the type of the result.
    ///
    /// # Errors
    /// As for `forward`, and a residual of another shape or type.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.product(x, Beside::Residual(residual))
    }

    /// `forward(x) * up`: a layer of gates (SwiGLU, GEGLU), with its activation. The tensor `up` has the shape and the type of the result.
    ///
    /// # Errors
    /// As for `forward`, and a tensor of another shape or type.
    pub fn forward_gated(&self, x: &Tensor, up: &Tensor) -> Result<Tensor> {
        self.product(x, Beside::Up(up))
    }

    /// [`forward`](Module::forward) into a tensor of the result's shape, in the type of x, whose rows may be apart.
    ///
    /// On a GPU it copies nothing from the host, and is legal in a capture after [`prepare`](crate::prepare). It allocates nothing, but for weights in an order of
    /// columns and activations in 8 bits, which take a copy of x: in a captured graph, of the graph's memory. In captures the former need the feature `layers`.
    ///
    /// # Errors
    /// As for `forward`; a tensor that does not fit or shares memory with x; tensors that track gradients.
    pub fn forward_into(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        self.write(x, Beside::Nothing, out)
    }

    /// [`forward_residual`](Self::forward_residual) into a tensor that exists, which may be the residual itself.
    ///
    /// # Errors
    /// As for [`forward_into`](Self::forward_into).
    pub fn forward_residual_into(&self, x: &Tensor, residual: &Tensor, out: &Tensor) -> Result<()> {
        self.write(x, Beside::Residual(residual), out)
    }

    /// [`forward_gated`](Self::forward_gated) into a tensor that exists, which may be `up` itself.
    ///
    /// # Errors
    /// As for [`forward_into`](Self::forward_into).
    pub fn forward_gated_into(&self, x: &Tensor, up: &Tensor, out: &Tensor) -> Result<()> {
        self.write(x, Beside::Up(up), out)
    }

    /// Whether one kernel gates numbers in this type and rounds them to 8 bits for this layer.
    #[cfg(feature = "cuda")]
    pub(in crate::candle::nn) fn gates_in_8_bits(&self, dtype: DType) -> Result<bool> {
        let Weight::Narrow(Placed::Device(weight)) = &self.weight else { return Ok(false) };
        let [_, k] = weight.shape();
        let is_whole = k.is_multiple_of(8) && dtype != DType::F32 && weight.gather.is_none();
        // Another bias is refused elsewhere.
        let has_type = self.bias.as_ref().is_none_or(|bias| bias.dtype() == dtype);
        let eight_bits = EightBits::beside_device(self.activations, weight, None);
        Ok(is_whole && has_type && eight_bits.is_some() && EightBits::is_on(self.device())?)
    }

    /// The product of gated numbers, whose rows of 2 k have the gates first, and a residual, into `out`, of a layer that
    /// [`gates_in_8_bits`](Self::gates_in_8_bits). The tensors have been checked.
    #[cfg(feature = "cuda")]
    pub(in crate::candle::nn) fn gated_in_8_bits_into(
        &self,
        both: &Tensor,
        function: GateFunction,
        residual: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        let Weight::Narrow(Placed::Device(weight)) = &self.weight else {
            bail!("QuantLinear: the weights are on the CPU; expected a GPU")
        };
        let [_, k] = weight.shape();
        let both = BLOCK.rows("x", both, 2 * k)?;
        let eight_bits = EightBits::beside_device(self.activations, weight, None);
        let Some(rounded) = eight_bits.map(|of| of.on_device(both, Some(function))).transpose()?.flatten() else {
            bail!("QuantLinear: no kernel rounds x to 8 bits; expected `gates_in_8_bits`");
        };
        let beside = residual.map_or(Beside::Nothing, Beside::Residual);
        let in_place = residual.map_or(Ok(false), |residual| BLOCK.apart_or_same("the residual", residual, out))?;
        self.multiply(weight, rounded.rows(k), Some(&rounded), beside, out, in_place)
    }

    /// Rows and columns of the weights.
    pub(in crate::candle::nn) fn sizes(&self) -> Result<[usize; 2]> {
        match &self.weight {
            Weight::Plain(weight) => weight.dims2().map(Into::into),
            Weight::Narrow(weight) => Ok(weight.shape()),
        }
    }

    fn write(&self, x: &Tensor, beside: Beside, out: &Tensor) -> Result<()> {
        let shape = self.fits(x, beside)?;
        BLOCK.same("the result", out, x)?;
        if out.dims() != shape {
            bail!("QuantLinear: the result is {:?}; expected {shape:?}", out.dims());
        }
        let c = beside.tensor();
        for (what, tensor) in
            [("x", Some(x)), ("the bias", self.bias.as_ref()), (beside.name(), c), ("the result", Some(out))]
        {
            tensor.map_or(Ok(()), |tensor| BLOCK.untracked(what, tensor))?;
        }
        BLOCK.apart("x", x, out)?;
        let in_place = c.map_or(Ok(false), |c| BLOCK.apart_or_same(beside.name(), c, out))?;
        match &self.weight {
            Weight::Plain(weight) => self.gemm(beside).forward_into(x, &weight.t()?, out),
            Weight::Narrow(Placed::Host(weight)) => put(&self.dequantised(weight, x, beside)?, out),
            Weight::Narrow(Placed::Device(weight)) => self.launch(weight, x, beside, out, in_place),
        }
    }

    fn product(&self, x: &Tensor, beside: Beside) -> Result<Tensor> {
        let _shape = self.fits(x, beside)?;
        match &self.weight {
            Weight::Plain(weight) => self.gemm(beside).forward(x, &weight.t()?),
            Weight::Narrow(Placed::Host(weight)) => self.dequantised(weight, x, beside),
            #[cfg(feature = "cuda")]
            Weight::Narrow(Placed::Device(weight)) => {
                let out = unwritten(&_shape, x.dtype(), x.device())?;
                let dense = |tensor: &Tensor| tensor.detach().contiguous();
                let c = beside.tensor().map(dense).transpose()?;
                self.launch(weight, &dense(x)?, beside.with(c.as_ref()), &out, false)?;
                Ok(out)
            }
            #[cfg(not(feature = "cuda"))]
            Weight::Narrow(Placed::Device(weight)) => no_kernel(weight),
        }
    }

    /// The product with dequantised weights, on the CPU.
    fn dequantised(&self, weight: &QuantWeight, x: &Tensor, beside: Beside) -> Result<Tensor> {
        let wide = |tensor: &Tensor| tensor.to_dtype(DType::F32);
        let bias = self.bias.as_ref().map(wide).transpose()?;
        let c = beside.tensor().map(wide).transpose()?;
        let of = Self { bias, ..self.clone() };
        let (wide_x, [_, k]) = (wide(x)?, weight.shape());
        let eight_bits = EightBits::beside(self.activations, weight, None);
        let x_of_product = eight_bits.map_or(Ok(wide_x.clone()), |eight_bits| eight_bits.round(&wide_x, k))?;
        of.gemm(beside.with(c.as_ref())).forward(&x_of_product, &weight.to_tensor()?.t()?)?.to_dtype(x.dtype())
    }

    /// The product of operands that fit, on the weights' device. `in_place`: the result is the tensor beside.
    #[cfg(feature = "cuda")]
    fn launch(&self, weight: &DeviceWeight, x: &Tensor, beside: Beside, out: &Tensor, in_place: bool) -> Result<()> {
        if out.elem_count() == 0 {
            return Ok(());
        }
        let [_, k] = weight.shape();
        let x = weight.gathered(x)?;
        let x = BLOCK.rows("x", &x, k)?;
        let eight_bits = EightBits::beside_device(self.activations, weight, None);
        match eight_bits.map(|eight_bits| eight_bits.on_device(x, None)).transpose()?.flatten() {
            Some(rounded) => self.multiply(weight, rounded.rows(k), Some(&rounded), beside, out, in_place),
            None => self.multiply(weight, x, None, beside, out, in_place),
        }
    }

    /// The product of rows of x, whose codes are those of `rounded` where it is in 8 bits.
    #[cfg(feature = "cuda")]
    fn multiply(
        &self,
        weight: &DeviceWeight,
        x: Rows,
        rounded: Option<&Rounded>,
        beside: Beside,
        out: &Tensor,
        in_place: bool,
    ) -> Result<()> {
        let Device::Cuda(device) = out.device() else { return no_kernel(weight) };
        let [n, _] = weight.shape();
        let of = Operands {
            x,
            narrow_x: rounded.map(Rounded::of_x),
            weight: Weights::Narrow(weight.operand()),
            bias: self.bias.as_ref(),
            c: beside.tensor().map(|c| BLOCK.rows(beside.name(), c, n)).transpose()?,
            gates_c: beside.is_gated(),
            in_place,
            out: BLOCK.rows("the result", out, n)?,
        };
        quantized::product(device, &Product { of, activation: self.activation })
    }

    #[cfg(not(feature = "cuda"))]
    fn launch(&self, weight: &DeviceWeight, _: &Tensor, _: Beside, _: &Tensor, _: bool) -> Result<()> {
        no_kernel(weight)
    }

    /// The product with weights that are not narrow.
    fn gemm(&self, beside: Beside) -> Gemm {
        let gemm = Gemm::new().activation(self.activation);
        beside.after(self.bias.as_ref().map_or(gemm.clone(), |bias| gemm.bias(bias)))
    }

    /// Checks what a product gets; the shape of its result.
    fn fits(&self, x: &Tensor, beside: Beside) -> Result<Vec<usize>> {
        let [n, k] = self.sizes()?;
        let Some((_, rows)) = x.dims().split_last().filter(|(columns, _)| **columns == k) else {
            bail!("QuantLinear: x is {:?}; expected rows of {k} numbers", x.dims());
        };
        let shape = [rows, &[n]].concat();
        BLOCK.among("x", x, &FLOATS)?;
        if !x.device().same_device(self.device()) {
            bail!("QuantLinear: x is on {:?}; expected {:?}", x.device().location(), self.device().location());
        }
        let bias = ("the bias", self.bias.as_ref(), &shape[rows.len()..]);
        for (what, tensor, shape) in [bias, (beside.name(), beside.tensor(), &shape[..])] {
            let Some(tensor) = tensor else { continue };
            if tensor.dims() != shape || tensor.dtype() != x.dtype() || !tensor.device().same_device(x.device()) {
                bail!(
                    "QuantLinear: {what} is {:?} {:?} on {:?}, expected {:?} {shape:?} on {:?}",
                    tensor.dtype(),
                    tensor.dims(),
                    tensor.device().location(),
                    x.dtype(),
                    x.device().location()
                );
            }
        }
        Ok(shape)
    }
}

/// The error of a device that no build has kernels for.
fn no_kernel<T>(weight: &DeviceWeight) -> Result<T> {
    let (kind, location) = (weight.kind(), weight.device().location());
    bail!("QuantLinear: no kernel of this build multiplies by weights in {kind} on {location:?}; expected the CPU, or a GPU with CUDA")
}

impl Module for QuantLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.product(x, Beside::Nothing)
    }
}

impl From<Linear> for QuantLinear {
    fn from(layer: Linear) -> Self {
        let (weight, bias) = (Weight::Plain(layer.weight().clone()), layer.bias().cloned());
        Self { weight, bias, activation: layer.activation, activations: Activations::Wide }
    }
}
