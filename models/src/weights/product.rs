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
    /// Products whose results lie side by side, with their columns: their weights have different formats.
    Beside(Vec<(Product, usize)>),
}

impl Product {
    /// (tokens, in) to (tokens, out). Allocates nothing.
    pub fn forward_into(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        match self {
            Self::Dense(layer) => layer.forward_into(x, out),
            Self::Blocks(layer) => layer.forward_into(x, out),
            Self::Beside(parts) => {
                self::beside(parts, |part, at, columns| part.forward_into(x, &out.narrow(D::Minus1, at, columns)?))
            }
        }
    }

    /// The same plus a tensor of the result's shape, which may be the result itself.
    pub fn forward_residual_into(&self, x: &Tensor, residual: &Tensor, out: &Tensor) -> Result<()> {
        match self {
            Self::Dense(layer) => layer.forward_residual_into(x, residual, out),
            Self::Blocks(layer) => layer.forward_residual_into(x, residual, out),
            Self::Beside(parts) => self::beside(parts, |part, at, columns| {
                let of = |tensor: &Tensor| tensor.narrow(D::Minus1, at, columns);
                part.forward_residual_into(x, &of(residual)?, &of(out)?)
            }),
        }
    }
}

/// Calls `part` with each part, its first column, and its columns.
fn beside(parts: &[(Product, usize)], mut part: impl FnMut(&Product, usize, usize) -> Result<()>) -> Result<()> {
    let mut at = 0;
    parts.iter().try_for_each(|(of, columns)| {
        part(of, at, *columns)?;
        at += columns;
        Ok(())
    })
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
