//! A gated feed-forward part of which each rank has inner numbers.

use super::group::Group;
use crate::candle::nn::{gated_mlp as whole_gated_mlp, GatedMlp as Whole, GatedMlpWorkspace};
use crate::layer::GateFunction;
use ::candle::{DType, Module, Result, Tensor};
use candle_nn::VarBuilder;

/// `down(gate(gate_proj(x), up_proj(x)))`, of which each rank has a part of the inner numbers: the group adds up the results.
#[derive(Debug, Clone)]
pub struct GatedMlp {
    layer: Whole,
    group: Group,
}

/// The rank's part of the layer with the weights `gate_proj` and `up_proj`, (inner, hidden), and `down_proj`, (hidden, inner), without biases.
///
/// # Errors
/// Ranks that do not divide `inner`; missing weights, or weights of another shape.
pub fn gated_mlp(
    hidden: usize,
    inner: usize,
    function: GateFunction,
    group: &Group,
    vb: VarBuilder,
) -> Result<GatedMlp> {
    let inner = group.part("the number of inner numbers", inner)?.len();
    Ok(GatedMlp::new(whole_gated_mlp(hidden, inner, function, vb)?, group))
}

impl GatedMlp {
    /// The rank's part of a layer.
    pub fn new(layer: Whole, group: &Group) -> Self {
        Self { layer, group: group.clone() }
    }

    /// Memory between the layer's kernels: see [`GatedMlp::workspace`](Whole::workspace).
    ///
    /// # Errors
    /// A device without room.
    pub fn workspace(&self, rows: usize, dtype: DType) -> Result<GatedMlpWorkspace> {
        self.layer.workspace(rows, dtype)
    }

    /// The result into a contiguous tensor of its shape and type.
    ///
    /// On GPUs it allocates nothing, and is legal in a capture after a call with as many rows.
    ///
    /// # Errors
    /// As for [`GatedMlp::forward_into`](Whole::forward_into) and [`Group::all_reduce`].
    pub fn forward_into(&self, x: &Tensor, workspace: &GatedMlpWorkspace, out: &Tensor) -> Result<()> {
        self.layer.forward_into(x, workspace, out)?;
        self.group.all_reduce(out)
    }
}

impl Module for GatedMlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let out = self.layer.forward(x)?;
        self.group.all_reduce(&out)?;
        Ok(out)
    }
}
