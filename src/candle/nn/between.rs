//! Memory between the products of experts.

use crate::candle::tensors::unwritten;
use ::candle::{DType, Device, Result, Tensor};

/// Memory between the products of some pairs.
#[derive(Debug, Clone)]
pub(super) struct Between {
    /// (pairs, 2 inner), for gates that a kernel of its own applies: in f32, or in 16 bits where that kernel rounds to 8.
    pub both: Option<Tensor>,
    /// (pairs, inner)
    pub inner: Tensor,
    /// (pairs, hidden)
    pub results: Tensor,
}

/// The types of such memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct TypesBetween {
    pub both: Option<DType>,
    pub inner: DType,
    pub results: DType,
}

impl TypesBetween {
    /// Everything in one type; in f32 a kernel of its own gates.
    pub fn all(dtype: DType) -> Self {
        Self { both: (dtype == DType::F32).then_some(dtype), inner: dtype, results: dtype }
    }
}

impl Between {
    pub fn new(pairs: usize, [hidden, inner]: [usize; 2], types: TypesBetween, device: &Device) -> Result<Self> {
        let make = |columns: usize, dtype: DType| unwritten(&[pairs, columns], dtype, device);
        Ok(Self {
            both: types.both.map(|dtype| make(2 * inner, dtype)).transpose()?,
            inner: make(inner, types.inner)?,
            results: make(hidden, types.results)?,
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
