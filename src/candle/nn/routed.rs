//! Memory between the kernels of a layer of experts on a GPU.

use super::between::{Between, TypesBetween};
use crate::candle::cuda::grouped;
use crate::candle::routing::Routing;
use crate::candle::tensors::unwritten;
use ::candle::{CudaDevice, DType, Device, Result, Tensor};

#[derive(Debug, Clone)]
pub(super) struct Memory {
    /// (tokens, experts) in f32
    pub logits: Tensor,
    pub routing: Routing,
    counts: Tensor,
    pub between: Between,
    top_k: usize,
}

impl Memory {
    pub fn new(tokens: usize, sizes: [usize; 4], types: TypesBetween, device: &Device) -> Result<Self> {
        let [experts, hidden, inner, top_k] = sizes;
        let (routing, counts) = Routing::unwritten([tokens, experts, top_k], device)?;
        Ok(Self {
            logits: unwritten(&[tokens, experts], DType::F32, device)?,
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

    pub fn route(&self, device: &CudaDevice, normalise: bool) -> Result<()> {
        let (_, experts) = self.logits.dims2()?;
        grouped::route_into(device, Some(&self.logits), experts, normalise, &self.routing.to(&self.counts))
    }
}
