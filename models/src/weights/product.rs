//! Products with dense weights and with blocks.

use candle::quantized::{QMatMul, QTensor};
use candle::{DType, Device, Module, Result, Tensor, D};
use candle_tilegemm::nn::{Embedding, Linear, QLinear};
use candle_tilegemm::Gemm;
use std::sync::Arc;

/// A product with weights.
#[derive(Debug, Clone)]
pub(crate) enum Product {
    Dense(Linear),
    Blocks(QLinear),
    /// Products whose results lie side by side: their weights have different formats.
    Beside(Vec<Product>),
}

impl Product {
    /// (tokens, in) to (tokens, out).
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(layer) => layer.forward(x),
            Self::Blocks(layer) => layer.forward(x),
            Self::Beside(parts) => {
                let parts = parts.iter().map(|part| part.forward(x)).collect::<Result<Vec<_>>>()?;
                Tensor::cat(&parts, D::Minus1)
            }
        }
    }

    /// The same plus a tensor of the result's shape.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(layer) => layer.forward_residual(x, residual),
            Self::Blocks(layer) => layer.forward_residual(x, residual),
            Self::Beside(_) => self.forward(x)? + residual,
        }
    }
}

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

    /// (tokens, hidden) to (tokens, vocabulary) in f32.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(weight) => Gemm::new().out_dtype(DType::F32).forward(x, &weight.t()?),
            Self::Blocks(layer) => layer.forward(&x.to_dtype(DType::F32)?),
        }
    }
}
