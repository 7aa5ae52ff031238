//! Gates after a product: a kernel of their own.

#[cfg(feature = "cuda")]
use super::cuda;
#[cfg(feature = "layers")]
use super::cuda::layers;
use super::numbers::{narrow, wide};
use super::tensors::{Block, Rows};
use crate::layer::GateFunction;
use crate::problem::Gate;
#[cfg(feature = "cuda")]
use ::candle::bail;
#[cfg(feature = "layers")]
use ::candle::DType;
use ::candle::{Device, Result};
use rayon::prelude::*;

const BLOCK: Block = Block("gate");

/// `function(gate) * up` of the rows of x, which hold both, into rows of half as many numbers.
pub(super) fn apply(x: Rows, gate: Gate, function: GateFunction, out: Rows) -> Result<()> {
    match x.tensor.device() {
        Device::Cpu => on_cpu(x, gate, function, out),
        #[cfg(feature = "layers")]
        Device::Cuda(device) if x.tensor.dtype() != DType::F32 && out.columns.is_multiple_of(8) => {
            layers::gate(device, x, gate == Gate::Interleaved, function, out)
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) if x.stride != x.columns || out.stride != out.columns => {
            bail!("gate: x or the result is not contiguous; call `.contiguous()?` on it")
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => cuda::gate(device, x, gate, function, out),
        other => BLOCK.elsewhere(other),
    }
}

/// The same on the CPU, where the result may have another type than x. It is rounded once.
pub(super) fn on_cpu(x: Rows, gate: Gate, function: GateFunction, out: Rows) -> Result<()> {
    let (values, n) = (wide(x)?, out.columns);
    let mut results = vec![0.0; out.rows * n];
    results.par_chunks_mut(n).zip(values.par_chunks(2 * n)).for_each(|(results, row)| {
        for (j, result) in results.iter_mut().enumerate() {
            let [gate, up] = gate.places(j, 2 * n);
            *result = function.apply(row[gate]) * row[up];
        }
    });
    narrow(out, &results)
}
