//! What tokens become, and what tokens come from.

use candle::{DType, Device, Module, Result, Tensor};
use candle_tilegemm::nn::{Embedding, QEmbedding, QLinear, QuantLinear};
use candle_tilegemm::Gemm;

/// The rows of tokens.
#[derive(Debug, Clone)]
pub(crate) enum Table {
    Dense(Embedding),
    /// Rows are dequantised as they are gathered.
    Blocks(QEmbedding, DType),
}

impl Table {
    /// (tokens) in u32 to (tokens, hidden).
    pub fn rows(&self, tokens: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(table) => table.forward(tokens),
            Self::Blocks(table, dtype) => table.forward(tokens, *dtype),
        }
    }

    /// The same into a tensor that is there.
    pub fn rows_into(&self, tokens: &Tensor, out: &Tensor) -> Result<()> {
        match self {
            Self::Dense(table) => table.forward_into(tokens, out, None),
            Self::Blocks(table, _) => table.forward_into(tokens, out, None),
        }
    }

    pub fn device(&self) -> Device {
        match self {
            Self::Dense(table) => table.embeddings().device().clone(),
            Self::Blocks(table, _) => table.table().device(),
        }
    }

    pub fn dtype(&self) -> DType {
        match self {
            Self::Dense(table) => table.embeddings().dtype(),
            Self::Blocks(_, dtype) => *dtype,
        }
    }
}

/// The product to logits.
#[derive(Debug, Clone)]
pub(crate) enum Head {
    /// (vocabulary, hidden)
    Dense(Tensor),
    Blocks(QLinear),
    Narrow(QuantLinear),
}

impl Head {
    pub fn tied(table: &Table) -> Result<Self> {
        Ok(match table {
            Table::Dense(table) => Self::Dense(table.embeddings().clone()),
            Table::Blocks(table, _) => Self::Blocks(QLinear::from_blocks(table.table().clone(), None)?),
        })
    }

    /// The type of its input, where layers have `dtype`.
    pub fn input(&self, dtype: DType) -> DType {
        match self {
            Self::Dense(_) => dtype,
            // Results have the input's type.
            Self::Blocks(_) | Self::Narrow(_) => DType::F32,
        }
    }

    /// (tokens, hidden) into (tokens, vocabulary) in f32.
    pub fn forward_into(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        match self {
            Self::Dense(weight) => Gemm::new().out_dtype(DType::F32).forward_into(x, &weight.t()?, out),
            Self::Blocks(layer) => layer.forward_into(x, out),
            Self::Narrow(layer) => layer.forward_into(x, out),
        }
    }
}
