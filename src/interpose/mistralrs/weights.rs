//! Weights of mistralrs: codes, row behind row, and factors.

use crate::problem::{power_of_two_in, Format, Operand, Scale};
use std::ffi::c_void;
use std::fmt;

/// N x K numbers and their factors. Of experts, the matrices and the factors of each follow one another.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    pub codes: *const c_void,
    pub factors: *const c_void,
    /// N and K.
    pub sizes: [i32; 2],
    pub of: Factors,
}

/// What the factors are of, and so the codes.
#[derive(Clone, Copy)]
pub(super) enum Factors {
    /// Of blocks of rows and columns of numbers in e4m3, in f32; `stride` of them from those of some rows to those of the next.
    Blocks { block: [i32; 2], stride: i32 },
    /// Of 32 numbers of a row in e2m1, e8m0: MXFP4. Of two neighbours the first one has the lower 4 bits of a byte.
    PowersOfTwo,
}

/// Numbers of MXFP4 that share a power of two.
const GROUP: usize = 32;

impl Weights {
    /// N and K, where the arguments describe weights.
    pub fn sizes(&self) -> Option<[usize; 2]> {
        let [n, k] = self.sizes.map(|size| usize::try_from(size).ok());
        let (n, k) = n.zip(k)?;
        let is_whole = match self.of {
            Factors::Blocks { block, stride } => stride >= 0 && block.iter().all(|size| *size > 0),
            Factors::PowersOfTwo => k.is_multiple_of(GROUP),
        };
        is_whole.then_some([n, k])
    }

    /// Whether x has to be in another order: the codes of 32 numbers do not lie as our kernels read them.
    pub fn reorders(&self) -> bool {
        matches!(self.of, Factors::PowersOfTwo)
    }

    /// The B of these weights, whose rows are those of `dense`.
    pub fn operand(&self, dense: Operand, [n, k]: [usize; 2]) -> Operand {
        let (format, scale, count) = match self.of {
            Factors::Blocks { block, stride } => {
                let [rows, columns] = block.map(i32::unsigned_abs);
                let count = n.div_ceil(rows.max(1) as usize) as i64 * i64::from(stride);
                (Format::F8E4M3, Scale::new(Format::F32, [columns, rows], [1, stride.into()]), count)
            }
            Factors::PowersOfTwo => {
                let groups = (k / GROUP) as i64;
                (Format::F4E2M1, Scale::new(Format::F8E8M0, [GROUP as u32, 1], [1, groups]), n as i64 * groups)
            }
        };
        let between = if dense.batch_stride == [0, 0] { 0 } else { count };
        dense.with(|b| {
            (b.format, b.pointer_align) = (format, power_of_two_in(self.codes as u64));
            b.scale = Some(scale.with(|scale| scale.batch_stride = [0, between]));
        })
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [n, k] = self.sizes;
        match self.of {
            Factors::Blocks { block: [rows, columns], stride } => {
                write!(f, "{n} x {k} weights in blocks of {rows} x {columns}, {stride} in a row")
            }
            Factors::PowersOfTwo => write!(f, "{n} x {k} weights in MXFP4"),
        }
    }
}
