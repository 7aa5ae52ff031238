//! Memory between the products of experts.

use crate::candle::tensors::unwritten;
use ::candle::{DType, Device, Result, Tensor};

/// Memory between the products of some pairs.
#[derive(Debug, Clone)]
pub(super) struct Between {
    /// In f32, (pairs, 2 inner), for gates that a kernel of its own applies.
    pub both: Option<Tensor>,
    /// (pairs, inner)
    pub inner: Tensor,
    /// (pairs, hidden)
    pub results: Tensor,
}

impl Between {
    pub fn new(pairs: usize, [hidden, inner]: [usize; 2], dtype: DType, device: &Device) -> Result<Self> {
        let make = |columns: usize| unwritten(&[pairs, columns], dtype, device);
        Ok(Self {
            both: if dtype == DType::F32 { Some(make(2 * inner)?) } else { None },
            inner: make(inner)?,
            results: make(hidden)?,
        })
    }

    pub fn of_first(&self, pairs: usize) -> Result<Self> {
        let first = |tensor: &Tensor| tensor.narrow(0, 0, pairs);
        Ok(Self {
            both: self.both.as_ref().map(first).transpose()?,
            inner: first(&self.inner)?,
            results: first(&self.results)?,
        })
    }
}
