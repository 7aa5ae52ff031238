//! Memory between the kernels of a layer of experts on a GPU.

use super::between::{Between, TypesBetween};
use crate::candle::cuda::grouped::{self, Logits};
use crate::candle::routing::Routing;
use crate::candle::tensors::unwritten;
use ::candle::{CudaDevice, DType, Device, Result, Tensor};

#[derive(Debug, Clone)]
pub(super) struct Memory {
    /// (tokens, experts of all ranks) in f32
    pub logits: Tensor,
    pub routing: Routing,
    counts: Tensor,
    pub between: Between,
    top_k: usize,
}

impl Memory {
    /// For a layer with `experts` of `candidates`.
    pub fn new(
        tokens: usize,
        candidates: usize,
        [experts, hidden, inner, top_k]: [usize; 4],
        types: TypesBetween,
        device: &Device,
    ) -> Result<Self> {
        let (routing, counts) = Routing::unwritten([tokens, experts, top_k], device)?;
        Ok(Self {
            logits: unwritten(&[tokens, candidates], DType::F32, device)?,
            routing,
            counts,
            between: Between::new(tokens * top_k, [hidden, inner], types, device)?,
            top_k,
        })
    }

    pub fn of_first(&self, tokens: usize) -> Result<Self> {
        Ok(Self {
            logits: self.logits.narrow(0, 0, tokens)?,
            routing: self.routing.of_first(tokens)?,
            counts: self.counts.clone(),
            between: self.between.of_first(tokens * self.top_k)?,
            top_k: self.top_k,
        })
    }

    /// Chooses by the logits, of which `first` is expert 0 of the layer.
    pub fn route(&self, device: &CudaDevice, first: usize, normalise: bool) -> Result<()> {
        let (experts, by) =
            (self.routing.first_row().elem_count() - 1, Logits { logits: &self.logits, first, normalise });
        grouped::route_into(device, Some(by), experts, &self.routing.to(&self.counts))
    }
}
