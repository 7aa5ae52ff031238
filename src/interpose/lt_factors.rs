//! fp8 in calls of `cublasLtMatmul`: types, factors, and where cuBLASLt is the faster one.

use super::count::Forwarded;
use super::lt_header::*;
use crate::launch::cublas::api::{CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F};
use crate::launch::Pointers;
use crate::problem::{Format, Layout, Problem, Scale};
use std::ffi::{c_int, c_void};
use std::ptr::null;

/// `CUDA_R_8F_E4M3` of library_types.h.
const CUDA_R_8F_E4M3: c_int = 28;
/// Numbers that share a factor in vectors and blocks.
const BLOCK: usize = 128;
const BLOCKS_OF_128: c_int = MATMUL_MATRIX_SCALE_BLK128x128_32F;
/// What cuBLASLt pads the counts of such factors to.
const PADDING: usize = 4;

/// The formats of A and B, both in e4m3, and of D.
pub(super) fn formats([a, b, d]: [c_int; 3]) -> Option<[Format; 2]> {
    let out = match d {
        CUDA_R_16F => Format::F16,
        CUDA_R_16BF => Format::BF16,
        CUDA_R_32F => Format::F32,
        _ => return None,
    };
    ([a, b] == [CUDA_R_8F_E4M3; 2]).then_some([Format::F8E4M3, out])
}

/// The attributes of a descriptor that only fp8 has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Factors {
    /// Of A and B, in device memory; null: 1.
    pub addresses: [*const c_void; 2],
    pub modes: [c_int; 2],
    /// Whether the tensor cores may keep all of K.
    pub is_fast: bool,
}

impl Factors {
    #[cfg(test)]
    pub const NONE: Self = Self { addresses: [null(); 2], modes: [MATMUL_MATRIX_SCALE_SCALAR_32F; 2], is_fast: false };

    pub fn are_unset(&self) -> bool {
        self.addresses == [null(); 2]
    }

    /// The product of operands in e4m3 with their factors. `x`: which of cuBLASLt's operands is A of the product.
    pub fn on(self, (problem, pointers): (Problem, Pointers), x: usize) -> Result<(Problem, Pointers), Forwarded> {
        // Our kernels have K contiguous in both.
        if problem.layout() != Layout::NT || problem.batch_count() != 1 {
            return Err(Forwarded::Attributes);
        }
        let Problem { m, n, k, .. } = problem;
        let w = 1 - x;
        let [of_x, of_w] = [of_x(self.modes[x], [m, k]), of_w(self.modes[w], [n, k])];
        let (of_x, of_w) = of_x.zip(of_w).ok_or(Forwarded::Attributes)?;
        let [x_at, w_at] = [x, w].map(|operand| self.addresses[operand]);
        let problem = problem.with(|problem| {
            problem.a.scale = (!x_at.is_null()).then_some(of_x);
            problem.b.scale = (!w_at.is_null()).then_some(of_w);
            problem.fast_accumulation = self.is_fast;
        });
        Ok((problem, pointers.with_scale_of_a(x_at).with_scale_of_b(w_at, null())))
    }
}

/// The factors of x: one, one for each row, or by columns one for each 128 numbers of a row. Where cuBLASLt would pad, none.
fn of_x(mode: c_int, [m, _]: [usize; 2]) -> Option<Scale> {
    match mode {
        MATMUL_MATRIX_SCALE_SCALAR_32F => Some(Scale::of_tensor(Format::F32)),
        MATMUL_MATRIX_SCALE_OUTER_VEC_32F => Some(Scale::new(Format::F32, [1, u32::MAX], [1, 0])),
        MATMUL_MATRIX_SCALE_VEC128_32F if m.is_multiple_of(PADDING) => {
            Some(Scale::new(Format::F32, [1, BLOCK as u32], [1, m as i64]))
        }
        _ => None,
    }
}

/// The factors of weights: one, one for each row, or one for each block of 128 x 128.
fn of_w(mode: c_int, [_, k]: [usize; 2]) -> Option<Scale> {
    match mode {
        MATMUL_MATRIX_SCALE_SCALAR_32F => Some(Scale::of_tensor(Format::F32)),
        MATMUL_MATRIX_SCALE_OUTER_VEC_32F => Some(Scale::of_rows(Format::F32)),
        BLOCKS_OF_128 if k.div_ceil(BLOCK).is_multiple_of(PADDING) => {
            Some(Scale::of_blocks(Format::F32, [BLOCK as u32; 2], k))
        }
        _ => None,
    }
}

/// Rows up to which our kernels are faster than cuBLASLt's with one factor, and with one for each row and fast sums (docs/log/2026-11-narrow.md, H200). With other sums
/// and factors ours are at all sizes.
const AHEAD_OF_ONE_FACTOR: usize = 128;
const AHEAD_OF_FAST_SUMS: usize = 256;

/// Whether our kernels are expected to be faster for a product of fp8.
pub(super) fn is_ahead(problem: &Problem) -> bool {
    let rows = |scale: Option<Scale>| scale.is_some_and(|scale| scale.granularity[0] == 1);
    match (rows(problem.a.scale), problem.fast_accumulation) {
        (false, _) => problem.m <= AHEAD_OF_ONE_FACTOR,
        (true, true) => problem.m <= AHEAD_OF_FAST_SUMS,
        (true, false) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Operand;

    fn product(m: usize) -> (Problem, Pointers) {
        let dense = Problem::dense(m, 24, 512, 1, Layout::NT, Format::F8E4M3);
        (
            dense.with(|p| p.d = Operand::row_major(Format::BF16, 24, [0, 0])),
            Pointers::new(null(), null(), std::ptr::null_mut()),
        )
    }

    fn factors(modes: [c_int; 2]) -> Factors {
        Factors { addresses: [0x10 as _, 0x20 as _], modes, is_fast: true }
    }

    #[test]
    fn each_mode_has_the_factors_of_the_operand() {
        const ONE: c_int = MATMUL_MATRIX_SCALE_SCALAR_32F;
        const ROWS: c_int = MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
        const VECTORS: c_int = MATMUL_MATRIX_SCALE_VEC128_32F;
        const BLOCKS: c_int = MATMUL_MATRIX_SCALE_BLK128x128_32F;
        // cuBLASLt's B is x.
        let of = |modes, m| {
            factors(modes).on(product(m), 1).map(|(problem, pointers)| {
                assert_eq!(pointers.scales[..2], [0x20 as *const c_void, 0x10 as _]);
                (problem.a.scale.unwrap(), problem.b.scale.unwrap(), problem.fast_accumulation)
            })
        };
        let one = Scale::of_tensor(Format::F32);
        assert_eq!(of([ONE, ONE], 3), Ok((one, one, true)));
        let rows = (Scale::new(Format::F32, [1, u32::MAX], [1, 0]), Scale::of_rows(Format::F32), true);
        assert_eq!(of([ROWS, ROWS], 3), Ok(rows));
        let vectors = Scale::new(Format::F32, [1, 128], [1, 8]);
        assert_eq!(of([BLOCKS, VECTORS], 8), Ok((vectors, Scale::of_blocks(Format::F32, [128, 128], 512), true)));
        // Padded, of the other operand, or of formats that Hopper has not.
        for (modes, m) in
            [([BLOCKS, VECTORS], 3), ([VECTORS, BLOCKS], 8), ([VECTORS, VECTORS], 8), ([1, 1], 8), ([2, 2], 8)]
        {
            assert_eq!(of(modes, m), Err(Forwarded::Attributes), "{modes:?}");
        }
        let unscaled = Factors::NONE.on(product(3), 0).unwrap().0;
        assert_eq!((unscaled.a.scale, unscaled.b.scale, unscaled.fast_accumulation), (None, None, false));
        let turned = Problem::dense(8, 24, 512, 1, Layout::NN, Format::F8E4M3);
        assert_eq!(Factors::NONE.on((turned, product(8).1), 1).map(|_| ()), Err(Forwarded::Attributes));
    }

    #[test]
    fn few_rows_and_exact_sums_are_ours() {
        let of = |m, modes: [c_int; 2], is_fast| {
            is_ahead(&Factors { is_fast, ..factors(modes) }.on(product(m), 1).unwrap().0)
        };
        let (one, rows) = ([MATMUL_MATRIX_SCALE_SCALAR_32F; 2], [MATMUL_MATRIX_SCALE_OUTER_VEC_32F; 2]);
        assert_eq!([of(128, one, false), of(129, one, false), of(4096, one, true)], [true, false, false]);
        assert_eq!([of(4096, rows, false), of(256, rows, true), of(257, rows, true)], [true, true, false]);
    }

    #[test]
    fn types_are_e4m3_with_wider_results() {
        assert_eq!(formats([28, 28, CUDA_R_16BF]), Some([Format::F8E4M3, Format::BF16]));
        assert_eq!([formats([28, 29, CUDA_R_16BF]), formats([28, 28, 28]), formats([2, 2, 2])], [None; 3]);
    }
}
