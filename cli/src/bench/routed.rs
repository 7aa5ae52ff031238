//! The lists of a routing on the device.

use super::address::address;
use crate::lists::Routing;
use crate::Result;
use candle::{DType, Device, Tensor};
use candle_tilegemm::launch::GroupPointers;
use std::ffi::c_void;
use std::ptr::null;

/// The lists of a routing on the device. All copies of the operands share the lists: in a model the router has just written them.
pub struct Lists {
    pub routing: Routing,
    pub pairs: Tensor,
    experts: Tensor,
    factors: Option<Tensor>,
}

impl Lists {
    pub fn new(routing: &Routing, device: &Device) -> Result<Self> {
        let list = |values: &[u32]| Tensor::from_slice(values, values.len(), device);
        let factors = routing.factors.as_ref().map(|values| Tensor::from_slice(values, values.len(), device));
        Ok(Self {
            routing: routing.clone(),
            pairs: list(&routing.pairs)?,
            experts: list(&routing.experts)?,
            factors: factors.transpose()?,
        })
    }

    pub fn pointers(&self) -> Result<GroupPointers> {
        let factors = match &self.factors {
            Some(factors) => address(factors)? as *const c_void,
            None => null(),
        };
        Ok(GroupPointers::new(address(&self.experts)? as _).with_lists(address(&self.pairs)? as _, factors))
    }

    /// The row of A of each row of the product.
    pub fn rows_of_a(&self) -> Result<Tensor> {
        let rows = self.routing.rows_of_a();
        Ok(Tensor::from_slice(&rows, rows.len(), self.pairs.device())?)
    }

    /// The rows of a product in the order of their pairs, times the factors, in f64, from a flat tensor of rows in the order of the list.
    pub fn in_order_of_pairs(&self, d: &Tensor) -> Result<Tensor> {
        let rows = self.routing.rows_of_pairs();
        let places = Tensor::from_slice(&rows, rows.len(), self.pairs.device())?;
        let d = d.to_dtype(DType::F64)?.reshape((rows.len(), d.elem_count() / rows.len()))?;
        let d = d.index_select(&places, 0)?;
        let d = match &self.factors {
            Some(factors) => d.broadcast_mul(&factors.to_dtype(DType::F64)?.unsqueeze(1)?)?,
            None => d,
        };
        Ok(d.flatten_all()?)
    }
}
