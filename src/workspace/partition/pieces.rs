//! A product in pieces that fit into a workspace.

use super::Footprint;
use crate::problem::Problem;
#[cfg(any(feature = "cuda", test))]
use crate::problem::{BiasAxis, Operand};

/// The most matrices, rows and columns of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Partition {
    pub matrices: usize,
    pub rows: usize,
    pub columns: usize,
}

impl Partition {
    /// A partition into pieces that each fit into `bytes`: several matrices of the batch, else one matrix, else rows
    /// and columns of one matrix. `None` when the smallest piece does not fit.
    pub fn new(footprint: Option<Footprint>, problem: &Problem, bytes: u64) -> Option<Self> {
        let Problem { m, n, .. } = *problem;
        let whole = Self { matrices: problem.batch_count(), rows: m, columns: n };
        let Some(footprint) = footprint else { return Some(whole) };
        let matrix = footprint.matrices(m, n, 1);
        if matrix <= bytes {
            let matrices = usize::try_from(bytes / matrix.max(1)).unwrap_or(usize::MAX).max(1).min(whole.matrices);
            return Some(Self { matrices, ..whole });
        }
        let [step_m, step_n] = footprint.step(problem);
        let [least_m, least_n] = [m.min(step_m), n.min(step_n)];
        if footprint.matrices(least_m, least_n, 1) > bytes {
            return None;
        }
        if footprint.element > 0 {
            return Some(Self::with_elements(&footprint, problem, bytes));
        }
        // Each of A and B gets half, and the rest that the other operand leaves.
        let for_a = bytes - footprint.columns(n).min(bytes / 2);
        let for_a = for_a.clamp(footprint.rows(least_m), bytes - footprint.columns(least_n));
        let rows = even(m, for_a.checked_div(footprint.row), footprint.lines[0], step_m);
        let for_b = bytes - footprint.rows(rows);
        let columns = even(n, for_b.checked_div(footprint.column), footprint.lines[1], step_n);
        Some(Self { matrices: 1, rows, columns })
    }

    /// The same with bytes for elements of D: of the partitions with M in 1, 2, 4, ... parts the one that keeps the fewest bytes of A and B.
    fn with_elements(footprint: &Footprint, problem: &Problem, bytes: u64) -> Self {
        let Problem { m, n, .. } = *problem;
        let [step_m, step_n] = footprint.step(problem);
        let columns_beside = |rows: usize| {
            let left = bytes.checked_sub(footprint.rows(rows))?;
            let column =
                footprint.column.saturating_add(footprint.elements(rows, 1) / footprint.lines[1].max(1) as u64);
            let columns = even(n, left.checked_div(column), footprint.lines[1], step_n);
            (footprint.matrices(rows, columns, 1) <= bytes).then_some(columns)
        };
        let parts = (0..usize::BITS).map(|power| 1 << power).take_while(|parts| *parts < 2 * m.div_ceil(step_m));
        let parts = parts.map(|parts: usize| m.min(m.div_ceil(parts).next_multiple_of(step_m)));
        let partitions = parts.filter_map(|rows| Some(Self { matrices: 1, rows, columns: columns_beside(rows)? }));
        let kept = |partition: &Self| {
            let of_a = footprint.rows(m).saturating_mul(n.div_ceil(partition.columns) as u64);
            of_a.saturating_add(footprint.columns(n).saturating_mul(m.div_ceil(partition.rows) as u64))
        };
        let smallest = Self { matrices: 1, rows: m.min(step_m), columns: n.min(step_n) };
        partitions.min_by_key(kept).unwrap_or(smallest)
    }

    /// The number of pieces of `problem`, and a largest piece.
    pub fn count(&self, problem: &Problem) -> (usize, Problem) {
        let [outer, inner] = problem.batch;
        let [outers, matrices] = self.batch(problem);
        let along = [inner.div_ceil(matrices), problem.m.div_ceil(self.rows), problem.n.div_ceil(self.columns)];
        let count = along.into_iter().fold(outer.div_ceil(outers), usize::saturating_mul);
        let (m, n) = (self.rows.min(problem.m), self.columns.min(problem.n));
        (count, Problem { m, n, batch: [outers, matrices], ..*problem })
    }

    /// A piece has one outer matrix, or all outer matrices.
    fn batch(&self, problem: &Problem) -> [usize; 2] {
        let [outer, inner] = problem.batch;
        match self.matrices >= problem.batch_count() {
            true => [outer, inner],
            false => [1, self.matrices.min(inner)],
        }
    }

    /// The pieces of `problem`, in a valid order of execution.
    #[cfg(any(feature = "cuda", test))]
    pub fn pieces(self, problem: &Problem) -> impl Iterator<Item = Piece> + '_ {
        let [outer, inner] = problem.batch;
        let [outers, matrices] = self.batch(problem);
        let starts = |extent: usize, step: usize| (0..extent).step_by(step.max(1));
        starts(outer, outers).flat_map(move |o| {
            starts(inner, matrices).flat_map(move |i| {
                starts(problem.m, self.rows).flat_map(move |row| {
                    starts(problem.n, self.columns).map(move |column| {
                        let batch = [outers, matrices.min(inner - i)];
                        let (m, n) = (self.rows.min(problem.m - row), self.columns.min(problem.n - column));
                        Piece { problem: Problem { m, n, batch, ..*problem }, first: [o, i, row, column] }
                    })
                })
            })
        })
    }
}

/// The size of parts of `extent`: at most `most`, a multiple of `lines`, and as even as multiples of `step` allow.
fn even(extent: usize, most: Option<u64>, lines: usize, step: usize) -> usize {
    let most = most.map_or(extent, |most| usize::try_from(most / lines as u64 * lines as u64).unwrap_or(usize::MAX));
    if extent <= most {
        return extent;
    }
    let parts = extent.div_ceil((most / step).max(1) * step);
    extent.div_ceil(parts).next_multiple_of(step)
}

#[cfg(any(feature = "cuda", test))]
/// A part of a product, as a product of its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Piece {
    pub problem: Problem,
    /// The piece's first outer and inner matrix, row and column.
    pub first: [usize; 4],
}

#[cfg(any(feature = "cuda", test))]
/// Offsets of a [`Piece`] in its operands, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Offsets {
    pub a: i64,
    pub b: i64,
    pub c: i64,
    pub bias: i64,
    pub d: i64,
    /// Of the factors and zeros of A, B and D.
    pub scales: [i64; 3],
}

#[cfg(any(feature = "cuda", test))]
impl Piece {
    pub fn offsets(&self) -> Offsets {
        let [outer, inner, row, column] = self.first.map(|index| index as i64);
        let at = |operand: &Operand, row: i64, column: i64| {
            let [outer_stride, inner_stride] = operand.batch_stride;
            outer * outer_stride + inner * inner_stride + row * operand.row_stride + column * operand.col_stride
        };
        let Problem { a, b, d, epilogue, .. } = &self.problem;
        let [first_outer, first_inner, first_row, first_column] = self.first;
        let factors = |operand: &Operand, place: [usize; 2]| {
            operand.scale.map_or(0, |scale| scale.index([first_outer, first_inner], place))
        };
        Offsets {
            a: at(a, row, 0),
            b: at(b, 0, column),
            c: epilogue.c.map_or(0, |c| at(&c, row, column)),
            bias: match epilogue.bias {
                Some(BiasAxis::M) => row,
                Some(BiasAxis::N) => column,
                None => 0,
            },
            d: at(d, row, column),
            scales: [factors(a, [first_row, 0]), factors(b, [0, first_column]), factors(d, [first_row, first_column])],
        }
    }
}
