//! The part of a layer after attention.

use crate::weights::Product;
use candle::{Result, Tensor};
use candle_tilegemm::nn::moe::FusedMoe;
use candle_tilegemm::nn::{gate, GateFunction};
use candle_tilegemm::problem::Gate;

/// Gates and two products, or experts.
#[derive(Debug, Clone)]
pub(crate) enum FeedForward {
    Gated {
        /// The gates, then as many numbers.
        gate_up: Product,
        function: GateFunction,
        down: Product,
    },
    Experts(FusedMoe),
}

impl FeedForward {
    /// (rows, hidden) to (rows, hidden), plus the residual.
    pub fn forward(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        match self {
            Self::Gated { gate_up, function, down } => {
                down.forward_residual(&gate(&gate_up.forward(x)?, Gate::Halves, *function)?, residual)
            }
            Self::Experts(experts) => experts.forward(&x.unsqueeze(0)?, false)?.squeeze(0)? + residual,
        }
    }
}
