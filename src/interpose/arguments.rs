//! Whether the arguments of a call describe a matrix product, by the rules of cuBLAS.

use crate::launch::cublas::api::{OP_C, OP_N};
use std::ffi::c_int;

/// Sizes and operands of one call in cuBLAS's convention: column-major.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arguments {
    /// Operations on A and B.
    pub ops: [c_int; 2],
    /// m, n and k.
    pub sizes: [c_int; 3],
    pub batch: c_int,
    /// Leading dimensions of A, B and C.
    pub ld: [c_int; 3],
}

impl Arguments {
    /// Whether cuBLAS accepts the arguments: known operations, no negative size, and leading dimensions not below the
    /// rows of the stored matrices. cuBLAS answers other arguments with CUBLAS_STATUS_INVALID_VALUE.
    pub fn are_valid(&self) -> bool {
        let [m, n, k] = self.sizes;
        let [op_a, op_b] = self.ops;
        let rows = [if op_a == OP_N { m } else { k }, if op_b == OP_N { k } else { n }, m];
        self.ops.iter().all(|op| (OP_N..=OP_C).contains(op))
            && [m, n, k, self.batch].iter().all(|size| *size >= 0)
            && self.ld.iter().zip(rows).all(|(ld, rows)| *ld >= rows.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::Arguments;

    /// 5 x 7 x 3.
    fn dense(ops: [i32; 2]) -> Arguments {
        let [op_a, op_b] = ops;
        let ld = [if op_a == 0 { 5 } else { 3 }, if op_b == 0 { 3 } else { 7 }, 5];
        Arguments { ops, sizes: [5, 7, 3], batch: 2, ld }
    }

    #[test]
    fn a_leading_dimension_is_not_below_the_rows_of_the_stored_matrix() {
        for ops in [[0, 0], [0, 1], [1, 0], [1, 1], [2, 2]] {
            assert!(dense(ops).are_valid(), "{ops:?}");
            for operand in 0..3 {
                let mut short = dense(ops);
                short.ld[operand] -= 1;
                assert!(!short.are_valid(), "{ops:?}, operand {operand}");
                short.ld[operand] += 4;
                assert!(short.are_valid(), "{ops:?}, operand {operand}");
            }
        }
        let nothing = Arguments { sizes: [0, 0, 0], ld: [1, 1, 1], ..dense([0, 0]) };
        assert!(nothing.are_valid());
        assert!((0..3).all(|operand| {
            let mut zero = nothing;
            zero.ld[operand] = 0;
            !zero.are_valid()
        }));
    }

    #[test]
    fn operations_are_known_and_sizes_not_negative() {
        assert!(!dense([-1, 0]).are_valid() && !dense([0, 3]).are_valid());
        assert!(!Arguments { batch: -1, ..dense([0, 0]) }.are_valid());
        for size in 0..3 {
            let mut negative = dense([0, 0]);
            negative.sizes[size] = -1;
            assert!(!negative.are_valid());
        }
    }
}
