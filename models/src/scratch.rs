//! Memory between the kernels of a call.

use crate::config::Config;
use candle::{DType, Device, Result, Tensor};
use candle_tilegemm::nn::{moe, GatedMlpWorkspace};

/// Memory between the kernels of a call of so many rows. All layers share it.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// What goes from layer to layer, (rows, hidden).
    pub x: Tensor,
    /// The same between attention and the part after it: products of blocks do not write over what they add to results that they compute once more.
    pub between: Tensor,
    /// (rows, hidden)
    pub normed: Tensor,
    /// (rows, (heads + 2 kv_heads) head)
    pub qkv: Tensor,
    /// (rows, heads, head)
    pub q: Tensor,
    /// The result of attention, as q.
    pub seen: Tensor,
    pub gates: Gates,
}

/// Memory of the part of a layer after attention.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gates {
    pub dense: Option<GatedMlpWorkspace>,
    pub experts: Option<moe::Workspace>,
}

impl Scratch {
    pub fn new(config: &Config, rows: usize, gates: Gates, dtype: DType, device: &Device) -> Result<Self> {
        // SAFETY: of all of these a kernel writes every number before another one reads it.
        let tensor = |shape: &[usize]| unsafe { Tensor::empty(shape, dtype, device) };
        let &Config { hidden, heads, head_size, .. } = config;
        Ok(Self {
            x: tensor(&[rows, hidden])?,
            between: tensor(&[rows, hidden])?,
            normed: tensor(&[rows, hidden])?,
            qkv: tensor(&[rows, config.qkv_columns().iter().sum()])?,
            q: tensor(&[rows, heads, head_size])?,
            seen: tensor(&[rows, heads, head_size])?,
            gates,
        })
    }

    /// The memory of the first rows.
    pub fn first(&self, rows: usize) -> Result<Self> {
        self.part(0, rows)
    }

    /// The memory of one row.
    pub fn row(&self, at: usize) -> Result<Self> {
        self.part(at, 1)
    }

    fn part(&self, first: usize, rows: usize) -> Result<Self> {
        let Self { x, between, normed, qkv, q, seen, gates } = self;
        let part = |tensor: &Tensor| tensor.narrow(0, first, rows);
        Ok(Self {
            x: part(x)?,
            between: part(between)?,
            normed: part(normed)?,
            qkv: part(qkv)?,
            q: part(q)?,
            seen: part(seen)?,
            gates: gates.clone(),
        })
    }
}
