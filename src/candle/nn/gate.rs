//! Gates after a product that no kernel gates.

use crate::candle::gates;
use crate::candle::tensors::{unwritten, Block, FLOATS};
use crate::layer::GateFunction;
use crate::problem::Gate;
use ::candle::{bail, Result, Tensor};

const BLOCK: Block = Block("gate");

/// `function(gate) * up` of rows that hold both: the gates first, or gates and numbers in turns.
///
/// `x` is (.., 2 n) in f16, bf16 or f32, and the result is (.., n) in its type. On a GPU the kernel of the feature `layers` takes 16 bits and n that are multiples
/// of 8; a slower one takes contiguous tensors for the rest. No gradient passes.
///
/// ```
/// use candle::{Device, Tensor};
/// use candle_tilegemm::nn::{gate, GateFunction};
/// use candle_tilegemm::problem::Gate;
///
/// let x = Tensor::new(&[[3f32, -2., 10., 20.]], &Device::Cpu)?;
/// assert_eq!(gate(&x, Gate::Halves, GateFunction::Relu2)?.to_vec2::<f32>()?, [[90., 0.]]);
/// assert_eq!(gate(&x, Gate::Interleaved, GateFunction::Relu2)?.to_vec2::<f32>()?, [[-18., 2000.]]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Rows of an odd number of numbers, types and devices that do not fit, and tensors that track gradients.
pub fn gate(x: &Tensor, gate: Gate, function: GateFunction) -> Result<Tensor> {
    let mut shape = x.dims().to_vec();
    if let Some(columns) = shape.last_mut() {
        *columns /= 2;
    }
    let out = unwritten(&shape, x.dtype(), x.device())?;
    gate_into(x, gate, function, &out)?;
    Ok(out)
}

/// [`gate`] into a tensor that exists. Allocates nothing, and is legal in a capture.
///
/// # Errors
/// As for [`gate`].
pub fn gate_into(x: &Tensor, gate: Gate, function: GateFunction, out: &Tensor) -> Result<()> {
    let columns = x.dims().last().copied().unwrap_or(0);
    if columns == 0 || columns % 2 != 0 {
        bail!("gate: x has the shape {:?}; expected rows of gates and as many numbers", x.dims());
    }
    BLOCK.among("x", x, &FLOATS)?;
    BLOCK.same("the result", out, x)?;
    let (x, out) = (BLOCK.rows("x", x, columns)?, BLOCK.rows("the result", out, columns / 2)?);
    if out.rows != x.rows {
        bail!("gate: the result has {} rows; expected {}, as many as x", out.rows, x.rows);
    }
    gates::apply(x, gate, function, out)
}
