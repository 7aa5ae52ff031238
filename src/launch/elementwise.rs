//! Elementwise kernels: the rest of an epilogue, activations and their slopes.

use super::arguments::{arguments, format};
use super::device::check;
use super::modules::{self, Beside};
use super::pointers::Pointers;
use crate::error::Result;
use crate::ffi;
use crate::kernel::Fusion;
use crate::problem::Problem;
#[cfg(feature = "candle")]
use crate::problem::{Activation, Epilogue, Format, Gate, Layout, Operand};
use std::ffi::c_void;

/// Applies to D the part of `problem`'s epilogue that a kernel with `fusion` leaves out ([`Epilogue::rest`]), by one
/// kernel or none. D holds the result of a launch of `problem` with [`Epilogue::keep`]. A D in 16 bits has been rounded in between:
/// [`Dispatcher::fuse`](crate::dispatch::Dispatcher::fuse) leaves nothing out of such an epilogue.
///
/// [`Epilogue::keep`]: crate::problem::Epilogue::keep
/// [`Epilogue::rest`]: crate::problem::Epilogue::rest
///
/// # Errors
/// [`Error::Cuda`](crate::Error::Cuda) when CUDA refuses the launch, and the errors of a library that is not this
/// crate's own.
///
/// # Safety
/// As for [`launch`](super::launch) of `problem`; A and B are not read.
pub unsafe fn finish(problem: &Problem, fusion: Fusion, pointers: Pointers, stream: *mut c_void) -> Result<()> {
    let Some(epilogue) = problem.epilogue.rest(fusion) else { return Ok(()) };
    modules::beside(Beside::Elementwise)?;
    let rest = Problem { a: problem.d, epilogue, ..*problem };
    let pointers = Pointers { a: pointers.d, ..pointers };
    let args = ffi::tg_gemm_args { stream, ..arguments(&rest, pointers) };
    // SAFETY: the caller vouches for the memory behind the arguments.
    check("tg_epilogue", unsafe { ffi::tg_epilogue(format(problem.d.format), &args) })
}

/// `activation(gate) * up` of the columns of a dense matrix of `rows` x `columns`: D, dense, with half as many columns. `twice`: the activation of
/// the gate is a factor twice, with a rounding in between.
///
/// # Safety
/// As for [`slope`].
#[cfg(feature = "candle")]
pub(crate) unsafe fn gate(
    of: Format,
    [rows, columns]: [usize; 2],
    gate: Gate,
    (activation, twice): (Activation, bool),
    x: *const c_void,
    d: *mut c_void,
    stream: *mut c_void,
) -> Result<()> {
    modules::beside(Beside::Elementwise)?;
    let half = columns / 2;
    let [step, up] = if gate == Gate::Halves { [1, half] } else { [2, 1] };
    let part = Operand { row_stride: columns as i64, col_stride: step as i64, ..Operand::row_major(of, half, [0, 0]) };
    let d_of = Operand::row_major(of, half, [0, 0]);
    let ups = x.cast::<u8>().wrapping_add(of.bytes(up)).cast();
    for (c_of, c) in [(part, ups), (d_of, d.cast_const())].into_iter().take(1 + usize::from(twice)) {
        let mut problem = Problem::new([rows, half, half], [1, 1], part, d_of, d_of);
        problem.epilogue = Epilogue::new(1.0, 1.0);
        (problem.epilogue.activation, problem.epilogue.c, problem.epilogue.gates_c) = (activation, Some(c_of), true);
        let pointers = Pointers { c, ..Pointers::new(x, std::ptr::null(), d) };
        let args = ffi::tg_gemm_args { stream, ..arguments(&problem, pointers) };
        // SAFETY: the caller vouches for the memory behind the arguments.
        check("tg_epilogue", unsafe { ffi::tg_epilogue(format(of), &args) })?;
    }
    Ok(())
}

/// Writes `activation` of each of the `count` numbers at `x`, which are in the first format, to `d`, in the second: the same, or 16 bits
/// beside f32.
///
/// # Safety
/// As for [`slope`].
#[cfg(feature = "candle")]
pub(crate) unsafe fn activate(
    activation: Activation,
    [from, to]: [Format; 2],
    count: usize,
    x: *const c_void,
    d: *mut c_void,
    stream: *mut c_void,
) -> Result<()> {
    let args = of_numbers(activation, [from, to], count, x, d, stream)?;
    // SAFETY: the caller vouches for the memory behind the arguments.
    check("tg_epilogue", unsafe { ffi::tg_epilogue(format(to), &args) })
}

/// Writes the derivative of `activation` at each of the `count` numbers at `x` to `d`.
///
/// # Safety
/// `x` and `d` are `count` numbers each, in memory of the current device. `stream` is a stream of that device. The
/// memory stays allocated until `stream` has passed the launch.
#[cfg(feature = "candle")]
pub(crate) unsafe fn slope(
    activation: Activation,
    of: Format,
    count: usize,
    x: *const c_void,
    d: *mut c_void,
    stream: *mut c_void,
) -> Result<()> {
    let args = of_numbers(activation, [of, of], count, x, d, stream)?;
    // SAFETY: the caller vouches for the memory behind the arguments.
    check("tg_slope", unsafe { ffi::tg_slope(format(of), &args) })
}

/// The arguments of a kernel that reads `count` numbers of the first format at `x`, and writes as many of the second to `d`.
#[cfg(feature = "candle")]
fn of_numbers(
    activation: Activation,
    [from, to]: [Format; 2],
    count: usize,
    x: *const c_void,
    d: *mut c_void,
    stream: *mut c_void,
) -> Result<ffi::tg_gemm_args> {
    modules::beside(Beside::Elementwise)?;
    let problem = Problem::dense(1, count, count, 1, Layout::NN, to).with(|problem| {
        (problem.a.format, problem.epilogue.activation) = (from, activation);
    });
    Ok(ffi::tg_gemm_args { stream, ..arguments(&problem, Pointers::new(x, std::ptr::null(), d)) })
}

/// D = A of a problem whose D has A's format and extents (`tg_copy` of csrc/tilegemm.h).
///
/// # Safety
/// As for [`launch`](super::launch) of `problem`; B is not read.
#[cfg(feature = "interpose-mistralrs")]
pub(crate) unsafe fn copy(problem: &Problem, x: *const c_void, d: *mut c_void, stream: *mut c_void) -> Result<()> {
    modules::beside(Beside::Elementwise)?;
    let args = ffi::tg_gemm_args { stream, ..arguments(problem, Pointers::new(x, x, d)) };
    // SAFETY: the caller vouches for the memory behind the arguments.
    check("tg_copy", unsafe { ffi::tg_copy(format(problem.d.format), &args) })
}
