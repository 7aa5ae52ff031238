//! Factors of the elements of an operand, and zeros, in matrices of their own.

use super::format::Format;

/// Factors of the elements of an operand: element (i, j) counts times the factor (i / rows, j / columns), and before that less its zero, where there are zeros.
///
/// ```
/// use candle_tilegemm::problem::Scale;
/// use candle_tilegemm::{Format, Problem};
///
/// // Weights of 14336 x 4096 in groups of 128 along K, a factor for each row of a group.
/// let scale = Scale::of_groups(Format::F16, 128, 14336).with_zeros();
/// let problem = Problem::narrow([16, 14336, 4096], Format::F16, Format::U4, Some(scale));
/// assert_eq!(problem.to_string(), "16x14336x4096 nt f16 x u4 g128 with zeros -> f16");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[non_exhaustive]
pub struct Scale {
    /// The format of the factors: f32, f16, bf16, f8e8m0 or f8e4m3.
    pub format: Format,
    /// Rows and columns of the operand that share a factor; `u32::MAX` for all. Of weights in groups of 128 along K, which is along B's rows, `[128, 1]`.
    pub granularity: [u32; 2],
    /// Factors from that of some rows to that of the next.
    pub row_stride: i64,
    /// Factors from that of some columns to that of the next.
    pub col_stride: i64,
    /// Factors from those of one matrix of the batch to those of the next, for the outer and the inner batch dimension.
    pub batch_stride: [i64; 2],
    /// Whether there are zeros: numbers of 8 bits without a sign, at the indices of the factors.
    pub zeros: bool,
}

/// Rows or columns that share a factor: all.
const ALL: u32 = u32::MAX;

impl Scale {
    /// Factors with these strides, without zeros, for all matrices of a batch.
    pub const fn new(format: Format, granularity: [u32; 2], [row_stride, col_stride]: [i64; 2]) -> Self {
        Self { format, granularity, row_stride, col_stride, batch_stride: [0, 0], zeros: false }
    }

    /// A factor for all of an operand.
    pub const fn of_tensor(format: Format) -> Self {
        Self::new(format, [ALL, ALL], [0, 0])
    }

    /// A factor for each row of weights W of n x k, which are B's columns.
    pub const fn of_rows(format: Format) -> Self {
        Self::new(format, [ALL, 1], [0, 1])
    }

    /// A factor for each `group` numbers of a row of W, which has `n` rows, as [k / group, n].
    pub const fn of_groups(format: Format, group: u32, n: usize) -> Self {
        Self::new(format, [group, 1], [n as i64, 1])
    }

    /// A factor for each block of `rows` x `columns` of W of n x `k`, as [n / rows, k / columns].
    pub const fn of_blocks(format: Format, [rows, columns]: [u32; 2], k: usize) -> Self {
        let blocks = if columns == 0 { 0 } else { k.div_ceil(columns as usize) };
        Self::new(format, [columns, rows], [1, blocks as i64])
    }

    /// The same with zeros.
    pub const fn with_zeros(self) -> Self {
        Self { zeros: true, ..self }
    }

    /// The same after `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The numbers of factors along the rows and along the columns of an operand of `rows` x `columns`.
    pub fn counts(&self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        let along =
            |extent: usize, step: u32| if step == ALL { extent.min(1) } else { extent.div_ceil(step.max(1) as usize) };
        [along(rows, self.granularity[0]), along(columns, self.granularity[1])]
    }

    /// The index of the factor of an element, in this matrix of the batch.
    pub fn index(&self, [outer, inner]: [usize; 2], [row, column]: [usize; 2]) -> i64 {
        let along = |at: usize, step: u32| if step == ALL { 0 } else { (at / step.max(1) as usize) as i64 };
        let [rows, columns] = [along(row, self.granularity[0]), along(column, self.granularity[1])];
        let [outer_stride, inner_stride] = self.batch_stride;
        rows.wrapping_mul(self.row_stride)
            .wrapping_add(columns.wrapping_mul(self.col_stride))
            .wrapping_add((outer as i64).wrapping_mul(outer_stride))
            .wrapping_add((inner as i64).wrapping_mul(inner_stride))
    }

    /// Bytes of the factors and zeros of one matrix of `rows` x `columns`, as a float, which holds any such number.
    pub(crate) fn bytes(&self, extents: [usize; 2]) -> f64 {
        let [rows, columns] = self.counts(extents).map(|count| count as f64);
        rows * columns * (self.format.bits() / 8.0 + f64::from(u8::from(self.zeros)))
    }

    /// The least multiples of `step` rows and columns that begin with factors of their own.
    pub(crate) fn whole(&self, step: [usize; 2]) -> [usize; 2] {
        [0, 1].map(|i| match self.granularity[i] {
            0 | ALL => step[i],
            shared => lcm(step[i], shared as usize),
        })
    }

    pub(super) fn transposed(self) -> Self {
        let ([rows, columns], row_stride) = (self.granularity, self.col_stride);
        Self { granularity: [columns, rows], row_stride, col_stride: self.row_stride, ..self }
    }

    /// The same factors, with all rows or columns where one factor is for all of an operand's, without strides that have no meaning.
    pub(super) fn canonical(self, extents: [usize; 2], batch: [usize; 2]) -> Self {
        let mut scale = self;
        let strides = [&mut scale.row_stride, &mut scale.col_stride];
        for ((shared, stride), extent) in scale.granularity.iter_mut().zip(strides).zip(extents) {
            if *shared as usize >= extent && *shared > 0 {
                (*shared, *stride) = (ALL, 0);
            }
        }
        for (stride, _) in scale.batch_stride.iter_mut().zip(batch).filter(|(_, size)| *size == 1) {
            *stride = 0;
        }
        scale
    }

    /// The factors of B, beside an A in this format: ` g128`, ` row`, ` tensor`, ` 128x128` for blocks of rows of W by numbers of K; with their format, where it is neither
    /// f32 nor A's.
    pub(super) fn words(&self, beside: Format) -> String {
        let shared = match self.granularity {
            [ALL, ALL] => "tensor".into(),
            [ALL, 1] => "row".into(),
            [group, 1] => format!("g{group}"),
            [along_k, rows] => {
                let number = |shared: u32| if shared == ALL { "all".into() } else { shared.to_string() };
                format!("{}x{}", number(rows), number(along_k))
            }
        };
        let format =
            if [Format::F32, beside].contains(&self.format) { String::new() } else { format!(" {}", self.format) };
        format!(" {shared}{format}{}", if self.zeros { " with zeros" } else { "" })
    }
}

/// The least common multiple of two numbers that are not 0.
fn lcm(x: usize, y: usize) -> usize {
    let (mut a, mut b) = (x, y);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    (x / a).saturating_mul(y)
}
