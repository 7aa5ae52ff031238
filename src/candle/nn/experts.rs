//! The weights of experts: dense, in the blocks of a GGUF file, or narrow.

#[cfg(feature = "experts")]
use super::between::{Between, TypesBetween};
use super::narrow::QuantExperts;
use super::QLinear;
#[cfg(feature = "experts")]
use crate::candle::cuda::grouped;
use crate::candle::qweights::Listed;
#[cfg(feature = "experts")]
use crate::candle::qweights::QWeights;
use crate::candle::routing::Routing;
use crate::problem::{Activation, Gate};
#[cfg(feature = "experts")]
use ::candle::DType;
use ::candle::{bail, Device, Module, Result, Tensor, D};
use std::sync::Arc;

/// The weights of a layer's two products.
#[derive(Debug, Clone)]
pub(super) enum Experts {
    /// (experts, 2 inner, hidden), the gates first, and (experts, hidden, inner)
    Dense {
        gate_up: Tensor,
        down: Tensor,
    },
    Blocks(Blocks),
    /// The gate is the experts' own.
    Narrow(QuantExperts),
}

/// Weights in blocks. Between the products numbers are in f32.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    /// Gates and ups, of one format over one another in one list.
    gate_up: Vec<Stack>,
    down: Stack,
    /// Experts, hidden and inner.
    sizes: [usize; 3],
}

/// A matrix of each expert, (experts, n, k).
#[derive(Debug, Clone)]
enum Stack {
    /// candle multiplies with one at a time.
    Cpu(Arc<[QLinear]>),
    #[cfg(feature = "experts")]
    Gpu(QWeights),
}

impl Stack {
    /// The rows of `parts`, (experts, rows, k) each in one format, over one another for each expert.
    fn new(parts: &[Listed], device: &Device) -> Result<Self> {
        let stored = parts[0].stored;
        let [elements, bytes] = stored.block();
        let (experts, _, k) = parts[0].shape.dims3()?;
        let (mut lists, mut rows) = (vec![], 0);
        for part in parts {
            let (_, n, _) = part.shape.dims3()?;
            lists.push((&part.data, n * k / elements * bytes));
            rows += n;
        }
        let of_expert = |expert: usize| -> Vec<&[u8]> {
            lists.iter().map(|(data, bytes)| &data[expert * bytes..(expert + 1) * bytes]).collect()
        };
        match device {
            Device::Cpu => {
                let matrix = |expert: usize| {
                    QLinear::from_blocks(stored.weights(of_expert(expert).concat(), (rows, k).into(), device)?, None)
                };
                Ok(Self::Cpu((0..experts).map(matrix).collect::<Result<Vec<_>>>()?.into()))
            }
            #[cfg(feature = "experts")]
            Device::Cuda(_) => {
                let bytes = (0..experts).flat_map(of_expert).collect::<Vec<_>>().concat();
                Ok(Self::Gpu(stored.weights(bytes, (experts, rows, k).into(), device)?))
            }
            _ => bail!("FusedMoe: experts run on the CPU, and with CUDA: build with the feature experts"),
        }
    }

    #[cfg(feature = "experts")]
    fn on_gpu(&self) -> Result<&QWeights> {
        match self {
            Self::Gpu(weights) => Ok(weights),
            Self::Cpu(_) => bail!("FusedMoe: the experts are on the CPU; expected them where the router is"),
        }
    }

    fn times(&self, expert: usize, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Cpu(weights) => weights[expert].forward(x),
            #[cfg(feature = "experts")]
            Self::Gpu(_) => bail!("FusedMoe: the experts are on a GPU; expected them where the tokens are"),
        }
    }
}

impl Blocks {
    /// Of gates and ups, (experts, inner, hidden), and downs, (experts, hidden, inner), wherever they are.
    pub fn new([gate, up, down]: [Listed; 3], sizes: [usize; 3], device: &Device) -> Result<Self> {
        let gate_up = match gate.stored == up.stored {
            true => vec![Stack::new(&[gate, up], device)?],
            false => vec![Stack::new(&[gate], device)?, Stack::new(&[up], device)?],
        };
        Ok(Self { gate_up, down: Stack::new(&[down], device)?, sizes })
    }

    fn on_cpu(&self, tokens: &Tensor, routing: &Routing, activation: Activation) -> Result<Tensor> {
        let [experts, hidden, inner] = self.sizes;
        let gated = routing.by_tokens().gate(Gate::Halves, activation);
        let inner_rows = gated.by_product(tokens, (experts, 2 * inner, hidden), |expert, x| {
            let parts = self.gate_up.iter().map(|part| part.times(expert, x)).collect::<Result<Vec<_>>>()?;
            Tensor::cat(&parts, D::Minus1)
        })?;
        routing.by_pairs().by_product(&inner_rows, (experts, hidden, inner), |expert, x| self.down.times(expert, x))
    }

    /// The results of all pairs. Gates and ups of two formats are two products, beside one another in memory.
    #[cfg(feature = "experts")]
    fn write(&self, tokens: &Tensor, routing: &Routing, activation: Activation, memory: &Between) -> Result<()> {
        let (Some(both), Device::Cuda(device)) = (&memory.both, tokens.device()) else {
            bail!("FusedMoe: a workspace without room for gates; make one by `workspace` of this layer")
        };
        let columns = both.dim(1)? / self.gate_up.len();
        for (i, part) in self.gate_up.iter().enumerate() {
            let out = both.narrow(1, i * columns, columns)?;
            routing.by_tokens().write_blocks(tokens, part.on_gpu()?, &out)?;
        }
        grouped::gate_into(device, both, activation, &memory.inner)?;
        routing.by_pairs().write_blocks(&memory.inner, self.down.on_gpu()?, &memory.results)
    }
}

impl Experts {
    /// Experts, hidden, and the numbers between an expert's two products.
    pub fn sizes(&self) -> Result<[usize; 3]> {
        match self {
            Self::Dense { down, .. } => down.dims3().map(Into::into),
            Self::Blocks(blocks) => Ok(blocks.sizes),
            Self::Narrow(experts) => Ok(experts.sizes()),
        }
    }

    /// The types between the products of tokens in `dtype`.
    #[cfg(feature = "experts")]
    pub fn types_between(&self, dtype: DType) -> Result<TypesBetween> {
        match self {
            Self::Dense { .. } => Ok(TypesBetween::all(dtype)),
            Self::Blocks(_) => Ok(TypesBetween::all(DType::F32)),
            Self::Narrow(experts) => experts.types_between(dtype),
        }
    }

    /// Dense weights, by name.
    pub fn dense(&self) -> Vec<(&'static str, &Tensor)> {
        match self {
            Self::Dense { gate_up, down } => vec![("gate_up", gate_up), ("down", down)],
            Self::Blocks(_) | Self::Narrow(_) => vec![],
        }
    }

    pub fn detached(&self) -> Self {
        match self {
            Self::Dense { gate_up, down } => Self::Dense { gate_up: gate_up.detach(), down: down.detach() },
            Self::Blocks(_) | Self::Narrow(_) => self.clone(),
        }
    }

    /// The result of each pair, times its weight: in the tokens' type, with quantised weights in f32.
    pub fn results(&self, tokens: &Tensor, routing: &Routing, activation: Activation) -> Result<Tensor> {
        match self {
            Self::Dense { gate_up, down } => {
                let inner = routing.by_tokens().gate(Gate::Halves, activation).forward(tokens, gate_up)?;
                routing.by_pairs().forward(&inner, down)
            }
            Self::Narrow(experts) => experts.results(tokens, routing),
            Self::Blocks(blocks) if tokens.device().is_cpu() => blocks.on_cpu(tokens, routing, activation),
            #[cfg(feature = "experts")]
            Self::Blocks(blocks) => {
                let [_, hidden, inner] = blocks.sizes;
                let (pairs, types) = (routing.pairs().elem_count(), TypesBetween::all(DType::F32));
                let memory = Between::new(pairs, [hidden, inner], types, tokens.device())?;
                let tokens = tokens.detach().contiguous()?;
                blocks.write(&tokens, routing, activation, &memory)?;
                Ok(memory.results)
            }
            #[cfg(not(feature = "experts"))]
            Self::Blocks(_) => bail!("FusedMoe: experts run on the CPU, and with CUDA: build with the feature experts"),
        }
    }

    /// [`results`](Self::results) into the workspace's.
    #[cfg(feature = "experts")]
    pub fn write(&self, tokens: &Tensor, routing: &Routing, activation: Activation, memory: &Between) -> Result<()> {
        match self {
            Self::Dense { gate_up, down } => {
                let gated = routing.by_tokens().gate(Gate::Halves, activation);
                gated.write(tokens, gate_up, memory.both.as_ref(), &memory.inner)?;
                routing.by_pairs().forward_into(&memory.inner, down, &memory.results)
            }
            Self::Blocks(blocks) => blocks.write(tokens, routing, activation, memory),
            Self::Narrow(experts) => experts.write(tokens, routing, memory),
        }
    }
}
