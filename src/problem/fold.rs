//! Batches that are rows or columns of one product.

use super::epilogue::BiasAxis;
use super::operand::goes_on;
use super::{Operand, Problem};

impl Problem {
    /// The same product with a batch dimension as rows, where B is broadcast over the dimension, or as columns, where A is; the larger dimension first. `None` where
    /// no batch dimension is either.
    pub(super) fn folded(&self) -> Option<Self> {
        let larger = usize::from(self.batch[1] >= self.batch[0]);
        [larger, 1 - larger].into_iter().find_map(|dim| self.folded_into_m(dim).or_else(|| self.folded_into_n(dim)))
    }

    /// With one B for all matrices of a batch dimension, and rows of A, C and D that continue evenly from one matrix to the next, the dimension is more rows.
    fn folded_into_m(&self, dim: usize) -> Option<Self> {
        let count = self.batch[dim];
        // Factors go along one matrix.
        let scaled = self.a.scale.or(self.d.scale).is_some();
        if count == 1
            || self.groups.is_some()
            || !self.b.repeats(dim)
            || scaled
            || self.epilogue.bias == Some(BiasAxis::M)
        {
            return None;
        }
        let rows = |operand: Operand| operand.with_rows_of_batch(self.m, dim);
        // D is written row by row.
        let lines = |operand: Operand| rows(operand).filter(|folded| self.m > 1 || folded.col_stride == 1);
        let mut folded = Self { m: self.m.checked_mul(count)?, a: rows(self.a)?, d: lines(self.d)?, ..*self };
        folded.b.batch_stride[dim] = 0;
        if let Some(c) = self.epilogue.c {
            // No kernel reads one line of C for several rows.
            folded.epilogue.c = Some(lines(c).filter(|folded| folded.row_stride != 0)?);
        }
        folded.batch[dim] = 1;
        Some(folded)
    }

    /// The same for columns. Columns of a gated product have their places, and so have blocks of B.
    fn folded_into_n(&self, dim: usize) -> Option<Self> {
        let may_fold = self.epilogue.gate.is_none() && self.a.format == self.b.format;
        may_fold.then(|| self.transposed().folded_into_m(dim)).flatten().map(|folded| folded.transposed())
    }
}

impl Operand {
    /// The matrices of a batch dimension as one matrix, each with `rows` rows, where that matrix has a stride from row to row and stays readable line by line.
    fn with_rows_of_batch(self, rows: usize, dim: usize) -> Option<Self> {
        let step = self.batch_stride[dim];
        let mut folded = self;
        folded.batch_stride[dim] = 0;
        if rows > 1 {
            return goes_on(self.row_stride, rows, step).then_some(folded);
        }
        // A matrix of one row has no row stride of its own: the batch stride becomes the row stride.
        folded.row_stride = step;
        [folded.row_stride, folded.col_stride].contains(&1).then_some(folded)
    }
}
