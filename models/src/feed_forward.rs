//! The part of a layer after attention.

use crate::scratch::{Gates, Scratch};
use crate::weights::Product;
use candle::{bail, DType, Device, Result, Tensor};
use candle_tilegemm::nn::moe::FusedMoe;
use candle_tilegemm::nn::{gate_into, GateFunction};
use candle_tilegemm::problem::Gate;

/// Gates and two products, or experts.
#[derive(Debug, Clone)]
pub(crate) enum FeedForward {
    Gated {
        /// The gates, then as many numbers.
        gate_up: Product,
        function: GateFunction,
        down: Product,
        /// Gates.
        inner: usize,
    },
    Experts(FusedMoe),
}

impl FeedForward {
    /// Adds the result for `scratch.normed` to `scratch.x`, (rows, hidden).
    pub fn add(&self, scratch: &Scratch) -> Result<()> {
        let Scratch { x, normed, gates, .. } = scratch;
        match (self, gates) {
            (Self::Gated { gate_up, function, down, .. }, Gates { dense: Some([both, gated]), .. }) => {
                gate_up.forward_into(normed, both)?;
                gate_into(both, Gate::Halves, *function, gated)?;
                down.forward_residual_into(gated, x, x)
            }
            (Self::Experts(experts), Gates { experts: Some(workspace), .. }) => {
                experts.forward_residual_into(normed, x, workspace, x)
            }
            _ => bail!("a layer without memory for its gates"),
        }
    }

    /// Adds what the layer needs of memory, unless another layer has asked for it.
    pub fn reserve(&self, gates: &mut Gates, rows: usize, dtype: DType, device: &Device) -> Result<()> {
        match self {
            Self::Gated { inner, .. } if gates.dense.is_none() => {
                // SAFETY: the products and the gate write every number before anybody reads it.
                let tensor = |columns: usize| unsafe { Tensor::empty((rows, columns), dtype, device) };
                gates.dense = Some([tensor(2 * inner)?, tensor(*inner)?]);
            }
            Self::Experts(experts) if gates.experts.is_none() => gates.experts = Some(experts.workspace(rows)?),
            _ => {}
        }
        Ok(())
    }
}
