//! Products of all rows with the same weights, and what they share with those of experts.

use super::weights::Weights;
use crate::dispatch::Counter;
use crate::error::Result;
use crate::interpose::count::MISTRALRS;
use crate::interpose::kernels::{launch, KernelCall};
use crate::kernel::KernelDesc;
use crate::launch::{copy, Pointers, Scratch};
use crate::problem::{power_of_two_in, BiasAxis, Format, Layout, Operand, Problem};
use std::ffi::c_void;
use std::ptr::null;

/// What calls of mistralrs are, for messages.
pub(super) const WHAT: &str = "a product of mistralrs";

/// The arguments of one call.
pub(super) struct Product {
    /// The function, for messages.
    pub name: &'static str,
    pub x: *const c_void,
    pub weights: Weights,
    /// Null for none.
    pub bias: *const c_void,
    pub y: *mut c_void,
    pub rows: i32,
    /// The format of x, bias and y.
    pub format: Format,
    pub stream: *mut c_void,
}

impl Product {
    pub fn problem(&self) -> std::result::Result<Problem, String> {
        let none = || format!("{} of {} rows by {} is no product", self.name, self.rows, self.weights);
        let (m, [n, k]) = usize::try_from(self.rows).ok().zip(self.weights.sizes()).ok_or_else(none)?;
        let problem = Problem::dense(m, n, k, 1, Layout::NT, self.format);
        Ok(problem.with(|p| describe(p, &self.weights, [self.x, self.bias, self.y.cast_const()])))
    }
}

/// Gives a dense problem the weights, the bias and the alignment of these x, bias and y.
pub(super) fn describe(problem: &mut Problem, weights: &Weights, [x, bias, y]: [*const c_void; 3]) {
    problem.b = weights.operand(problem.b, [problem.n, problem.k]);
    problem.epilogue.bias = (!bias.is_null()).then_some(BiasAxis::N);
    problem.d.pointer_align = power_of_two_in(y as u64);
    if !weights.reorders() {
        problem.a.pointer_align = power_of_two_in(x as u64);
    }
}

/// Number 4 a + b of 32 codes of mistralrs, for a below 8 and b below 4, lies where our kernels have number 8 b + a (docs/formats.md): they
/// multiply it by number 8 b + a of x. So the numbers of x are put there: 8 x 4 of them are transposed.
const ORDER: [usize; 2] = [8, 4];

/// The copy of so many numbers of x to where our kernels meet the weights, where that is another order. A column b of all pieces of 8 x 4 is a matrix, with a
/// row for each piece.
pub(super) fn order(weights: &Weights, of: Format, numbers: usize) -> Option<Problem> {
    let [rows, columns] = ORDER;
    let part = |col_stride: usize, between: usize| {
        let dense = Operand::row_major(of, rows, [0, between as i64]);
        dense.with(|operand| (operand.row_stride, operand.col_stride) = ((rows * columns) as i64, col_stride as i64))
    };
    let (from, to) = (part(columns, 1), part(1, rows));
    let copy = || Problem::new([numbers / (rows * columns), rows, rows], [1, columns], from, from, to);
    (weights.reorders() && numbers > 0).then(copy)
}

/// The numbers of x in that order.
///
/// # Safety
/// x has `rows` x `k` numbers on the device of the stream, and lives until the stream has passed what is launched here.
pub(super) unsafe fn reordered(
    weights: &Weights,
    x: *const c_void,
    [rows, k]: [usize; 2],
    format: Format,
    stream: *mut c_void,
) -> Result<Option<Scratch>> {
    let Some(order) = order(weights, format, rows * k) else { return Ok(None) };
    // SAFETY: the caller's stream.
    let scratch = unsafe { Scratch::new(stream, format.bytes(rows * k))? };
    // SAFETY: the scratch memory has room for a copy of x, whose rows are pieces of 32 numbers.
    unsafe { copy(&order, x, scratch.address(), stream)? };
    Ok(Some(scratch))
}

impl KernelCall for Product {
    const WHAT: &'static str = WHAT;
    const RAN: &'static Counter = &MISTRALRS;

    fn product(&self) -> std::result::Result<(Problem, Pointers), String> {
        let pointers = Pointers::new(self.x, self.weights.codes, self.y).with_bias(self.bias);
        Ok((self.problem()?, pointers.with_scale_of_b(self.weights.factors, null())))
    }

    fn takes(kernel: &KernelDesc) -> bool {
        kernel.types.has_narrow_b() && !kernel.needs_groups()
    }

    unsafe fn launch(&self, problem: &Problem, pointers: Pointers) -> Result<()> {
        let rows = if problem.is_empty() { 0 } else { problem.m };
        // SAFETY: the caller's promises. The memory is free when the stream has passed what is launched here.
        let x = unsafe { reordered(&self.weights, self.x, [rows, problem.k], self.format, self.stream)? };
        let a = x.as_ref().map_or(pointers.a, |x| x.address().cast_const());
        // SAFETY: as above.
        unsafe { launch(problem, Self::takes, Pointers { a, ..pointers }, self.stream) }
    }

    fn output(&self) -> (*mut c_void, usize) {
        (self.y, bytes(&[self.rows, self.weights.sizes[0]]))
    }

    fn stream(&self) -> *mut c_void {
        self.stream
    }
}

/// Bytes of so many numbers of 16 bits; 0 where there is no such number.
pub(super) fn bytes(counts: &[i32]) -> usize {
    counts.iter().map(|&count| usize::try_from(count).unwrap_or(0)).fold(2, usize::saturating_mul)
}
