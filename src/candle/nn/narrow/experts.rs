//! The experts of a layer with narrow weights.

use super::config::QuantizationConfig;
use super::floats::read_mxfp4_experts;
use super::load::read;
use super::tensors::Module;
use super::weight::QuantWeight;
use crate::candle::routing::Routing;
use crate::candle::tensors::{Block, FLOATS};
use crate::layer::GateFunction;
use crate::problem::Gate;
use ::candle::{bail, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use rayon::prelude::*;
use std::sync::Arc;

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
/// On the CPU each call dequantises the weights of the experts that tokens have, and sums are in f32. On other devices there are no kernels yet: the call is refused.
#[derive(Debug, Clone)]
pub struct QuantExperts {
    /// (experts * 2 inner, hidden) and (experts * hidden, inner)
    weights: [Arc<QuantWeight>; 2],
    /// In f32 on the CPU, (experts, 2 inner) and (experts, hidden).
    biases: [Option<Tensor>; 2],
    /// Experts, hidden, inner.
    sizes: [usize; 3],
    places: Gate,
    gate: ExpertGate,
}

impl QuantExperts {
    /// Experts with these weights.
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
        Ok(Self { weights: [Arc::new(gate_up), Arc::new(down)], biases, sizes, places, gate })
    }

    /// The experts of gpt-oss in MXFP4: `gate_up_proj_blocks`, (experts, 2 inner, hidden / 32, 16), `gate_up_proj_scales`, `gate_up_proj_bias`, and the same of
    /// `down_proj`. Gates and the numbers that they multiply lie in turns. `vb` is at the path of the experts.
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
            let bias = of.floats(name)?.expect(&[experts, columns])?;
            Tensor::from_vec(bias.values, (experts, columns), &Device::Cpu).map(Some)
        };
        let biases = [bias("gate_up_proj_bias", 2 * inner)?, bias("down_proj_bias", hidden)?];
        let gate = ExpertGate::Clamped { alpha: 1.702, limit: 7.0 };
        Self::new([experts, hidden, inner], weights, biases, Gate::Interleaved, gate)
    }

    /// Experts that are modules of their own, `0.gate_proj`, `0.up_proj`, `0.down_proj` and so on below the path of `vb`, in what format the config says.
    ///
    /// # Errors
    /// Missing tensors, tensors of other shapes and types, experts whose weights are not narrow, and experts of different formats.
    pub fn load(
        [experts, hidden, inner]: [usize; 3],
        gate: GateFunction,
        config: &QuantizationConfig,
        vb: VarBuilder,
    ) -> Result<Self> {
        let weight = |expert: usize, name: &str, shape: [usize; 2]| -> Result<QuantWeight> {
            let vb = vb.pp(expert).pp(name);
            match read(&Module::new(&vb), shape, &shape[..1], config.scheme(&vb.prefix()))? {
                Some(weight) => Ok(weight),
                None => bail!("{}: the weights are not narrow; FusedMoe has such experts", vb.prefix()),
            }
        };
        let (mut gate_up, mut down) = (Vec::with_capacity(2 * experts), Vec::with_capacity(experts));
        for expert in 0..experts {
            for name in ["gate_proj", "up_proj"] {
                gate_up.push(weight(expert, name, [inner, hidden])?);
            }
            down.push(weight(expert, "down_proj", [hidden, inner])?);
        }
        let weights = [QuantWeight::stack(&gate_up)?, QuantWeight::stack(&down)?];
        Self::new([experts, hidden, inner], weights, [None, None], Gate::Halves, ExpertGate::Function(gate))
    }

    /// Experts, hidden, and the numbers between an expert's products.
    pub fn sizes(&self) -> [usize; 3] {
        self.sizes
    }

    /// The weights of gates and ups, (experts * 2 * inner, hidden), and of downs, (experts * hidden, inner).
    pub fn weights(&self) -> [&QuantWeight; 2] {
        [&self.weights[0], &self.weights[1]]
    }

    /// The sum over each token's experts, (tokens, hidden), times the weights of the routing, rounded once to the type of the tokens, (tokens, hidden).
    ///
    /// # Errors
    /// Tokens of another shape or type, a routing of other experts, and devices other than the CPU.
    pub fn forward(&self, tokens: &Tensor, routing: &Routing) -> Result<Tensor> {
        let [experts, hidden, inner] = self.sizes;
        BLOCK.among("x", tokens, &FLOATS)?;
        if !tokens.device().is_cpu() {
            bail!(
                "QuantExperts: no kernel of this build multiplies by weights in {} on {:?}; they run on the CPU",
                self.weights[0].codes(),
                tokens.device().location()
            );
        }
        let gated = routing
            .by_tokens()
            .by_product(tokens, (experts, inner, hidden), |expert, x| self.gated(&self.times(0, expert, x)?))?;
        let product = |expert: usize, x: &Tensor| self.times(1, expert, x);
        let results = routing.by_pairs().by_product(&gated, (experts, hidden, inner), product)?;
        routing.sum_beside(&results, None, tokens.dtype())
    }

    /// Rows in f32 times the weights of an expert's first or second product, with the bias.
    fn times(&self, product: usize, expert: usize, x: &Tensor) -> Result<Tensor> {
        let weight = &self.weights[product];
        let (n, k) = (weight.shape()[0] / self.sizes[0], weight.shape()[1]);
        let numbers = weight.dequantize_rows(expert * n..(expert + 1) * n);
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
    fn apply(self, gate: f32, up: f32) -> f32 {
        match self {
            Self::Function(function) => function.apply(gate) * up,
            Self::Clamped { alpha, limit } => {
                // NaN stays NaN.
                let gate = if gate > limit { limit } else { gate };
                let steep = if gate == f32::NEG_INFINITY { 0.0 } else { gate / (1.0 + (-alpha * gate).exp()) };
                (up.clamp(-limit, limit) + 1.0) * steep
            }
        }
    }
}
