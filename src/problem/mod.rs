//! The request: one matrix product with its operands and its epilogue.
//!
//! A [`Problem`] is plain data. A problem holds the alignment of the pointers and no pointers, so that the same problem
//! gives the same plan on any machine, with or without a GPU.

use std::fmt;

pub(crate) mod epilogue;
pub(crate) mod f32_mode;
mod fold;
mod format;
mod groups;
mod layout;
mod operand;
mod scale;

pub use epilogue::{Activation, BiasAxis, Epilogue, Gate, Real};
pub use f32_mode::F32Mode;
pub use format::{Block, Format, Types};
pub use groups::{Bounds, Groups, Rows};
pub use layout::Layout;
#[doc(hidden)]
pub use operand::Batch;
pub use operand::{power_of_two_in, Operand, MAX_ALIGN};
pub use scale::Scale;

/// One matrix product, for a batch of matrices.
///
/// ```
/// use candle_tilegemm::{F32Mode, Format, Layout, Problem};
///
/// let problem = Problem::dense(16, 4096, 4096, 1, Layout::NT, Format::BF16).with(|problem| problem.d.format = Format::F32);
/// assert_eq!(problem.to_string(), "16x4096x4096 nt bf16 -> f32");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Problem {
    /// Rows of A and D.
    pub m: usize,
    /// Columns of B and, unless the product is gated, of D.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Outer and inner batch dimension.
    pub batch: [usize; 2],
    /// The left operand, m x k.
    pub a: Operand,
    /// The right operand, k x n.
    pub b: Operand,
    /// The result, m x n; m x n / 2 of a gated product.
    pub d: Operand,
    /// The epilogue, applied to the product before the store.
    pub epilogue: Epilogue,
    /// The precision of an f32 product. The op and the interposer set the mode of the process
    /// ([`f32_mode`](crate::f32_mode)) where a call asks for no mode.
    pub f32_mode: F32Mode,
    /// Whether sums of a product of f8e4m3 by f8e4m3 may be the tensor cores' over all of K, which have some 13 bits; otherwise they go to f32 every 128 of K.
    pub fast_accumulation: bool,
    /// The groups of rows that have a B each. Then the batch is `[1, 1]`, and M is the rows of all groups.
    pub groups: Option<Groups>,
}

/// A [`Problem`] in the canonical form that kernels are chosen for, and the steps that led to the form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Canonical {
    /// The canonical problem, which kernels get.
    pub problem: Problem,
    /// Whether A and B were swapped and every matrix transposed, because D was column-major, or became so as the batch was folded.
    pub swapped: bool,
}

impl Problem {
    /// The product of these operands, without an epilogue.
    pub fn new([m, n, k]: [usize; 3], batch: [usize; 2], a: Operand, b: Operand, d: Operand) -> Self {
        let (epilogue, f32_mode) = (Epilogue::default(), F32Mode::default());
        Self { m, n, k, batch, a, b, d, epilogue, f32_mode, fast_accumulation: false, groups: None }
    }

    /// A product of dense matrices, all in one format, without an epilogue.
    pub fn dense(m: usize, n: usize, k: usize, batch: usize, layout: Layout, format: Format) -> Self {
        let matrix = |rows: usize, columns: usize| i64::try_from(rows.saturating_mul(columns)).unwrap_or(i64::MAX);
        let stride = |rows, columns| [0, if batch > 1 { matrix(rows, columns) } else { 0 }];
        let (a_stride, b_stride, d_stride) = (stride(m, k), stride(n, k), stride(m, n));
        let (a_rows, b_cols) = match layout {
            Layout::NN | Layout::Any => (true, false),
            Layout::NT => (true, true),
            Layout::TN => (false, false),
            Layout::TT => (false, true),
        };
        let a = if a_rows { Operand::row_major(format, k, a_stride) } else { Operand::col_major(format, m, a_stride) };
        let b = if b_cols { Operand::col_major(format, k, b_stride) } else { Operand::row_major(format, n, b_stride) };
        Self::new([m, n, k], [1, batch], a, b, Operand::row_major(format, n, d_stride))
    }

    /// A product in nt with groups of rows, of dense matrices, all in one format: `m` rows of all groups, and a B of n x k for each group.
    pub fn grouped([m, n, k]: [usize; 3], groups: Groups, format: Format) -> Self {
        Self::dense(m, n, k, 1, Layout::NT, format).with(|problem| {
            problem.b.batch_stride = [0, (n * k) as i64];
            problem.groups = Some(groups);
        })
    }

    /// A product in nt with narrow weights W of n x k, whose rows start at multiples of 16 bytes; the other matrices are dense.
    pub fn narrow([m, n, k]: [usize; 3], activations: Format, weights: Format, scale: Option<Scale>) -> Self {
        Self::dense(m, n, k, 1, Layout::NT, activations).with_weights(weights, scale)
    }

    /// The same product in nt with weights in another format: rows at multiples of 16 bytes, the matrices and their factors one behind the other.
    pub fn with_weights(self, format: Format, scale: Option<Scale>) -> Self {
        let dense = Operand::weights(format, self.k, [0, 0]);
        let matrix = dense.col_stride.saturating_mul(i64::try_from(self.n).unwrap_or(i64::MAX));
        let is_one = self.b.batch_stride == [0, 0];
        let scale = scale.map(|scale| {
            let [along_k, along_n] = scale.counts([self.k, self.n]);
            let count = along_k.saturating_mul(along_n) as i64;
            scale.with(|scale| scale.batch_stride = if is_one { [0, 0] } else { [0, count] })
        });
        let b = dense.with(|b| (b.batch_stride, b.scale) = (if is_one { [0, 0] } else { [0, matrix] }, scale));
        Self { b, ..self }
    }

    /// The same problem after `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The type of the product. C counts as stored like D where C is not read.
    pub fn types(&self) -> Types {
        let (a, b, d) = (self.a, self.b, self.d);
        let c = self.epilogue.c.filter(|_| self.epilogue.reads_c()).map_or(d.format, |c| c.format);
        Types { b: b.format, c, ..Types::new(a.format, d.format) }
    }

    /// Whether the product multiplies f32 by f32, so that the f32 mode counts.
    pub fn is_f32(&self) -> bool {
        [self.a.format, self.b.format] == [Format::F32; 2]
    }

    /// Whether the product multiplies f8e4m3 by f8e4m3, so that `fast_accumulation` counts.
    pub fn is_fp8(&self) -> bool {
        [self.a.format, self.b.format] == [Format::F8E4M3; 2]
    }

    /// The product whose columns a kernel of its own gates: without the gate, with a dense D.
    pub fn ungated(&self) -> Self {
        let mut epilogue = self.epilogue;
        (epilogue.gate, epilogue.activation) = (None, Activation::Identity);
        let matrix = self.m.saturating_mul(self.n) as i64;
        let d = Operand::row_major(self.d.format, self.n, [matrix.saturating_mul(self.batch[1] as i64), matrix]);
        Self { d, epilogue, ..*self }
    }

    /// Number of matrices in the batch; `usize::MAX` where the number does not fit.
    pub fn batch_count(&self) -> usize {
        self.batch[0].saturating_mul(self.batch[1])
    }

    /// Columns of D: N, or half of N in a gated product.
    pub fn columns_of_d(&self) -> usize {
        self.epilogue.columns_of_d(self.n)
    }

    /// Elements of D as a float, which holds any such number.
    pub fn outputs(&self) -> f64 {
        self.m as f64 * self.columns_of_d() as f64 * self.batch[0] as f64 * self.batch[1] as f64
    }

    /// Whether the result has no elements.
    pub fn is_empty(&self) -> bool {
        [self.m, self.columns_of_d(), self.batch[0], self.batch[1]].contains(&0)
    }

    /// Floating-point operations of the product.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64 * self.batch_count() as f64
    }

    /// Bytes that must move through device memory: every operand once, a broadcast operand once for the batch, and the B of every
    /// group that is expected to have rows.
    pub fn bytes(&self) -> f64 {
        let Self { m, n, k, .. } = *self;
        let bytes = |operand: &Operand, rows: usize, columns: usize| {
            let dims = self.batch.iter().zip(operand.batch_stride);
            let matrices = dims.map(|(&size, stride)| if stride == 0 { 1.0 } else { size as f64 }).product::<f64>();
            let factors = operand.scale.map_or(0.0, |scale| scale.bytes([rows, columns]));
            rows as f64 * columns as f64 * matrices * operand.format.bits() / 8.0 + matrices * factors
        };
        let c = self.epilogue.c.filter(|_| self.epilogue.reads_c()).map_or(0.0, |c| bytes(&c, m, n));
        let groups = self.groups.map_or(1.0, |groups| groups.with_rows(m) as f64);
        let rows_of_a = self.groups.map_or(m, |groups| groups.rows_of_a(m));
        bytes(&self.a, rows_of_a, k) + groups * bytes(&self.b, k, n) + bytes(&self.d, m, self.columns_of_d()) + c
    }

    /// The layout of (A, B). Where a matrix is a single row or column, both letters are true, and the letter with K
    /// contiguous is given, because kernels prefer a contiguous K.
    pub fn layout(&self) -> Layout {
        let a_k_major = self.a.col_stride == 1;
        let b_k_major = self.b.row_stride == 1;
        match (a_k_major, self.a.row_stride == 1, b_k_major, self.b.col_stride == 1) {
            (true, _, true, _) => Layout::NT,
            (true, _, _, true) => Layout::NN,
            (_, true, true, _) => Layout::TT,
            (_, true, _, true) => Layout::TN,
            _ => Layout::Any,
        }
    }

    /// Alignment in bytes of each operand, by name. The alignment of D includes C where C is read.
    pub fn alignments(&self) -> [(&'static str, u32); 4] {
        let c = self.epilogue.c.filter(|_| self.epilogue.reads_c());
        [("A", self.a.align()), ("B", self.b.align()), ("C", c.map_or(MAX_ALIGN, |c| c.align())), ("D", self.d.align())]
    }

    /// The canonical form, which kernels are chosen for: strides of size-1 dimensions dropped, adjacent batch
    /// dimensions merged, batch dimensions over one broadcast B folded into M and over one broadcast A into N, D row-major, an f32 mode for f32 and fast accumulation for f8e4m3 only,
    /// and a K of 0 where alpha is 0, because A and B are not read then, as in BLAS. Groups of rows stay rows.
    pub fn canonical(&self) -> Canonical {
        let (mut problem, mut swapped) = self.canonical_strides().with_rows_of_d();
        if problem.epilogue.alpha() == 0.0 {
            problem = problem.without_operands();
        }
        problem.merge_batch();
        while let Some(folded) = problem.folded() {
            // Columns of one element each make a D of columns.
            let (rows_of_d, swaps) = folded.canonical_strides().with_rows_of_d();
            (problem, swapped) = (rows_of_d, swapped != swaps);
            problem.merge_batch();
        }
        if !problem.is_f32() {
            problem.f32_mode = F32Mode::default();
        }
        problem.fast_accumulation &= problem.is_fp8();
        Canonical { problem: problem.canonical_strides(), swapped }
    }

    /// The same problem with a row-major D where one dimension of D is contiguous, and one column as one row, which kernels are made for; and whether A and B
    /// changed places for that.
    fn with_rows_of_d(self) -> (Self, bool) {
        let may_swap = self.groups.is_none() && self.epilogue.gate.is_none() && !self.types().has_narrow_b();
        // Kernels with two formats have the other one in B.
        let is_column = self.n == 1 && self.m > 1 && self.a.format == self.b.format && self.has_columns_in_d();
        match may_swap && (is_column || (self.d.col_stride != 1 && self.d.row_stride == 1)) {
            true => (self.transposed().canonical_strides(), true),
            false => (self, false),
        }
    }

    /// Whether columns of C and D are contiguous.
    fn has_columns_in_d(&self) -> bool {
        [Some(self.d), self.epilogue.c].into_iter().flatten().all(|operand| operand.row_stride == 1)
    }

    /// The same problem, with dense strides in place of the meaningless strides of size-1 dimensions.
    #[doc(hidden)]
    pub fn canonical_strides(&self) -> Self {
        let Problem { m, n, k, batch, .. } = *self;
        let mut epilogue = self.epilogue;
        epilogue.c = epilogue.c.filter(|_| epilogue.reads_c()).map(|c| c.canonical_d(m, n, batch));
        epilogue.in_place &= epilogue.c.is_some();
        epilogue.gates_c &= epilogue.c.is_some();
        Self {
            a: self.a.canonical(m, k, batch),
            b: self.b.canonical(k, n, self.groups.map_or(batch, |groups| [1, groups.count])),
            d: self.d.canonical_d(m, self.columns_of_d(), batch),
            epilogue,
            ..*self
        }
    }

    /// `D^T = B^T @ A^T`
    fn transposed(&self) -> Self {
        Self {
            m: self.n,
            n: self.m,
            a: self.b.transposed(),
            b: self.a.transposed(),
            d: self.d.transposed(),
            epilogue: self.epilogue.transposed(),
            ..*self
        }
    }

    /// The same problem over an empty A and an empty B: their product is 0 for every alpha.
    fn without_operands(&self) -> Self {
        let a = Operand::row_major(self.a.format, 0, [0; 2]);
        let b = match self.b.format.block().elements {
            1 => Operand::row_major(self.b.format, self.n, [0; 2]),
            _ => Operand::col_major(self.b.format, 0, [0; 2]),
        };
        Self { k: 0, a, b, epilogue: self.epilogue.with_alpha(1.0), ..*self }
    }

    fn operands_mut(&mut self) -> impl Iterator<Item = &mut Operand> {
        [Some(&mut self.a), Some(&mut self.b), Some(&mut self.d), self.epilogue.c.as_mut()].into_iter().flatten()
    }

    /// Merges the two batch dimensions where the strides of every operand allow a merge.
    pub(crate) fn merge_batch(&mut self) {
        let [outer, inner] = self.batch;
        if outer == 1 || inner == 1 {
            let dim = if outer == 1 { 1 } else { 0 };
            self.operands_mut().for_each(|o| o.merge_batch(dim));
        } else if outer.checked_mul(inner).is_some() && self.operands_mut().all(|o| o.merges([outer, inner])) {
            self.operands_mut().for_each(|o| o.merge_batch(1));
        } else {
            return;
        }
        self.batch = [1, outer * inner];
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { m, n, k, .. } = self;
        let (a, b, d) = (self.a, self.b, self.d);
        let words = |scale: Option<Scale>| scale.map_or(String::new(), |scale| scale.words(a.format));
        let scales = [a.scale.map(Scale::transposed), b.scale, d.scale.map(Scale::transposed)].map(words);
        write!(f, "{m}x{n}x{k} {} {}", self.layout(), self.types().text(scales.each_ref().map(String::as_str)))?;
        if self.is_f32() && self.f32_mode != F32Mode::default() {
            write!(f, " {}", self.f32_mode)?;
        }
        if self.is_fp8() && self.fast_accumulation {
            write!(f, " fast accumulation")?;
        }
        if self.batch_count() != 1 {
            write!(f, " batch {}", self.batch_count())?;
        }
        if let Some(groups @ Groups { count, .. }) = self.groups {
            write!(f, " in {count} groups, {} with rows", groups.with_rows(self.m))?;
        }
        let epilogue = &self.epilogue;
        if epilogue.alpha() != 1.0 {
            write!(f, " alpha {}", epilogue.alpha())?;
        }
        if epilogue.bias.is_some() {
            write!(f, " + bias")?;
        }
        if epilogue.activation != Activation::Identity {
            write!(f, " {:?}", epilogue.activation)?;
        }
        match epilogue.gate {
            Some(Gate::Halves) => write!(f, " gated in halves")?,
            Some(Gate::Interleaved) => write!(f, " gated, interleaved")?,
            None => {}
        }
        if epilogue.reads_c() {
            write!(f, " {} {} C", if epilogue.gates_c { "*" } else { "+" }, epilogue.beta())?;
        }
        Ok(())
    }
}
