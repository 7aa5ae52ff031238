//! Launches on copies of operands ([`crate::packing`]).

use super::arguments::{arguments, format};
use super::device::check;
use super::modules::{self, Beside};
use super::pointers::{Pointers, Queue};
use crate::error::Result;
use crate::ffi;
use crate::kernel::Fusion;
use crate::packing::{Copies, Packing};
use crate::problem::{Operand, Problem};
use std::ffi::c_void;

/// Copies operands of a piece into the memory at `workspace`, calls `multiply` with the copies, and copies the result to D, with the rest of the epilogue.
///
/// # Safety
/// As for [`launch`](super::launch) of `piece`. `workspace` is memory of the current device for the copies of the piece
/// ([`Packing::copies`]), and no other stream uses the memory meanwhile.
pub(super) unsafe fn launch(
    packing: Packing,
    piece: &Problem,
    pointers: Pointers,
    workspace: usize,
    sm_count: u32,
    queue: Queue,
    multiply: impl FnOnce(&Problem, Pointers) -> Result<()>,
) -> Result<()> {
    modules::beside(Beside::Elementwise)?;
    let (copied, Copies { a, b, .. }) = (packing.copied(piece), packing.copies(piece));
    let at = |offset: u64| (workspace + offset as usize) as *mut c_void;
    let to = Pointers {
        a: if packing.a { at(0) } else { pointers.a },
        b: if packing.b { at(a) } else { pointers.b },
        d: if packing.d { at(a + b) } else { pointers.d },
        ..pointers
    };
    // SAFETY: the caller vouches for the operands and for the memory of the copies.
    let copy = |from: Matrix, to: Matrix| unsafe { copy(from, to, piece.batch, sm_count, queue.stream) };
    let Problem { m, n, k, .. } = *piece;
    let factors = |operand: usize| [pointers.scales[operand], pointers.zeros[operand]];
    if packing.a {
        let of = |operand, columns, pointer| Matrix { operand, rows: m, columns, pointer, factors: factors(0) };
        copy(of(piece.a, k, pointers.a), of(copied.a, copied.k, to.a))?;
    }
    if packing.b {
        let of = |operand, rows, pointer| Matrix { operand, rows, columns: n, pointer, factors: factors(1) };
        copy(of(piece.b, k, pointers.b), of(copied.b, copied.k, to.b))?;
    }
    multiply(&packing.inner(piece), to)?;
    if !packing.d {
        return Ok(());
    }
    let Some(epilogue) = piece.epilogue.rest(Fusion::None) else {
        let of = |operand, pointer| Matrix { operand, rows: m, columns: n, pointer, factors: factors(2) };
        return copy(of(copied.d, to.d), of(piece.d, pointers.d));
    };
    let rest = Problem { a: copied.d, epilogue, ..*piece };
    let args = ffi::tg_gemm_args { stream: queue.stream, ..arguments(&rest, Pointers { a: to.d, ..pointers }) };
    // SAFETY: as above.
    check("tg_epilogue", unsafe { ffi::tg_epilogue(format(piece.d.format), &args) })
}

#[derive(Clone, Copy)]
struct Matrix {
    operand: Operand,
    rows: usize,
    columns: usize,
    pointer: *const c_void,
    /// Factors and zeros.
    factors: [*const c_void; 2],
}

impl Matrix {
    fn transposed(self) -> Self {
        Self { operand: self.operand.transposed(), rows: self.columns, columns: self.rows, ..self }
    }
}

/// Copies one matrix, or each of a batch. The elements of the copy beyond the columns of `from` are zero.
unsafe fn copy(from: Matrix, to: Matrix, batch: [usize; 2], sm_count: u32, stream: *mut c_void) -> Result<()> {
    // The lines of the copy are its rows.
    let is_rows = to.operand.col_stride == 1;
    let (from, to) = if is_rows { (from, to) } else { (from.transposed(), to.transposed()) };
    // Where matrices repeat, there is one.
    let distinct = [0, 1].map(|dim| if to.operand.batch_stride[dim] == 0 { 1 } else { batch[dim] });
    let problem = Problem::new([to.rows, to.columns, from.columns], distinct, from.operand, from.operand, to.operand);
    let mut pointers = Pointers::new(from.pointer, from.pointer, to.pointer.cast_mut());
    (pointers.scales[0], pointers.zeros[0]) = (from.factors[0], from.factors[1]);
    let args = ffi::tg_gemm_args { stream, sm_count: sm_count as i32, ..arguments(&problem, pointers) };
    // SAFETY: the caller vouches for the pointers.
    check("tg_copy", unsafe { ffi::tg_copy(format(from.operand.format), &args) })
}
