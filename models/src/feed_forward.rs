//! The part of a layer after attention.

use crate::scratch::{Gates, Scratch};
use candle::{bail, DType, Result, Tensor};
use candle_tilegemm::nn::moe::FusedMoe;
use candle_tilegemm::nn::GatedMlp;

/// Gates and two products, or experts.
#[derive(Debug, Clone)]
pub(crate) enum FeedForward {
    Gated(GatedMlp),
    Experts(FusedMoe),
}

impl FeedForward {
    /// `residual` and the result for `scratch.normed` to `scratch.x`, (rows, hidden), which may be the residual.
    pub fn add(&self, residual: &Tensor, scratch: &Scratch) -> Result<()> {
        let Scratch { x, normed, gates, .. } = scratch;
        match (self, gates) {
            (Self::Gated(layer), Gates { dense: Some(workspace), .. }) => {
                layer.forward_residual_into(normed, residual, workspace, x)
            }
            (Self::Experts(layer), Gates { experts: Some(workspace), .. }) => {
                layer.forward_residual_into(normed, residual, workspace, x)
            }
            _ => bail!("a layer without memory for its gates"),
        }
    }

    /// The result for `scratch.normed` to `scratch.x`, (rows, hidden): on a rank of a group, a part of each sum.
    pub fn forward(&self, scratch: &Scratch) -> Result<()> {
        let Scratch { x, normed, gates, .. } = scratch;
        match (self, gates) {
            (Self::Gated(layer), Gates { dense: Some(workspace), .. }) => layer.forward_into(normed, workspace, x),
            (Self::Experts(layer), Gates { experts: Some(workspace), .. }) => layer.forward_into(normed, workspace, x),
            _ => bail!("a layer without memory for its gates"),
        }
    }

    /// Adds what the layer needs of memory, unless another layer has asked for it.
    pub fn reserve(&self, gates: &mut Gates, rows: usize, dtype: DType) -> Result<()> {
        match self {
            Self::Gated(layer) if gates.dense.is_none() => gates.dense = Some(layer.workspace(rows, dtype)?),
            Self::Experts(layer) if gates.experts.is_none() => gates.experts = Some(layer.workspace(rows)?),
            _ => {}
        }
        Ok(())
    }
}
