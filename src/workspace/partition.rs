//! A product's need of workspace, and the partition of the product into pieces that fit.

use crate::problem::Problem;

mod pieces;

/// Bytes of the workspace that a kernel needs for a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct Need {
    /// The need of the smallest piece; 0: the kernel needs no workspace.
    pub least: u64,
    /// The need of the whole product at once.
    pub best: u64,
}

/// The workspace that a kernel uses for each row of A and each column of B, and the smallest number of rows and columns
/// in a piece.
///
/// The footprints of the families are the contract of `tg_gemm_args::workspace`, in numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Footprint {
    /// Bytes for a row of A and for a column of B.
    pub row: u64,
    pub column: u64,
    /// Bytes for an element of D.
    pub element: u64,
    /// Rows and columns are rounded up to multiples of these numbers.
    pub lines: [usize; 2],
    /// Rows and columns of the smallest piece, where no factors are for more.
    pub step: [usize; 2],
}

/// In the workspace, K is rounded up to a multiple of this number.
const DEPTH: usize = 64;

impl Footprint {
    /// A footprint of `bytes` for each element of a row of A and of a column of B, in multiples of `lines` rows and
    /// columns; `None` when both numbers of bytes are 0. `piece` is the tile, or the tile of a cluster.
    pub fn new(problem: &Problem, bytes: [u64; 2], lines: [usize; 2], piece: [usize; 2]) -> Option<Self> {
        let depth = problem.k.div_ceil(DEPTH).saturating_mul(DEPTH) as u64;
        let [row, column] = bytes.map(|bytes| bytes.saturating_mul(depth));
        let step = [0, 1].map(|i| piece[i].next_multiple_of(lines[i]));
        (row > 0 || column > 0).then_some(Self { row, column, element: 0, lines, step })
    }

    /// Rows and columns of the smallest piece: pieces begin with factors of their own.
    fn step(&self, problem: &Problem) -> [usize; 2] {
        let [of_a, of_b, of_d] = [problem.a.scale, problem.b.scale, problem.d.scale];
        let rows = of_a.map_or(self.step[0], |scale| scale.whole(self.step)[0]);
        let columns = of_b.map_or(self.step[1], |scale| scale.whole(self.step)[1]);
        of_d.map_or([rows, columns], |scale| scale.whole([rows, columns]))
    }

    fn rows(&self, rows: usize) -> u64 {
        self.row.saturating_mul(rows.next_multiple_of(self.lines[0]) as u64)
    }

    fn columns(&self, columns: usize) -> u64 {
        self.column.saturating_mul(columns.next_multiple_of(self.lines[1]) as u64)
    }

    fn elements(&self, rows: usize, columns: usize) -> u64 {
        let [rows, columns] = [rows.next_multiple_of(self.lines[0]), columns.next_multiple_of(self.lines[1])];
        self.element.saturating_mul(rows as u64).saturating_mul(columns as u64)
    }

    fn matrices(&self, rows: usize, columns: usize, matrices: usize) -> u64 {
        let operands = self.rows(rows).saturating_add(self.columns(columns));
        operands.saturating_add(self.elements(rows, columns)).saturating_mul(matrices as u64)
    }

    /// The need of the whole of `problem`, and of its smallest piece.
    pub fn need(&self, problem: &Problem) -> Need {
        let Problem { m, n, .. } = *problem;
        let best = self.matrices(m, n, problem.batch_count());
        // Where a piece fails after other pieces were added to C, the whole product cannot be computed again.
        let least = match problem.epilogue.in_place {
            true => best,
            false => {
                let [rows, columns] = self.step(problem);
                self.matrices(m.min(rows), n.min(columns), 1)
            }
        };
        Need { least, best }
    }
}

pub(crate) use pieces::Partition;
#[cfg(feature = "cuda")]
pub(crate) use pieces::Piece;

#[cfg(test)]
mod tests;
