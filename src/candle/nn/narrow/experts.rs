//! The experts of a layer with narrow weights.

use super::config::QuantizationConfig;
use super::device::{DeviceWeight, Placed};
use super::eight_bits::EightBits;
use super::floats::read_mxfp4_experts;
use super::load::read;
use super::quantize::Quantizer;
use super::scheme::Activations;
use super::tensors::Module;
use super::weight::QuantWeight;
#[cfg(feature = "experts")]
use crate::candle::cuda::grouped::{self, Biases};
#[cfg(feature = "experts")]
use crate::candle::nn::between::{Between, TypesBetween};
#[cfg(feature = "experts")]
use crate::candle::nn::gate::gate_into;
use crate::candle::routing::Routing;
use crate::candle::tensors::{Block, FLOATS};
#[cfg(feature = "experts")]
use crate::candle::GroupedGemm;
use crate::layer::GateFunction;
use crate::problem::Gate;
#[cfg(feature = "experts")]
use ::candle::CudaDevice;
use ::candle::{bail, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use rayon::prelude::*;
use std::ops::Range;

const BLOCK: Block = Block("QuantExperts");

/// What is made of a gate g and the number u that it multiplies.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ExpertGate {
    /// function(g) u.
    Function(GateFunction),
    /// (u' + 1) g' sigmoid(alpha g'), where g' = min(g, limit) and u' = u within -limit and limit, as gpt-oss has it, with alpha = 1.702 and limit = 7.
    Clamped {
        /// The factor in the sigmoid.
        alpha: f32,
        /// The largest number.
        limit: f32,
    },
}

/// The experts of a layer, with weights in a few bits: `down @ gate(gate_up @ x + bias) + bias` of each token and each of its experts.
///
/// Sums are in f32, and so are the numbers between the products; where both products take activations in 8 bits, these are in the tokens' type before they are rounded. On the CPU each call dequantises the weights of the experts that tokens have. On a GPU (features
/// `narrow` and `experts`) the weights are in memory there and nowhere else, and kernels round as those of [`QuantLinear`](super::QuantLinear).
///
/// Where a config asks for it, activations of experts in fp8 are rounded to fp8 before each product, as [`QuantLinear`](super::QuantLinear) has it: on the CPU, and on Hopper with
/// the feature `layers`, too.
///
/// [`FusedMoe::from_narrow`](crate::nn::moe::FusedMoe::from_narrow) makes a layer with a router of them.
///
/// ```
/// use candle::{Device, Result, Tensor};
/// use candle_tilegemm::nn::moe::Routing;
/// use candle_tilegemm::nn::narrow::{ExpertGate, Granularity, QuantWeight, Quantizer};
/// use candle_tilegemm::nn::{GateFunction, QuantExperts};
/// use candle_tilegemm::problem::Gate;
///
/// let [count, hidden, inner] = [4, 64, 32];
/// let random = |rows: usize, columns: usize| Tensor::randn(0f32, 1f32, (rows, columns), &Device::Cpu);
/// let weight = |rows: usize, columns: usize| -> Result<QuantWeight> {
///     QuantWeight::quantize(&random(count * rows, columns)?, Quantizer::Fp8(Granularity::Channel))
/// };
/// let weights = [weight(2 * inner, hidden)?, weight(hidden, inner)?]; // gates and ups, and downs
/// let gate = ExpertGate::Function(GateFunction::SwiGlu);
/// let experts = QuantExperts::new([count, hidden, inner], weights, [None, None], Gate::Halves, gate)?;
///
/// let (tokens, logits) = (random(3, hidden)?, random(3, count)?);
/// let y = experts.forward(&tokens, &Routing::by_logits(&logits, 2, true)?)?;
/// assert_eq!(y.dims(), [3, hidden]);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct QuantExperts {
    /// (experts * 2 inner, hidden) and (experts * hidden, inner)
    weights: [Placed; 2],
    /// In f32 where the weights are, (experts, 2 inner) and (experts, hidden).
    biases: [Option<Tensor>; 2],
    /// Experts, hidden, inner.
    sizes: [usize; 3],
    places: Gate,
    gate: ExpertGate,
    activations: Activations,
}

impl QuantExperts {
    /// Experts with these weights, on the CPU.
    ///
    /// - `sizes`: experts, hidden, and the numbers between an expert's products, `inner`
    /// - `gate_up`: (experts * 2 * inner, hidden), expert after expert; `places` says which rows of an expert are gates
    /// - `down`: (experts * hidden, inner)
    /// - `biases`: (experts, 2 * inner) and (experts, hidden)
    ///
    /// # Errors
    /// Weights and biases of other shapes.
    pub fn new(
        sizes: [usize; 3],
        [gate_up, down]: [QuantWeight; 2],
        biases: [Option<Tensor>; 2],
        places: Gate,
        gate: ExpertGate,
    ) -> Result<Self> {
        let [experts, hidden, inner] = sizes;
        for (what, weight, shape) in
            [("gate_up", &gate_up, [experts * 2 * inner, hidden]), ("down", &down, [experts * hidden, inner])]
        {
            if weight.shape() != shape {
                bail!("QuantExperts: the weights {what} are {:?}; expected {shape:?}", weight.shape());
            }
        }
        let [of_gate_up, of_down] = biases;
        let bias = |what: &str, bias: Option<Tensor>, columns: usize| -> Result<Option<Tensor>> {
            let Some(bias) = bias else { return Ok(None) };
            if bias.dims() != [experts, columns] {
                bail!("QuantExperts: the bias {what} is {:?}; expected {:?}", bias.dims(), [experts, columns]);
            }
            bias.to_device(&Device::Cpu)?.to_dtype(DType::F32).map(Some)
        };
        let biases = [bias("gate_up", of_gate_up, 2 * inner)?, bias("down", of_down, hidden)?];
        let weights = [gate_up, down].map(|weight| {
            let [rows, of_expert] = [weight.scales().shared()[0], weight.shape()[0] / experts.max(1)];
            // Factors of one expert lie behind those of another: none is for rows of two.
            let is_whole = rows >= weight.shape()[0] || of_expert.is_multiple_of(rows);
            Placed::from(if is_whole { weight } else { weight.with_factors_of_rows() })
        });
        Ok(Self { weights, biases, sizes, places, gate, activations: Activations::Wide })
    }

    /// The same experts on a device.
    ///
    /// # Errors
    /// A device without room, and those of copies.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        let weight = |weight: &Placed| match self.activations {
            Activations::Dynamic if !device.is_cpu() => {
                weight.with_factors_of_8_bits(Some(self.sizes[0])).to_device(device)
            }
            _ => weight.to_device(device),
        };
        let bias = |bias: &Option<Tensor>| bias.as_ref().map(|bias| bias.to_device(device)).transpose();
        let [gate_up, down] = &self.weights;
        let biases = [bias(&self.biases[0])?, bias(&self.biases[1])?];
        Ok(Self { weights: [weight(gate_up)?, weight(down)?], biases, ..self.clone() })
    }

    /// The experts of gpt-oss in MXFP4: `gate_up_proj_blocks`, (experts, 2 inner, hidden / 32, 16), `gate_up_proj_scales`, `gate_up_proj_bias`, and the same of
    /// `down_proj`. Gates and the numbers that they multiply lie in turns. `vb` is at the path of the experts. A rank of a group gets its part by the sizes that it
    /// asks for: of experts, or of inner numbers ([`Checkpoint::of_rank`](super::Checkpoint::of_rank)).
    ///
    /// # Errors
    /// Missing tensors, and tensors of other shapes and types.
    pub fn gpt_oss([experts, hidden, inner]: [usize; 3], vb: VarBuilder) -> Result<Self> {
        let of = Module::new(&vb);
        let weights = [
            read_mxfp4_experts(&of, "gate_up_proj", [experts, 2 * inner, hidden])?,
            read_mxfp4_experts(&of, "down_proj", [experts, hidden, inner])?,
        ];
        let bias = |name: &str, columns: usize| -> Result<Option<Tensor>> {
            let bias = of.shaped(&[experts, columns]).floats(name)?;
            Tensor::from_vec(bias.values, (experts, columns), &Device::Cpu).map(Some)
        };
        let biases = [bias("gate_up_proj_bias", 2 * inner)?, bias("down_proj_bias", hidden)?];
        let gate = ExpertGate::Clamped { alpha: 1.702, limit: 7.0 };
        Self::new([experts, hidden, inner], weights, biases, Gate::Interleaved, gate)?.to_device(vb.device())
    }

    /// Experts that are modules of their own, `0.gate_proj`, `0.up_proj`, `0.down_proj` and so on below the path of `vb`, in what format the config says.
    ///
    /// # Errors
    /// Missing tensors, tensors of other shapes and types, experts whose weights are not narrow, and experts of different formats.
    pub fn load(sizes: [usize; 3], gate: GateFunction, config: &QuantizationConfig, vb: VarBuilder) -> Result<Self> {
        let [experts, hidden, inner] = sizes;
        Self::load_range(0..experts, [hidden, inner], gate, config, vb)
    }

    /// A range of such experts, of so many hidden and inner numbers, as a rank of a group has some of them: it reads no others.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn load_range(
        experts: Range<usize>,
        sizes: [usize; 2],
        gate: GateFunction,
        config: &QuantizationConfig,
        vb: VarBuilder,
    ) -> Result<Self> {
        let activations = config.scheme(&vb.pp(experts.start).pp("gate_proj").prefix()).activations();
        let experts = Self::of_modules(experts, sizes, gate, &vb, |vb, shape| {
            match read(&Module::new(&vb), shape, &shape[..1], config.scheme(&vb.prefix()))? {
                Some(weight) => Ok(weight),
                None => bail!("{}: the weights are not narrow; FusedMoe has such experts", vb.prefix()),
            }
        })?;
        experts.with_activations(activations).to_device(vb.device())
    }

    /// Experts that are modules of their own, whose weights of (n, k) `read` gets from a builder at their path.
    fn of_modules(
        experts: Range<usize>,
        [hidden, inner]: [usize; 2],
        gate: GateFunction,
        vb: &VarBuilder,
        read: impl Fn(VarBuilder, [usize; 2]) -> Result<QuantWeight>,
    ) -> Result<Self> {
        let weight = |expert: usize, name: &str, shape: [usize; 2]| read(vb.pp(expert).pp(name), shape);
        let count = experts.len();
        let (mut gate_up, mut down) = (Vec::with_capacity(2 * count), Vec::with_capacity(count));
        for expert in experts {
            for name in ["gate_proj", "up_proj"] {
                gate_up.push(weight(expert, name, [inner, hidden])?);
            }
            down.push(weight(expert, "down_proj", [hidden, inner])?);
        }
        let weights = [QuantWeight::stack(&gate_up)?, QuantWeight::stack(&down)?];
        Self::new([count, hidden, inner], weights, [None, None], Gate::Halves, ExpertGate::Function(gate))
    }

    /// Experts that are modules of their own, as [`load`](Self::load) has them, stored in 16 or 32 bits and rounded to the nearest in fewer.
    ///
    /// # Errors
    /// Missing tensors, tensors of other shapes, and those of [`QuantWeight::quantize`].
    pub fn rounded(sizes: [usize; 3], gate: GateFunction, to: Quantizer, vb: VarBuilder) -> Result<Self> {
        let [experts, hidden, inner] = sizes;
        Self::rounded_range(0..experts, [hidden, inner], gate, to, vb)
    }

    /// A range of such experts, of so many hidden and inner numbers, as a rank of a group has some of them: it reads no others.
    ///
    /// # Errors
    /// As for [`rounded`](Self::rounded).
    pub fn rounded_range(
        experts: Range<usize>,
        sizes: [usize; 2],
        gate: GateFunction,
        to: Quantizer,
        vb: VarBuilder,
    ) -> Result<Self> {
        Self::of_modules(experts, sizes, gate, &vb, |vb, [n, k]| {
            QuantWeight::quantize(&vb.set_device(Device::Cpu).get((n, k), "weight")?, to)
        })?
        .to_device(vb.device())
    }

    /// The same experts without the bias behind `down`: those of all ranks but one, where each has a part of the inner numbers and their results are added up.
    pub fn without_down_bias(mut self) -> Self {
        self.biases[1] = None;
        self
    }

    /// The same experts with another gate.
    pub fn with_gate(self, gate: ExpertGate) -> Self {
        Self { gate, ..self }
    }

    /// The same experts with activations rounded as the config of a checkpoint asks for it, or as they come.
    pub fn with_activations(self, activations: Activations) -> Self {
        Self { activations, ..self }
    }

    /// Experts, hidden, and the numbers between an expert's products.
    pub fn sizes(&self) -> [usize; 3] {
        self.sizes
    }

    /// The weights of gates and ups, (experts * 2 * inner, hidden), and of downs, (experts * hidden, inner), of experts on the CPU. Experts on a GPU have
    /// [`device_weights`](Self::device_weights), which can be read back.
    pub fn weights(&self) -> Option<[&QuantWeight; 2]> {
        let [gate_up, down] = &self.weights;
        Some([gate_up.host()?, down.host()?])
    }

    /// The same of experts that are not on the CPU.
    pub fn device_weights(&self) -> Option<[&DeviceWeight; 2]> {
        let [gate_up, down] = &self.weights;
        Some([gate_up.elsewhere()?, down.elsewhere()?])
    }

    /// Where the weights are.
    pub fn device(&self) -> &Device {
        self.weights[0].device()
    }

    /// The sum over each token's experts, (tokens, hidden), times the weights of the routing, rounded once to the type of the tokens, (tokens, hidden).
    ///
    /// # Errors
    /// Tokens of another shape or type, tokens that are not where the weights are, a routing of other experts, and builds without kernels.
    pub fn forward(&self, tokens: &Tensor, routing: &Routing) -> Result<Tensor> {
        routing.sum_beside(&self.results(tokens, routing)?, None, tokens.dtype())
    }

    /// The result of each pair, times its weight, in f32.
    pub(in crate::candle::nn) fn results(&self, tokens: &Tensor, routing: &Routing) -> Result<Tensor> {
        BLOCK.among("x", tokens, &FLOATS)?;
        if !tokens.device().same_device(self.device()) {
            bail!("QuantExperts: x is on {:?}; expected {:?}", tokens.device().location(), self.device().location());
        }
        let [experts, hidden, inner] = self.sizes;
        if let Some(weights) = self.weights() {
            let times = |product: usize, expert: usize, x: &Tensor| self.times(product, weights[product], expert, x);
            let between = if self.gates_in_8_bits(tokens.dtype()) { tokens.dtype() } else { DType::F32 };
            let stored = |x: Tensor| x.to_dtype(between)?.to_dtype(DType::F32);
            let gated = routing.by_tokens().by_product(tokens, (experts, inner, hidden), |expert, x| {
                stored(self.gated(&stored(times(0, expert, x)?)?)?)
            })?;
            return routing.by_pairs().by_product(&gated, (experts, hidden, inner), |expert, x| times(1, expert, x));
        }
        #[cfg(feature = "experts")]
        {
            let (pairs, types) = (routing.pairs().elem_count(), self.types_between(tokens.dtype())?);
            let memory = Between::new(pairs, [hidden, inner], types, tokens.device())?;
            self.write(&tokens.detach().contiguous()?, routing, &memory)?;
            Ok(memory.results)
        }
        #[cfg(not(feature = "experts"))]
        bail!("QuantExperts: experts run on the CPU, and with CUDA: build with the features experts and narrow")
    }

    /// The same on a GPU, into memory that is there. Allocates nothing, but for weights in an order of columns.
    #[cfg(feature = "experts")]
    pub(in crate::candle::nn) fn write(&self, tokens: &Tensor, routing: &Routing, memory: &Between) -> Result<()> {
        let types = self.types_between(tokens.dtype())?;
        let both = memory.both.as_ref().filter(|both| Some(both.dtype()) == types.both);
        let (Some([gate_up, down]), Some(both), Device::Cuda(device)) = (self.device_weights(), both, self.device())
        else {
            bail!("QuantExperts: a workspace without room for gates; make one by `workspace` of the layer of these experts")
        };
        self.product(&routing.by_tokens(), gate_up, tokens, None, both)?;
        match self.gate {
            ExpertGate::Function(function) if both.dtype() != DType::F32 => {
                self.product(&routing.by_pairs(), down, both, Some(function), &memory.results)?
            }
            _ => {
                self.gate_into(device, both, routing, &memory.inner)?;
                self.product(&routing.by_pairs(), down, &memory.inner, None, &memory.results)?
            }
        }
        if self.biases[1].is_none() {
            return Ok(());
        }
        let behind =
            Biases { bias: self.biases[1].as_ref(), experts: routing.experts(), scales: Some(routing.weights()) };
        grouped::add_bias(device, &memory.results, behind)
    }

    /// Biases and gates, in f32.
    #[cfg(feature = "experts")]
    fn gate_into(&self, device: &CudaDevice, both: &Tensor, routing: &Routing, inner: &Tensor) -> Result<()> {
        let before = Biases { bias: self.biases[0].as_ref(), experts: routing.experts(), scales: None };
        match self.gate {
            ExpertGate::Function(function) => {
                if before.bias.is_some() {
                    grouped::add_bias(device, both, before)?;
                }
                gate_into(both, self.places, function, inner)
            }
            ExpertGate::Clamped { alpha, limit } => {
                grouped::clamp_into(device, both, before, (self.places, [alpha, limit]), inner)
            }
        }
    }

    /// The types between the products of tokens in `dtype` on a GPU.
    #[cfg(feature = "experts")]
    pub(in crate::candle::nn) fn types_between(&self, dtype: DType) -> Result<TypesBetween> {
        let in_16_bits = self.gates_in_8_bits(dtype) && EightBits::is_on(self.device())?;
        let both = if in_16_bits { dtype } else { DType::F32 };
        Ok(TypesBetween { both: Some(both), ..TypesBetween::all(DType::F32) })
    }

    /// Whether one kernel gates numbers in this type and rounds them to 8 bits. The numbers are stored in it.
    fn gates_in_8_bits(&self, dtype: DType) -> bool {
        let experts = Some(self.sizes[0]);
        let is_in_8_bits = |weight: &Placed| match weight {
            Placed::Host(weight) => EightBits::beside(self.activations, weight, experts).is_some(),
            #[cfg(feature = "cuda")]
            Placed::Device(weight) => {
                weight.gather.is_none() && EightBits::beside_device(self.activations, weight, experts).is_some()
            }
            #[cfg(not(feature = "cuda"))]
            Placed::Device(_) => false,
        };
        let is_plain = self.places == Gate::Halves && self.biases[0].is_none() && self.sizes[2].is_multiple_of(8);
        let has_gate = matches!(self.gate, ExpertGate::Function(_)) && dtype != DType::F32;
        is_plain && has_gate && self.weights.iter().all(is_in_8_bits)
    }

    /// Rows times a weight of each expert, in 8 bits where kernels multiply these by 8 bits. With a gate, rows have the gates first, and are in 8 bits.
    #[cfg(feature = "experts")]
    fn product(
        &self,
        groups: &GroupedGemm,
        weight: &DeviceWeight,
        x: &Tensor,
        gate: Option<GateFunction>,
        out: &Tensor,
    ) -> Result<()> {
        let ([count, ..], [_, k]) = (self.sizes, weight.shape());
        let (x, operand) = (weight.gathered(x)?, weight.operand_of_each(count));
        let eight_bits =
            EightBits::beside_device(self.activations, weight, Some(count)).filter(|_| out.elem_count() > 0);
        let rows = BLOCK.rows("x", &x, if gate.is_some() { 2 * k } else { k })?;
        match eight_bits.map(|of| of.on_device(rows, gate)).transpose()?.flatten() {
            Some(rounded) => {
                groups.write_narrow(&rounded.codes.narrow(1, 0, k)?, Some(rounded.of_x()), count, operand, out)
            }
            None if gate.is_some() && out.elem_count() == 0 => Ok(()),
            None if gate.is_some() => bail!("QuantExperts: no kernel rounds x to 8 bits; expected `gates_in_8_bits`"),
            None => groups.write_narrow(&x, None, count, operand, out),
        }
    }

    /// Rows in f32 times the weights of an expert's first or second product, with the bias.
    fn times(&self, product: usize, weight: &QuantWeight, expert: usize, x: &Tensor) -> Result<Tensor> {
        let (n, k) = (weight.shape()[0] / self.sizes[0], weight.shape()[1]);
        let numbers = weight.dequantize_rows(expert * n..(expert + 1) * n);
        let eight_bits = EightBits::beside(self.activations, weight, Some(self.sizes[0]));
        let rounded = eight_bits.map(|of| of.round(x, k)).transpose()?;
        let x = rounded.as_ref().unwrap_or(x);
        let y = x.matmul(&Tensor::from_vec(numbers, (n, k), &Device::Cpu)?.t()?)?;
        match &self.biases[product] {
            Some(bias) => y.broadcast_add(&bias.get(expert)?),
            None => Ok(y),
        }
    }

    /// Gates applied to rows of 2 * inner numbers.
    fn gated(&self, y: &Tensor) -> Result<Tensor> {
        let (rows, n) = y.dims2()?;
        let values = y.flatten_all()?.to_vec1::<f32>()?;
        let of = |at: usize| {
            let row = &values[at / (n / 2) * n..];
            let [gate, up] = self.places.places(at % (n / 2), n);
            self.gate.apply(row[gate], row[up])
        };
        let gated: Vec<f32> = (0..rows * n / 2).into_par_iter().map(of).collect();
        Tensor::from_vec(gated, (rows, n / 2), y.device())
    }
}

impl ExpertGate {
    pub(super) fn apply(self, gate: f32, up: f32) -> f32 {
        match self {
            Self::Function(function) => function.apply(gate) * up,
            Self::Clamped { alpha, limit } => {
                // NaN stays NaN, and limits of any sign are those of csrc/experts/pairs.hpp.
                let at_most = |x: f32| if x > limit { limit } else { x };
                let (gate, up) = (at_most(gate), -at_most(-at_most(up)));
                let steep = if gate == f32::NEG_INFINITY { 0.0 } else { gate / (1.0 + (-alpha * gate).exp()) };
                (up + 1.0) * steep
            }
        }
    }
}
