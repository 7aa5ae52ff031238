//! What tokens become, and what tokens come from.

use candle::quantized::{QMatMul, QTensor};
use candle::{DType, Device, Module, Result, Tensor};
use candle_tilegemm::nn::{Embedding, QLinear};
use candle_tilegemm::Gemm;
use std::sync::Arc;

/// The rows of tokens.
#[derive(Debug, Clone)]
pub(crate) enum Table {
    Dense(Embedding),
    /// Rows are dequantised as they are gathered.
    Blocks(Arc<QTensor>, DType),
}

impl Table {
    /// (tokens) in u32 to (tokens, hidden).
    pub fn rows(&self, tokens: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(table) => table.forward(tokens),
            Self::Blocks(table, dtype) => table.embedding(tokens)?.to_dtype(*dtype),
        }
    }

    /// The same; a dense table's rows are in `out` then, and nothing is allocated.
    pub fn rows_into(&self, tokens: &Tensor, out: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(table) => table.forward_into(tokens, out, None).map(|()| out.clone()),
            Self::Blocks(..) => self.rows(tokens),
        }
    }

    pub fn device(&self) -> Device {
        match self {
            Self::Dense(table) => table.embeddings().device().clone(),
            Self::Blocks(table, _) => table.device(),
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
}

impl Head {
    pub fn tied(table: &Table) -> Result<Self> {
        Ok(match table {
            Table::Dense(table) => Self::Dense(table.embeddings().clone()),
            Table::Blocks(table, _) => Self::Blocks(QMatMul::from_arc(table.clone())?.into()),
        })
    }

    /// (tokens, hidden) into (tokens, vocabulary) in f32. Allocates nothing where the weights are dense.
    pub fn forward_into(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        match self {
            Self::Dense(weight) => Gemm::new().out_dtype(DType::F32).forward_into(x, &weight.t()?, out),
            Self::Blocks(layer) => layer.forward_into(&x.to_dtype(DType::F32)?, out),
        }
    }

    /// (tokens, hidden) to (tokens, vocabulary) in f32.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(weight) => Gemm::new().out_dtype(DType::F32).forward(x, &weight.t()?),
            Self::Blocks(layer) => layer.forward(&x.to_dtype(DType::F32)?),
        }
    }
}
