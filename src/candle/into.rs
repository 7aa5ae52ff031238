//! The op into a tensor that exists.

use super::lowering::GemmOp;
use super::tensors::Block;
use crate::layer::GateFunction;
use crate::problem::Gate;
use ::candle::{bail, Result, Tensor};

const BLOCK: Block = Block("gemm");

/// A product of operands that have been checked, and where its result goes.
pub(super) struct Into<'a> {
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    pub op: &'a GemmOp,
    pub lhs: &'a Tensor,
    pub rhs: &'a Tensor,
    pub bias: Option<&'a Tensor>,
    pub residual: Option<&'a Tensor>,
    pub out: &'a Tensor,
}

impl Into<'_> {
    /// Refuses results that the product would read, or write twice, and gradients. Returns whether the result is the residual.
    pub fn check(&self, dtype: ::candle::DType, shape: &[usize]) -> Result<bool> {
        let Self { lhs, rhs, bias, residual, out, .. } = *self;
        if out.dims() != shape || out.dtype() != dtype || !out.device().same_device(lhs.device()) {
            bail!(
                "gemm: the tensor for the result is {:?} {:?} on {:?}; expected {dtype:?} {shape:?} on {:?}",
                out.dtype(),
                out.dims(),
                out.device().location(),
                lhs.device().location()
            );
        }
        let inputs = [("lhs", Some(lhs)), ("rhs", Some(rhs)), ("the bias", bias), ("the residual", residual)];
        for (what, tensor) in inputs.into_iter().chain([("the result", Some(out))]) {
            tensor.map_or(Ok(()), |tensor| BLOCK.untracked(what, tensor))?;
        }
        let mut steps = out.dims().iter().zip(out.stride()).filter(|(size, _)| **size > 1);
        let [.., columns] = *out.dims() else { bail!("gemm: a result has two dimensions and more") };
        let [.., row, column] = *out.stride() else { bail!("gemm: a result has two dimensions and more") };
        let is_in_rows = columns <= 1 || (column == 1 && (row >= columns || out.dims()[out.rank() - 2] <= 1));
        if out.elem_count() > 0 && (!is_in_rows || steps.any(|(_, stride)| *stride == 0)) {
            bail!("gemm: the tensor for the result, {:?} with strides {:?}, does not lie in rows; make one that is contiguous, or columns of such a one", out.dims(), out.stride());
        }
        for (what, tensor) in &inputs[..3] {
            tensor.map_or(Ok(()), |tensor| BLOCK.apart(what, tensor, out))?;
        }
        residual.map_or(Ok(false), |residual| BLOCK.apart_or_same("the residual", residual, out))
    }
}

/// A product with a gate, of operands that have been checked.
pub(super) struct Gated<'a> {
    pub op: &'a GemmOp,
    pub lhs: &'a Tensor,
    pub rhs: &'a Tensor,
    pub bias: Option<&'a Tensor>,
    pub gate: Gate,
    pub function: GateFunction,
    /// The result.
    pub out: &'a Tensor,
}

impl Gated<'_> {
    /// The product into this tensor: the result, or memory for the product without its gate.
    pub fn product<'b>(&'b self, out: &'b Tensor) -> Into<'b> {
        Into { op: self.op, lhs: self.lhs, rhs: self.rhs, bias: self.bias, residual: None, out }
    }
}
