//! Embeddings and logits of which each rank has columns.

use super::group::Group;
use crate::candle::nn::{embedding as whole_embedding, Embedding as Whole};
use crate::candle::op::Gemm;
use crate::candle::tensors::unwritten;
use ::candle::{DType, Module, Result, Tensor};
use candle_nn::VarBuilder;

/// Rows of a table by tokens, of which each rank has columns for the whole vocabulary: the group puts them beside one another, exactly, and no rank has to know which
/// tokens are its own. (Megatron-LM splits the vocabulary, and adds up.)
#[derive(Debug, Clone)]
pub struct Embedding {
    table: Whole,
    group: Group,
}

/// The rank's part of the layer with the table `weight`, (vocabulary, hidden).
///
/// # Errors
/// Ranks that do not divide `hidden`; missing weights, or weights of another shape.
pub fn embedding(vocabulary: usize, hidden: usize, group: &Group, vb: VarBuilder) -> Result<Embedding> {
    let columns = group.part("the number of columns", hidden)?.len();
    Ok(Embedding { table: whole_embedding(vocabulary, columns, vb)?, group: group.clone() })
}

impl Module for Embedding {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let part = self.table.forward(&tokens.flatten_all()?)?;
        let all = beside(&self.group, &part)?;
        all.reshape([tokens.dims(), &[all.dim(1)?]].concat())
    }
}

/// The product to logits, of which each rank has a part of the vocabulary: every rank gets all logits, in f32. It passes no gradients.
#[derive(Debug, Clone)]
pub struct Head {
    /// (vocabulary / ranks, hidden)
    weight: Tensor,
    group: Group,
}

/// The rank's part of the head with the weights `weight`, (vocabulary, hidden).
///
/// # Errors
/// Ranks that do not divide the vocabulary; missing weights, or weights of another shape.
pub fn head(hidden: usize, vocabulary: usize, group: &Group, vb: VarBuilder) -> Result<Head> {
    let rows = group.part("the vocabulary", vocabulary)?.len();
    Ok(Head { weight: vb.get((rows, hidden), "weight")?, group: group.clone() })
}

impl Module for Head {
    /// (rows, hidden) to (rows, vocabulary).
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        beside(&self.group, &Gemm::new().out_dtype(DType::F32).forward(x, &self.weight.t()?)?.detach())
    }
}

/// The columns of all ranks.
fn beside(group: &Group, part: &Tensor) -> Result<Tensor> {
    let (rows, columns) = part.dims2()?;
    let memory = || unwritten(&[rows, columns * group.size()], part.dtype(), part.device());
    let (between, all) = (memory()?, memory()?);
    group.gather_columns_into(part, &between, &all)?;
    Ok(all)
}
