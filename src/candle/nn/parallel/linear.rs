//! Products of which each rank has rows or columns of the weights.

use super::group::Group;
use crate::candle::nn::{linear_b, linear_no_bias, qkv_linear as whole_qkv_linear, Linear, MergedLinear, QkvLinear};
use ::candle::{bail, Module, Result, Tensor};
use candle_nn::VarBuilder;

/// The rank's columns of the result of a layer with weights (out, in): it has `out / ranks` of them. Each rank has all of x, and nothing is exchanged.
///
/// # Errors
/// Ranks that do not divide `out_dim`; missing weights, or weights of another shape.
pub fn column_linear(in_dim: usize, out_dim: usize, bias: bool, group: &Group, vb: VarBuilder) -> Result<Linear> {
    linear_b(in_dim, group.part("the number of rows", out_dim)?.len(), bias, vb)
}

/// The rank's heads of the products to q, k and v, with the weights `q_proj`, `k_proj` and `v_proj`. `heads` are those of q, and those of k and of v, of `head_size`
/// numbers each.
///
/// # Errors
/// Ranks that do not divide the heads of k and v; missing weights, or weights of another shape.
pub fn qkv_linear(
    in_dim: usize,
    heads: [usize; 2],
    head_size: usize,
    bias: bool,
    group: &Group,
    vb: VarBuilder,
) -> Result<QkvLinear> {
    let [q, kv] = heads;
    if !q.is_multiple_of(kv.max(1)) {
        bail!("qkv_linear: {q} heads of q for {kv} of k and v; expected a multiple");
    }
    let [q, kv] = [("the number of heads", q), ("the number of heads of k and v", kv)]
        .map(|(what, heads)| group.part(what, heads).map(|part| part.len() * head_size));
    let (kv, q) = (kv?, q?);
    whole_qkv_linear(in_dim, [q, kv, kv], bias, vb)
}

/// A layer with weights (out, in), of which the rank has `in / ranks` columns. With a bias, which rank 0 adds.
///
/// # Errors
/// Ranks that do not divide `in_dim`; missing weights, or weights of another shape.
pub fn row_linear(in_dim: usize, out_dim: usize, bias: bool, group: &Group, vb: VarBuilder) -> Result<RowLinear> {
    let columns = group.part("the number of columns", in_dim)?.len();
    let layer = match bias && group.rank() == 0 {
        true => linear_b(columns, out_dim, true, vb)?,
        false => linear_no_bias(columns, out_dim, vb)?,
    };
    Ok(RowLinear::new(layer, group))
}

/// A product whose sums go over all ranks: each has a part of the columns of x and of the weights, and the group adds up the results. It passes no gradients.
///
/// On GPUs with results in 16 bits each rank's part of a sum is rounded to them before.
#[derive(Debug, Clone)]
pub struct RowLinear {
    layer: MergedLinear,
    group: Group,
}

impl RowLinear {
    /// The rank's part of a layer. Its bias counts once for each rank that has one: expected on rank 0 alone.
    pub fn new(layer: impl Into<MergedLinear>, group: &Group) -> Self {
        Self { layer: layer.into(), group: group.clone() }
    }

    /// The result into a contiguous tensor of its shape and type.
    ///
    /// On GPUs it allocates nothing, and is legal in a capture after a call with as many rows.
    ///
    /// # Errors
    /// As for [`MergedLinear::forward_into`] and [`Group::all_reduce`].
    pub fn forward_into(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        self.layer.forward_into(x, out)?;
        self.group.all_reduce(out)
    }
}

impl Module for RowLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let out = self.layer.forward(x)?.detach();
        self.group.all_reduce(&out)?;
        Ok(out)
    }
}
