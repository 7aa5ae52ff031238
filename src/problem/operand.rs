//! Format, strides and alignment of the matrices of a problem.

use super::format::Format;
use super::scale::Scale;
use std::hash::{Hash, Hasher};

/// The format and the memory layout of one matrix. Strides count elements.
///
/// ```
/// use candle_tilegemm::problem::Operand;
/// use candle_tilegemm::{Format, Problem};
///
/// // Eight matrices A of 16 x 64, whose rows begin 100 elements apart, and one B by columns for all of them.
/// let a = Operand::row_major(Format::F16, 100, [0, 1600]);
/// let b = Operand::col_major(Format::F16, 64, [0, 0]);
/// let d = Operand::row_major(Format::F16, 32, [0, 512]);
/// let problem = Problem::new([16, 32, 64], [1, 8], a, b, d);
/// assert_eq!(problem.to_string(), "16x32x64 nt f16 batch 8");
/// assert_eq!(problem.canonical().problem.to_string(), "128x32x64 nt f16");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operand {
    /// How the elements are stored.
    pub format: Format,
    /// The factors of the elements, where there are any.
    pub scale: Option<Scale>,
    /// Distance from one row to the next.
    pub row_stride: i64,
    /// Distance from one column to the next.
    pub col_stride: i64,
    /// Distance from one matrix of the batch to the next, for the outer and the inner batch dimension. 0 broadcasts.
    pub batch_stride: [i64; 2],
    /// Largest power of two, at most [`MAX_ALIGN`], that divides the pointer, in bytes.
    pub pointer_align: u32,
}

/// No kernel benefits from an alignment above this one.
pub const MAX_ALIGN: u32 = 16;

impl Operand {
    /// A matrix with these strides, without scales, at a pointer of the largest alignment.
    pub const fn new(format: Format, [row_stride, col_stride]: [i64; 2], batch_stride: [i64; 2]) -> Self {
        Self { format, scale: None, row_stride, col_stride, batch_stride, pointer_align: MAX_ALIGN }
    }

    /// A dense row-major matrix with `cols` columns. Matrices of a batch are `batch_stride` apart.
    pub const fn row_major(format: Format, cols: usize, batch_stride: [i64; 2]) -> Self {
        Self::new(format, [cols as i64, 1], batch_stride)
    }

    /// A dense column-major matrix with `rows` rows. Matrices of a batch are `batch_stride` apart.
    pub const fn col_major(format: Format, rows: usize, batch_stride: [i64; 2]) -> Self {
        Self::new(format, [1, rows as i64], batch_stride)
    }

    /// Weights W of n x `k`, as B, whose rows start at multiples of 16 bytes. Matrices of a batch are `batch_stride` apart.
    pub const fn weights(format: Format, k: usize, batch_stride: [i64; 2]) -> Self {
        let block = format.block();
        let bytes = k.div_ceil(block.elements).saturating_mul(block.bytes).div_ceil(16).saturating_mul(16);
        Self::col_major(format, (bytes / block.bytes).saturating_mul(block.elements), batch_stride)
    }

    /// The same matrix after `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The same matrix with its two dimensions exchanged.
    pub fn transposed(self) -> Self {
        let scale = self.scale.map(Scale::transposed);
        Self { scale, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }

    /// The largest power of two that divides the address of every row, in bytes; of every column, where columns are
    /// contiguous.
    pub fn align(&self) -> u32 {
        let [x, y] = match [self.row_stride, self.col_stride] {
            [line, 1] | [1, line] => [line, 0],
            strides => strides,
        };
        let strides = [x, y, self.batch_stride[0], self.batch_stride[1]];
        let bytes = strides.map(|stride| self.format.offset(stride).unsigned_abs());
        bytes.into_iter().fold(self.pointer_align.min(MAX_ALIGN), |align, bytes| align.min(power_of_two_in(bytes)))
    }

    /// Whether one stride leads through the matrices of both batch dimensions, and one through their factors.
    pub(crate) fn merges(&self, [outer, inner]: [usize; 2]) -> bool {
        let merges = |[of_outer, of_inner]: [i64; 2]| goes_on(of_inner, inner, of_outer);
        let is_one = outer == 1 || inner == 1;
        is_one || (merges(self.batch_stride) && self.scale.is_none_or(|scale| merges(scale.batch_stride)))
    }

    /// Takes the strides of a batch dimension for those of the inner one, and leaves the outer one.
    pub(super) fn merge_batch(&mut self, dim: usize) {
        self.batch_stride = [0, self.batch_stride[dim]];
        if let Some(scale) = &mut self.scale {
            scale.batch_stride = [0, scale.batch_stride[dim]];
        }
    }

    /// Whether there is one matrix, with the same factors, for all of a batch dimension.
    pub(super) fn repeats(&self, dim: usize) -> bool {
        self.batch_stride[dim] == 0 && self.scale.is_none_or(|scale| scale.batch_stride[dim] == 0)
    }

    /// Replaces the strides of dimensions of size 1, which have no meaning, by the strides of a dense matrix.
    pub(crate) fn canonical(self, rows: usize, cols: usize, batch: [usize; 2]) -> Self {
        let mut operand = self;
        let block = self.format.block().elements;
        let whole = |extent: usize| extent.checked_next_multiple_of(block).unwrap_or(extent) as i64;
        match (rows, cols) {
            (1, 1) => (operand.row_stride, operand.col_stride) = (1, whole(1)),
            (1, _) if operand.col_stride == 1 => operand.row_stride = whole(cols),
            (_, 1) if operand.row_stride == 1 => operand.col_stride = whole(rows),
            (1, _) => operand.row_stride = 1,
            (_, 1) => operand.col_stride = 1,
            _ => {}
        }
        for (stride, size) in operand.batch_stride.iter_mut().zip(batch) {
            if size == 1 {
                *stride = 0;
            }
        }
        operand.scale = self.scale.map(|scale| scale.canonical([rows, cols], batch));
        operand
    }
}

impl Hash for Operand {
    /// The small fields make one word: every call of a product is looked up by its hash.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { format, scale, row_stride, col_stride, batch_stride: [outer, inner], pointer_align } = *self;
        for stride in [row_stride, col_stride, outer, inner] {
            state.write_u64(stride as u64);
        }
        state.write_u64(u64::from(pointer_align) << 16 | (format as u64) << 1 | u64::from(scale.is_some()));
        if let Some(scale) = scale {
            scale.hash(state);
        }
    }
}

/// Largest power of two that divides `bytes`, at most [`MAX_ALIGN`], which is also the result for 0.
pub fn power_of_two_in(bytes: u64) -> u32 {
    1 << bytes.trailing_zeros().min(MAX_ALIGN.trailing_zeros())
}

impl Operand {
    /// Like `canonical`, but a single row or column counts as row-major where possible, because D is written row by
    /// row.
    pub(crate) fn canonical_d(self, rows: usize, cols: usize, batch: [usize; 2]) -> Self {
        let operand = self.canonical(rows, cols, batch);
        if cols == 1 {
            Self { col_stride: 1, ..operand }
        } else {
            operand
        }
    }
}

/// The batch dimensions of a product reduced to at most two, with every operand's strides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch<const OPERANDS: usize> {
    /// Outer and inner size.
    pub sizes: [usize; 2],
    /// Outer and inner stride of every operand.
    pub strides: [[i64; 2]; OPERANDS],
}

impl<const OPERANDS: usize> Batch<OPERANDS> {
    /// Drops dimensions of size 1 and merges neighbours that are adjacent in every operand. `None` when more than two
    /// dimensions remain.
    pub fn collapse(dims: &[usize], strides: [&[usize]; OPERANDS]) -> Option<Self> {
        let mut sizes: Vec<usize> = Vec::with_capacity(dims.len());
        let mut kept: Vec<[i64; OPERANDS]> = Vec::with_capacity(dims.len());
        for (dim, &size) in dims.iter().enumerate().filter(|(_, size)| **size != 1) {
            let here = strides.map(|operand| operand[dim] as i64);
            let behind = |outer: &[i64; OPERANDS]| (0..OPERANDS).all(|o| outer[o] == here[o] * size as i64);
            match kept.last_mut() {
                Some(outer) if behind(outer) => {
                    *outer = here;
                    *sizes.last_mut().unwrap() *= size;
                }
                _ => {
                    sizes.push(size);
                    kept.push(here);
                }
            }
        }
        let (sizes, kept) = match (&sizes[..], &kept[..]) {
            ([], []) => ([1, 1], [[0; OPERANDS]; 2]),
            ([inner], [strides]) => ([1, *inner], [[0; OPERANDS], *strides]),
            ([outer, inner], [outer_strides, strides]) => ([*outer, *inner], [*outer_strides, *strides]),
            _ => return None,
        };
        Some(Self { sizes, strides: std::array::from_fn(|operand| [kept[0][operand], kept[1][operand]]) })
    }
}

/// Whether `count` steps of `stride` elements make a step of `outer`.
pub(super) fn goes_on(stride: i64, count: usize, outer: i64) -> bool {
    i64::try_from(count).ok().and_then(|count| stride.checked_mul(count)) == Some(outer)
}
