//! Gated products on a GPU: one kernel, or a product and a kernel for its gate.

use super::into::{placed, problem_of, product as into};
use super::places::{with, Use::Read, Use::Write};
use super::Launcher;
use crate::candle::gates;
use crate::candle::into::Gated;
use crate::candle::tensors::Block;
use crate::kernel::Fusion;
use crate::launch::Pointers;
use ::candle::{CudaDevice, Result, Tensor};

const BLOCK: Block = Block("gemm");

/// Computes a gated product of checked operands. `both` makes memory for the product without its gate.
pub(in crate::candle) fn product(device: &CudaDevice, of: &Gated, both: &dyn Fn() -> Result<Tensor>) -> Result<()> {
    let fused = match of.function.activation() {
        Some(activation) => {
            let whole = of.product(of.out);
            let problem = problem_of(&whole)?.with(|problem| {
                (problem.epilogue.gate, problem.epilogue.activation) = (Some(of.gate), activation);
            });
            let launcher = Launcher::of(device, whole.op)?;
            let tensors = [Read(Some(whole.lhs)), Read(Some(whole.rhs)), Read(whole.bias), Write(Some(of.out))];
            let mut fused = false;
            with(device, tensors, |[a, b, bias, d], _| -> Result<()> {
                // Which kernel takes the product depends on the addresses.
                let problem = placed(problem, [a, b, d, d]);
                fused = launcher.dispatcher.fuse(&problem, launcher.policy)? == Fusion::Full;
                if fused {
                    // SAFETY: candle's layouts stay inside their storage, `with` holds the storage, and D is apart from what is read.
                    unsafe { launcher.launch(&problem, Pointers { bias, ..Pointers::new(a, b, d) })? };
                }
                Ok(())
            })?;
            fused
        }
        None => false,
    };
    if fused {
        return Ok(());
    }
    let both = both()?;
    into(device, &of.product(&both), false)?;
    let n = both.dims().last().copied().unwrap_or(0);
    let (x, out) = (BLOCK.rows("the product", &both, n)?, BLOCK.rows("the result", of.out, n / 2)?);
    gates::apply(x, of.gate, of.function, out)
}
