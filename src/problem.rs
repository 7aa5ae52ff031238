//! What is asked: one matrix product, its operands and its epilogue.
//!
//! A [`Problem`] is plain data. It holds no pointers, only what the pointers are multiples of, so that the same problem
//! gives the same plan on any machine, with or without a GPU.

use crate::kernel::Fusion;
use std::fmt;

/// Element type of the operands and of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
}

impl DType {
    /// Size of an element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F16 | DType::BF16 => 2,
            DType::F32 => 4,
            DType::F64 => 8,
        }
    }

    /// The name used in kernel names and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for DType {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        [DType::F16, DType::BF16, DType::F32, DType::F64]
            .into_iter()
            .find(|dtype| dtype.name() == s)
            .ok_or_else(|| format!("unknown dtype '{s}'; expected f16, bf16, f32 or f64"))
    }
}

/// Layout of (A, B), written the row-major way.
///
/// The first letter is `n` when the rows of A (m x k) are contiguous, the second is `t` when the columns of B (k x n) are,
/// that is when B is stored as n x k. `nt` is what a Linear layer computes: `x @ w^T`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// a\[m,k\] @ b\[k,n\]
    NN,
    /// a\[m,k\] @ b\[n,k\]^T
    NT,
    /// a\[k,m\]^T @ b\[k,n\]
    TN,
    /// a\[k,m\]^T @ b\[n,k\]^T
    TT,
    /// Any strides, also ones where neither dimension of an operand is contiguous.
    Any,
}

impl Layout {
    /// The name used in kernel names and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::NN => "nn",
            Layout::NT => "nt",
            Layout::TN => "tn",
            Layout::TT => "tt",
            Layout::Any => "any",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Layout {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        [Layout::NN, Layout::NT, Layout::TN, Layout::TT]
            .into_iter()
            .find(|layout| layout.name() == s)
            .ok_or_else(|| format!("unknown layout '{s}'; expected nn, nt, tn or tt"))
    }
}

/// How one matrix lies in memory. Strides count elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Distance from one row to the next.
    pub row_stride: i64,
    /// Distance from one column to the next.
    pub col_stride: i64,
    /// Distance from one matrix of the batch to the next, for the outer and the inner batch dimension. 0 broadcasts.
    pub batch_stride: [i64; 2],
    /// Largest power of two, at most [`MAX_ALIGN`], that the pointer is a multiple of, in bytes.
    pub pointer_align: u32,
}

/// Alignments above this one make no difference to any kernel.
pub const MAX_ALIGN: u32 = 16;

impl Operand {
    /// A dense row-major matrix with `cols` columns, `batch_stride` apart, at a pointer of the largest alignment.
    pub fn row_major(cols: usize, batch_stride: [i64; 2]) -> Self {
        Self { row_stride: cols as i64, col_stride: 1, batch_stride, pointer_align: MAX_ALIGN }
    }

    /// A dense column-major matrix with `rows` rows.
    pub fn col_major(rows: usize, batch_stride: [i64; 2]) -> Self {
        Self { row_stride: 1, col_stride: rows as i64, batch_stride, pointer_align: MAX_ALIGN }
    }

    /// The same matrix with its two dimensions exchanged.
    pub fn transposed(self) -> Self {
        Self { row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }

    /// The largest power of two that the pointer and every stride but the contiguous one are multiples of, in bytes.
    pub fn align(&self, dtype: DType) -> u32 {
        let strides = [self.row_stride, self.col_stride, self.batch_stride[0], self.batch_stride[1]];
        let bytes = strides.into_iter().filter(|&s| s != 1).map(|s| s.unsigned_abs() * dtype.bytes() as u64);
        bytes.fold(self.pointer_align.min(MAX_ALIGN), |align, bytes| align.min(power_of_two_in(bytes)))
    }

    /// Replaces the strides of dimensions of size 1, which mean nothing, by those of a dense matrix.
    fn canonical(self, rows: usize, cols: usize, batch: [usize; 2]) -> Self {
        let mut operand = self;
        match (rows, cols) {
            (1, 1) => (operand.row_stride, operand.col_stride) = (1, 1),
            (1, _) if operand.col_stride == 1 => operand.row_stride = cols as i64,
            (_, 1) if operand.row_stride == 1 => operand.col_stride = rows as i64,
            (1, _) => operand.row_stride = 1,
            (_, 1) => operand.col_stride = 1,
            _ => {}
        }
        for dim in 0..2 {
            if batch[dim] == 1 {
                operand.batch_stride[dim] = 0;
            }
        }
        operand
    }

    /// Distance in elements from the first to the last element of the batch.
    fn extent(&self, rows: usize, cols: usize, batch: [usize; 2]) -> i64 {
        (rows as i64 - 1) * self.row_stride.abs()
            + (cols as i64 - 1) * self.col_stride.abs()
            + (batch[0] as i64 - 1) * self.batch_stride[0].abs()
            + (batch[1] as i64 - 1) * self.batch_stride[1].abs()
    }
}

/// Largest power of two that divides `bytes`, at most [`MAX_ALIGN`]; 0 is a multiple of everything.
pub fn power_of_two_in(bytes: u64) -> u32 {
    1 << bytes.trailing_zeros().min(MAX_ALIGN.trailing_zeros())
}

/// The function applied to `alpha * A @ B + bias`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// No function.
    #[default]
    Identity,
    /// max(x, 0)
    Relu,
    /// x * Phi(x) with the error function; candle's `gelu_erf`.
    GeluErf,
    /// The tanh approximation of it; candle's `gelu`.
    GeluTanh,
    /// x * sigmoid(x)
    Silu,
}

impl Activation {
    /// Every activation, for tables and tests.
    pub const ALL: [Activation; 5] =
        [Activation::Identity, Activation::Relu, Activation::GeluErf, Activation::GeluTanh, Activation::Silu];

    /// The function itself, in f64.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            Activation::Identity => x,
            Activation::Relu => {
                if x > 0.0 || x.is_nan() {
                    x
                } else {
                    0.0
                }
            }
            Activation::GeluErf => 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            Activation::GeluTanh => {
                let scale = (2.0 / std::f64::consts::PI).sqrt();
                0.5 * x * (1.0 + (scale * (x + 0.044715 * x * x * x)).tanh())
            }
            Activation::Silu => x / (1.0 + (-x).exp()),
        }
    }
}

/// Which dimension of the result a bias runs along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BiasAxis {
    /// One value per row.
    M,
    /// One value per column; what a Linear layer has.
    N,
}

/// `D = activation(alpha * A @ B + bias) + beta * C`
///
/// Floats are kept by their bits, so that a problem can be a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Epilogue {
    alpha_bits: u64,
    beta_bits: u64,
    /// Along which dimension a bias is added, if there is one.
    pub bias: Option<BiasAxis>,
    /// Applied before `beta * C` is added.
    pub activation: Activation,
    /// Where C lies; it is not read when beta is 0.
    pub c: Option<Operand>,
}

impl Default for Epilogue {
    fn default() -> Self {
        Self::new(1.0, 0.0)
    }
}

impl Epilogue {
    /// `alpha * A @ B`, and `beta` for a C that [`Epilogue::c`] describes.
    pub fn new(alpha: f64, beta: f64) -> Self {
        Self {
            alpha_bits: alpha.to_bits(),
            beta_bits: beta.to_bits(),
            bias: None,
            activation: Activation::Identity,
            c: None,
        }
    }

    /// Scale of the product.
    pub fn alpha(&self) -> f64 {
        f64::from_bits(self.alpha_bits)
    }

    /// Scale of C.
    pub fn beta(&self) -> f64 {
        f64::from_bits(self.beta_bits)
    }

    /// Whether C is read.
    pub fn reads_c(&self) -> bool {
        self.beta() != 0.0
    }

    /// Whether D is `alpha * A @ B` and nothing more.
    pub fn is_linear(&self) -> bool {
        !self.reads_c() && self.bias.is_none() && self.activation == Activation::Identity
    }

    /// What a kernel with this fusion does of it, and how many elementwise kernels do the rest.
    pub fn keep(&self, fusion: Fusion) -> (Self, usize) {
        let rest_c = usize::from(self.reads_c());
        let rest_bias_act = usize::from(self.bias.is_some()) + usize::from(self.activation != Activation::Identity);
        match fusion {
            Fusion::Full => (*self, 0),
            Fusion::BiasAct => (Self { beta_bits: 0f64.to_bits(), c: None, ..*self }, rest_c),
            Fusion::None => (Self::new(self.alpha(), 0.0), rest_c + rest_bias_act),
        }
    }

    fn transposed(self) -> Self {
        let bias = self.bias.map(|axis| match axis {
            BiasAxis::M => BiasAxis::N,
            BiasAxis::N => BiasAxis::M,
        });
        Self { bias, c: self.c.map(Operand::transposed), ..self }
    }
}

/// How exact an f32 product has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum F32Mode {
    /// Any kernel whose error is at most that of a cuBLAS SGEMM.
    #[default]
    Accurate,
    /// Fused multiply-adds in f32 only.
    Strict,
    /// Inputs rounded to TF32; what candle's `set_gemm_reduced_precision_f32` asks for.
    Tf32,
}

/// One matrix product, for a batch of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Rows of A and D.
    pub m: usize,
    /// Columns of B and D.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Outer and inner batch dimension.
    pub batch: [usize; 2],
    /// Element type of A, B, C and D.
    pub dtype: DType,
    /// The left operand, m x k.
    pub a: Operand,
    /// The right operand, k x n.
    pub b: Operand,
    /// The result, m x n.
    pub d: Operand,
    /// What is done to the product before it is stored.
    pub epilogue: Epilogue,
    /// How exact an f32 product has to be.
    pub f32_mode: F32Mode,
}

/// A [`Problem`] in the form that kernels are chosen for, and what was done to get there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Canonical {
    /// The problem that kernels see.
    pub problem: Problem,
    /// A and B were exchanged and every matrix transposed, because D was column-major.
    pub swapped: bool,
}

impl Problem {
    /// A dense problem without an epilogue, as the command line and the benchmarks ask for it.
    pub fn dense(m: usize, n: usize, k: usize, batch: usize, layout: Layout, dtype: DType) -> Self {
        let a_stride = [0, if batch > 1 { (m * k) as i64 } else { 0 }];
        let b_stride = [0, if batch > 1 { (n * k) as i64 } else { 0 }];
        let d_stride = [0, if batch > 1 { (m * n) as i64 } else { 0 }];
        let (a_rows, b_cols) = match layout {
            Layout::NN | Layout::Any => (true, false),
            Layout::NT => (true, true),
            Layout::TN => (false, false),
            Layout::TT => (false, true),
        };
        let a = if a_rows { Operand::row_major(k, a_stride) } else { Operand::col_major(m, a_stride) };
        let b = if b_cols { Operand::col_major(k, b_stride) } else { Operand::row_major(n, b_stride) };
        Self {
            m,
            n,
            k,
            batch: [1, batch],
            dtype,
            a,
            b,
            d: Operand::row_major(n, d_stride),
            epilogue: Epilogue::default(),
            f32_mode: F32Mode::default(),
        }
    }

    /// Number of matrices in the batch.
    pub fn batch_count(&self) -> usize {
        self.batch[0] * self.batch[1]
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.m * self.n * self.batch_count() == 0
    }

    /// Floating-point operations of the product.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64 * self.batch_count() as f64
    }

    /// Bytes that must move through device memory: every operand once, broadcast ones once in all.
    pub fn bytes(&self) -> f64 {
        let times = |operand: &Operand| {
            let dims = self.batch.iter().zip(operand.batch_stride);
            dims.map(|(&size, stride)| if stride == 0 { 1.0 } else { size as f64 }).product::<f64>()
        };
        let (m, n, k) = (self.m as f64, self.n as f64, self.k as f64);
        let c = self.epilogue.c.filter(|_| self.epilogue.reads_c()).map_or(0.0, |c| m * n * times(&c));
        (m * k * times(&self.a) + k * n * times(&self.b) + m * n * times(&self.d) + c) * self.dtype.bytes() as f64
    }

    /// The layout of (A, B). Where a matrix is a single row or column, both letters are true; the one with K contiguous is
    /// given, as kernels like that best.
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

    /// Alignment in bytes of each operand, by name. D counts with C where C is read.
    pub fn alignments(&self) -> [(&'static str, u32); 4] {
        let c = self.epilogue.c.filter(|_| self.epilogue.reads_c());
        [
            ("A", self.a.align(self.dtype)),
            ("B", self.b.align(self.dtype)),
            ("C", c.map_or(MAX_ALIGN, |c| c.align(self.dtype))),
            ("D", self.d.align(self.dtype)),
        ]
    }

    /// The largest distance in elements inside one operand, for kernels with 32-bit indices.
    pub fn largest_extent(&self) -> i64 {
        let Problem { m, n, k, batch, .. } = *self;
        let c = self.epilogue.c.map_or(0, |c| c.extent(m, n, batch));
        [self.a.extent(m, k, batch), self.b.extent(k, n, batch), self.d.extent(m, n, batch), c]
            .into_iter()
            .max()
            .unwrap_or(0)
    }

    /// The form that kernels are chosen for: strides of size-1 dimensions dropped, batch dimensions that lie behind each
    /// other merged, a batch over one broadcast B folded into M, and D row-major.
    pub fn canonical(&self) -> Canonical {
        let mut problem = self.canonical_strides();
        let swapped = problem.d.col_stride != 1 && problem.d.row_stride == 1;
        if swapped {
            problem = problem.transposed().canonical_strides();
        }
        problem.merge_batch();
        problem.fold_batch_into_m();
        Canonical { problem: problem.canonical_strides(), swapped }
    }

    /// The same problem with the strides of size-1 dimensions, which mean nothing, replaced by those of dense matrices.
    pub fn canonical_strides(&self) -> Self {
        let Problem { m, n, k, batch, .. } = *self;
        let mut epilogue = self.epilogue;
        epilogue.c = epilogue.c.filter(|_| epilogue.reads_c()).map(|c| c.canonical_d(m, n, batch));
        Self {
            a: self.a.canonical(m, k, batch),
            b: self.b.canonical(k, n, batch),
            d: self.d.canonical_d(m, n, batch),
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

    fn operands_mut(&mut self) -> impl Iterator<Item = &mut Operand> {
        [Some(&mut self.a), Some(&mut self.b), Some(&mut self.d), self.epilogue.c.as_mut()].into_iter().flatten()
    }

    /// Makes two batch dimensions one where every operand allows it.
    fn merge_batch(&mut self) {
        let [outer, inner] = self.batch;
        if outer == 1 || inner == 1 {
            let dim = if outer == 1 { 1 } else { 0 };
            self.operands_mut().for_each(|o| o.batch_stride = [0, o.batch_stride[dim]]);
        } else if self.operands_mut().all(|o| o.batch_stride[0] == o.batch_stride[1] * inner as i64) {
            self.operands_mut().for_each(|o| o.batch_stride = [0, o.batch_stride[1]]);
        } else {
            return;
        }
        self.batch = [1, outer * inner];
    }

    /// One B for the whole batch, and rows of A, C and D that go on evenly from one matrix to the next: a single product.
    fn fold_batch_into_m(&mut self) {
        let [outer, inner] = self.batch;
        if outer != 1 || inner == 1 || self.b.batch_stride[1] != 0 || self.epilogue.bias == Some(BiasAxis::M) {
            return;
        }
        let m = self.m;
        // A matrix of one row has no row stride of its own: the batch stride becomes it.
        let goes_on = |o: &Operand| m == 1 || o.batch_stride[1] == o.row_stride * m as i64;
        let contiguous = |o: &Operand| o.col_stride == 1 || m > 1;
        if self.operands_mut().enumerate().all(|(i, o)| i == 1 || (goes_on(o) && contiguous(o))) {
            for (i, o) in self.operands_mut().enumerate() {
                if i != 1 && m == 1 {
                    o.row_stride = o.batch_stride[1];
                }
                o.batch_stride = [0, 0];
            }
            self.m = m * inner;
            self.batch = [1, 1];
        }
    }
}

impl Operand {
    /// As `canonical`, but a single row or column counts as row-major where it can: D is written row by row.
    fn canonical_d(self, rows: usize, cols: usize, batch: [usize; 2]) -> Self {
        let mut operand = self.canonical(rows, cols, batch);
        if cols == 1 && operand.col_stride != 1 {
            operand.col_stride = 1;
            operand.row_stride = self.row_stride;
        }
        operand
    }
}

/// The batch dimensions of a product reduced to at most two, with the strides that each operand then has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch<const OPERANDS: usize> {
    /// Outer and inner size.
    pub sizes: [usize; 2],
    /// Outer and inner stride of every operand.
    pub strides: [[i64; 2]; OPERANDS],
}

impl<const OPERANDS: usize> Batch<OPERANDS> {
    /// Drops dimensions of size 1 and merges neighbours that lie behind each other in every operand. `None` when more than
    /// two remain.
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
