//! The op into a tensor that exists, on a GPU.

use super::places::{with, Use::Read, Use::Write};
use super::Launcher;
use crate::candle::into::Into;
use crate::candle::lowering::{format_of, MatrixDims};
use crate::kernel::Fusion;
use crate::launch::{self, Pointers};
use crate::problem::{power_of_two_in, Problem};
use ::candle::{bail, CudaDevice, Layout, Result};
use std::ffi::c_void;

/// The problem of checked operands where they lie, at addresses that are yet to be known.
pub(super) fn problem_of(of: &Into) -> Result<Problem> {
    let format = format_of(of.lhs.dtype())?;
    let [.., rows, columns] = *of.out.dims() else { bail!("gemm: a result has two dimensions and more") };
    let batch = &of.out.dims()[..of.out.rank() - 2];
    let whole = |layout: &Layout, what: &str| -> Result<Layout> {
        let (rows, columns) = layout.dims2_last();
        match layout.stride() {
            [.., row, column] if *row == 1 || *column == 1 || rows == 1 || columns == 1 => {
                layout.broadcast_as([batch, &[rows, columns]].concat())
            }
            _ => bail!("gemm: {what} has neither rows nor columns of numbers side by side; call `.contiguous()?` on it before a product into a tensor"),
        }
    };
    let (lhs, rhs) = (whole(of.lhs.layout(), "lhs")?, whole(of.rhs.layout(), "rhs")?);
    let c = match of.residual {
        Some(residual) => whole(residual.layout(), "the residual")?,
        None => of.out.layout().clone(),
    };
    if of.bias.is_some_and(|bias| !bias.is_contiguous()) {
        bail!("gemm: the bias is not contiguous; call `.contiguous()?` on it before a product into a tensor");
    }
    let Some(problem) = of.op.problem_of_layouts(format, [&lhs, &rhs, &c, of.out.layout()])? else {
        bail!("gemm: more than two batch dimensions remain of {batch:?} matrices of {rows} x {columns}; call `.contiguous()?` on the operands before a product into a tensor");
    };
    Ok(problem)
}

/// The problem at these addresses of A, B, C and D.
pub(super) fn placed(problem: Problem, [a, b, c, d]: [*mut c_void; 4]) -> Problem {
    problem.with(|problem| {
        let operands = [(&mut problem.a, a), (&mut problem.b, b), (&mut problem.d, d)];
        operands.into_iter().for_each(|(operand, at)| operand.pointer_align = power_of_two_in(at as u64));
        problem.epilogue.c.iter_mut().for_each(|operand| operand.pointer_align = power_of_two_in(c as u64));
    })
}

/// Computes a product of checked operands. `is_residual`: the result is the residual.
pub(in crate::candle) fn product(device: &CudaDevice, of: &Into, is_residual: bool) -> Result<()> {
    let (problem, launcher) = (problem_of(of)?, Launcher::of(device, of.op)?);
    let tensors = [Read(Some(of.lhs)), Read(Some(of.rhs)), Read(of.bias), Read(of.residual), Write(Some(of.out))];
    with(device, tensors, |[a, b, bias, c, d], _| {
        let problem = placed(problem, [a, b, c, d]);
        let pointers = Pointers { c, bias, ..Pointers::new(a, b, d) };
        // SAFETY: candle's layouts stay inside their storage, `with` holds the storage, and `check` has seen that D is apart from what is read, or the residual.
        unsafe { launcher.launch_with_epilogue(&problem, pointers, is_residual) }
    })
}

impl Launcher {
    /// Launches a product, and an elementwise kernel for what the chosen kernel leaves of its epilogue. `is_residual`: D is C.
    ///
    /// # Safety
    /// As for [`launch::launch`].
    pub(super) unsafe fn launch_with_epilogue(
        &self,
        problem: &Problem,
        pointers: Pointers,
        is_residual: bool,
    ) -> Result<()> {
        let (mut problem, mut fusion) = (*problem, self.dispatcher.fuse(problem, self.policy)?);
        if is_residual && fusion != Fusion::Full {
            // The product would overwrite the residual before an elementwise kernel adds it.
            (problem.epilogue.in_place, fusion) = (!problem.epilogue.gates_c, Fusion::Full);
        }
        let product = Problem { epilogue: problem.epilogue.keep(fusion).0, ..problem };
        // SAFETY: the caller's promises.
        unsafe {
            self.launch(&product, pointers)?;
            Ok(launch::finish(&problem, fusion, pointers, self.queue.stream)?)
        }
    }
}
