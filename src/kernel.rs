//! What can run it: the rows of `csrc/kernels.toml`, and which problems each of them supports.

use crate::arch::{Arch, DeviceInfo};
use crate::problem::{DType, F32Mode, Layout, Operand, Problem};
use crate::workspace::{self, Need};
use std::fmt;

pub use crate::problem::epilogue::Fusion;
pub use crate::problem::f32_mode::Math;

mod limits;

/// The source a kernel is compiled from, which fixes what it can do beyond its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// The vendor library.
    Cublas,
    /// `reference.cu`: any problem, slowly.
    Reference,
    /// `simt_gemm.cu`: CuTe, f32 on FMA units.
    SimtGemm,
    /// `split_k.cu`: any strides, with K split over the card.
    SplitK,
    /// `gemv.cu`: a few rows, on the CUDA cores, or on tensor cores from five rows on in 16 bits.
    Gemv,
    /// `gevm.cu`: a few rows with the rows of B contiguous, on the CUDA cores.
    Gevm,
    /// `outer.cu`: K = 1 in f32.
    Outer,
    /// `sm90_skinny.cu`: up to 128 rows, TMA and WGMMA with the operands exchanged.
    Sm90Skinny,
    /// `sm90_wave.cu`: some 65 to 800 rows, TMA and WGMMA in one wave of tiles.
    Sm90Wave,
    /// `sm90_gemm.cu`: CUTLASS 3, TMA and WGMMA.
    Sm90Gemm,
    /// `sm90_bf16x6.cu`: f32 by six products of bf16 parts, TMA and WGMMA.
    Sm90Bf16x6,
    /// `sm90_bf16x6_direct.cu`: the same for few rows and a shallow K, with nothing prepared beforehand.
    Sm90Bf16x6Direct,
    /// `sm90_tf32.cu`: f32 by one TF32 product, TMA and WGMMA.
    Sm90Tf32,
    /// `sm90_sgemm.cu`: f32 by fused multiply-adds, TMA.
    Sm90Sgemm,
    /// `sm90_dgemm.cu`: f64 on tensor cores, TMA.
    Sm90Dgemm,
    /// `tile_gemm.cu`: cuTile C++.
    TileGemm,
}

/// One kernel: a table row for one arch, dtype and layout.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct KernelDesc {
    /// CUTLASS grammar, computed from the row.
    pub name: &'static str,
    /// Which source.
    pub family: Family,
    /// Compiled for.
    pub arch: Arch,
    /// Inputs and output.
    pub dtype: DType,
    /// How it multiplies.
    pub math: Math,
    /// Layout of (A, B).
    pub layout: Layout,
    /// M, N, K of an output tile and a pipeline stage; zeros for the vendor library.
    pub tile: [u32; 3],
    /// Blocks of a cluster along M and N.
    pub cluster: [u32; 2],
    /// Widths of tiles that the launch chooses from; empty: that of `tile`.
    pub widths: &'static [u32],
    /// Parts of K that the blocks of a cluster add up.
    pub split: u32,
    /// Pipeline depth; 0: as many as shared memory holds.
    pub stages: u32,
    /// Worker warps; 0: the family's own number.
    pub warps: u32,
    /// Bytes that pointers and strides must be multiples of.
    pub align: u32,
    /// What it fuses.
    pub fusion: Fusion,
    /// Schedule, where the family has several; `exchanged`: B is on the tensor cores' M side.
    pub schedule: &'static str,
    /// The shapes that earn the row its place.
    pub why: &'static str,
    #[serde(skip)]
    built: bool,
}

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// Why a kernel was not taken.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Rejection {
    /// Its machine code does not run there.
    #[error("built for {built}, the device has compute capability {}.{}", device / 10, device % 10)]
    Arch {
        /// The row's architecture.
        built: Arch,
        /// The device's compute capability.
        device: u16,
    },
    /// It is in the table but not in this build.
    #[error("not in this build; enable the feature {feature}")]
    NotBuilt {
        /// The Cargo feature that builds it.
        feature: String,
    },
    /// It was left out of this build, which is for development.
    #[error("left out by TILEGEMM_PROFILE=fast; build without that")]
    NotInProfile,
    /// It computes in another type.
    #[error("computes in {have}, the problem is in {need}")]
    DType {
        /// The kernel's.
        have: DType,
        /// The problem's.
        need: DType,
    },
    /// It is not exact enough.
    #[error("multiplies f32 as {offers}, the f32 mode is {asked}")]
    Precision {
        /// The problem's mode.
        asked: F32Mode,
        /// The kernel's arithmetic.
        offers: Math,
    },
    /// Its sums are too short to be as exact as fused multiply-adds, or any faster.
    #[error("K is {have}, at least {least} needed to multiply f32 as {math}")]
    ShortSums {
        /// The kernel's arithmetic.
        math: Math,
        /// The problem's K.
        have: usize,
        /// What the kernel needs.
        least: usize,
    },
    /// It needs more device memory beside the operands than there is.
    #[error("needs a workspace of {}, there are {} (TILEGEMM_WORKSPACE)", mib(*need), mib(*have))]
    Workspace {
        /// What the kernel needs at least, in bytes.
        need: u64,
        /// What the policy allows.
        have: u64,
    },
    /// It reads another layout.
    #[error("reads {have}, the operands are {need}")]
    Layout {
        /// The kernel's.
        have: Layout,
        /// The problem's.
        need: Layout,
    },
    /// A pointer or stride is not aligned enough.
    #[error("{operand} is aligned to {have} bytes, {need} needed")]
    Alignment {
        /// A, B, C or D.
        operand: &'static str,
        /// What the kernel needs.
        need: u32,
        /// What the problem has.
        have: u32,
    },
    /// Rows end inside a 16-byte piece.
    #[error("{dimension} is {have}, a multiple of {multiple} needed")]
    RowLength {
        /// M, N or K.
        dimension: &'static str,
        /// The problem's.
        have: usize,
        /// What the kernel needs.
        multiple: u32,
    },
    /// D or C has no contiguous rows.
    #[error("{operand} is not row-major")]
    NotRowMajor {
        /// C or D.
        operand: &'static str,
    },
    /// Rows of an operand overlap, as in a broadcast.
    #[error("rows of {operand} overlap (a stride is smaller than the row)")]
    Overlap {
        /// A, B or C.
        operand: &'static str,
    },
    /// It does not apply this epilogue.
    #[error("does not fuse {what}")]
    Epilogue {
        /// The missing part.
        what: &'static str,
    },
    /// It is written for fewer.
    #[error("takes at most {most} {what}, the problem has {have}")]
    TooMany {
        /// Rows, columns, matrices, tiles or elements.
        what: &'static str,
        /// The problem's.
        have: usize,
        /// What the kernel takes.
        most: usize,
    },
    /// It takes a single batch stride per operand.
    #[error("takes one batch dimension, the operands need two")]
    Batch,
    /// An index would not fit.
    #[error("an operand spans {extent} elements, more than its 32-bit indices reach")]
    Extent {
        /// The largest distance in an operand.
        extent: i64,
    },
    /// TMA does not address it.
    #[error("{operand} has a stride of {have} elements, at least 0 and at most {most} needed")]
    Stride {
        /// A, B, C or D.
        operand: &'static str,
        /// The problem's.
        have: i64,
        /// What TMA takes.
        most: u64,
    },
    /// A cluster has more blocks than the device has multiprocessors.
    #[error("needs {need} multiprocessors, the device has {have}")]
    Multiprocessors {
        /// Blocks of a cluster.
        need: u32,
        /// The device's.
        have: u32,
    },
    /// A leading dimension does not fit the vendor library's interface.
    #[error("rows of {operand} are {have} elements apart, cuBLAS takes leading dimensions of 32 bits")]
    LeadingDimension {
        /// A, B or D.
        operand: &'static str,
        /// The distance of its rows, or of its columns where those are contiguous.
        have: i64,
    },
    /// There is nothing to multiply.
    #[error("K is 0")]
    EmptyK,
    /// It multiplies without adding up.
    #[error("takes a K of 1, the problem has {have}")]
    Sum {
        /// The problem's K.
        have: usize,
    },
    /// The vendor library is switched off.
    #[error("the vendor library is switched off")]
    VendorOff,
}

fn mib(bytes: u64) -> String {
    match bytes as f64 / f64::from(1 << 20) {
        0.0 => "0 MiB".into(),
        small if small < 10.0 => format!("{:.1} MiB", small.max(0.1)),
        large => format!("{large:.0} MiB"),
    }
}

/// Splitting into parts leaves out products of the lowest ones, which is less than the rounding of sums from this K on.
const LEAST_SPLIT_K: usize = 64;
/// One pipeline stage. Memory decides how fast shorter sums are, so they stay exact: candle's RoPE tables have K = 1.
const LEAST_TF32_K: usize = 32;

impl KernelDesc {
    /// The kernel of this name, from the table.
    pub fn by_name(name: &str) -> Option<&'static KernelDesc> {
        KERNELS.iter().find(|kernel| kernel.name == name)
    }

    /// Its position in [`KERNELS`].
    pub fn index(&'static self) -> usize {
        (std::ptr::from_ref(self) as usize - KERNELS.as_ptr() as usize) / size_of::<Self>()
    }

    /// Whether it is in this build: its arch feature and its family's feature are on, and the build profile has it.
    pub fn is_built(&self) -> bool {
        self.built
    }

    /// What would bring it into the build.
    pub(crate) fn not_built(&self) -> Rejection {
        let feature = match self.family {
            Family::Cublas => "cuda".into(),
            Family::TileGemm if !cfg!(feature = "cutile") => "cutile".into(),
            _ if BUILT_ARCHS.contains(&self.arch.capability) => return Rejection::NotInProfile,
            _ => format!("sm{}", self.arch.capability),
        };
        Rejection::NotBuilt { feature }
    }

    /// Whether it can run `problem`, which must be canonical, on `device`. This is the one statement of what a kernel
    /// supports, its limits in `kernel/limits.rs`; the kernels themselves check again and refuse rather than compute something else.
    pub fn supports(&self, problem: &Problem, device: &DeviceInfo) -> Result<(), Rejection> {
        if !self.arch.runs_on(device.capability) {
            return Err(Rejection::Arch { built: self.arch, device: device.capability });
        }
        if self.dtype != problem.dtype {
            return Err(Rejection::DType { have: self.dtype, need: problem.dtype });
        }
        self.supports_precision(problem)?;
        self.supports_layout(problem)?;
        self.supports_epilogue(problem)?;
        if problem.k == 0 && self.family != Family::Reference {
            return Err(Rejection::EmptyK);
        }
        if problem.k != 1 && self.family == Family::Outer {
            return Err(Rejection::Sum { have: problem.k });
        }
        limits::check_cluster(self, device)?;
        self.supports_leading_dimensions(problem)?;
        self.supports_extent(problem)
    }

    /// Device memory that it needs beside the operands of the canonical `problem`.
    pub fn workspace(&self, problem: &Problem) -> Need {
        workspace::need(self, problem)
    }

    /// Whether `sm90_tf32.cu` takes B for the side of wgmma that has 128 rows.
    pub(crate) fn exchanges_operands(&self) -> bool {
        self.family == Family::Sm90Tf32 && (self.layout == Layout::NN || self.tile[0] != 128)
    }

    /// Whether A and B of `problem` are transposed into the workspace, as f32.
    pub(crate) fn transposes(&self, problem: &Problem) -> [bool; 2] {
        match (self.family, self.layout) {
            (Family::Sm90Tf32, Layout::TN) => [self.exchanges_operands(), !self.exchanges_operands()],
            (Family::Sm90Sgemm, layout) if self.tile[1] == 256 => {
                [matches!(layout, Layout::NN | Layout::NT), matches!(layout, Layout::NT | Layout::TT)]
            }
            (Family::Sm90Sgemm, Layout::NT) => [problem.m < problem.n, problem.m >= problem.n],
            _ => [false, false],
        }
    }

    fn supports_precision(&self, problem: &Problem) -> Result<(), Rejection> {
        if !problem.f32_mode.admits(self.math) {
            return Err(Rejection::Precision { asked: problem.f32_mode, offers: self.math });
        }
        let (math, have) = (self.math, problem.k);
        let least = match math {
            Math::Native => 0,
            Math::Tf32 => LEAST_TF32_K,
            Math::Bf16x6 => LEAST_SPLIT_K,
        };
        if have < least {
            return Err(Rejection::ShortSums { math, have, least });
        }
        Ok(())
    }

    fn supports_layout(&self, problem: &Problem) -> Result<(), Rejection> {
        if self.layout == Layout::Any {
            return limits::check(self, problem);
        }
        if problem.layout() != self.layout {
            return Err(Rejection::Layout { have: self.layout, need: problem.layout() });
        }
        limits::check(self, problem)?;
        // The SIMT kernel indexes element by element; the others hand a matrix with contiguous rows to TMA or cuBLAS.
        if self.family == Family::SimtGemm {
            return self.supports_alignment(&problem.alignments()[..2]);
        }
        if problem.d.col_stride != 1 {
            return Err(Rejection::NotRowMajor { operand: "D" });
        }
        if problem.epilogue.c.is_some_and(|c| c.col_stride != 1) {
            return Err(Rejection::NotRowMajor { operand: "C" });
        }
        // The others read such a C row by row.
        if self.family == Family::TileGemm && problem.epilogue.c.is_some_and(|c| c.row_stride <= 0) {
            return Err(Rejection::Overlap { operand: "C" });
        }
        let (a, b) = (problem.a, problem.b);
        if !spans(a.row_stride, a.col_stride, problem.m, problem.k) {
            return Err(Rejection::Overlap { operand: "A" });
        }
        if !spans(b.row_stride, b.col_stride, problem.k, problem.n) {
            return Err(Rejection::Overlap { operand: "B" });
        }
        let one_batch =
            matches!(self.family, Family::Cublas | Family::Sm90Skinny | Family::Sm90Wave | Family::Sm90Gemm);
        if one_batch && problem.batch[0] > 1 {
            return Err(Rejection::Batch);
        }
        // Those written in CUDA store element by element where they have to, and one loads A so. What sm90_bf16x6 brings
        // into another form beforehand is read so, too, and what sm90_sgemm transposes.
        let alignments = problem.alignments();
        self.supports_alignment(match (self.family, self.layout) {
            (Family::Sm90Bf16x6, Layout::NN | Layout::NT) => &alignments[..1],
            (Family::Sm90Bf16x6, _) => &[],
            (Family::Sm90Sgemm, _) => match self.transposes(problem) {
                [false, false] => &alignments[..2],
                [false, true] => &alignments[..1],
                [true, false] => &alignments[1..2],
                [true, true] => &[],
            },
            (Family::Gevm, _) => &alignments[1..2],
            (Family::Gemv | Family::Sm90Skinny | Family::Sm90Wave, _) => &alignments[..2],
            (Family::Sm90Bf16x6Direct | Family::Sm90Dgemm, _) => &alignments[..2],
            _ => &alignments,
        })?;
        limits::check_strides(self, problem)?;
        self.supports_row_length(problem)
    }

    /// TMA moves whole 16-byte pieces of a row. Loads clip what is past the end, but stores do not, and cuTile proves TMA only
    /// for operands whose contiguous extent is a multiple.
    fn supports_row_length(&self, problem: &Problem) -> Result<(), Rejection> {
        let multiple = self.align / self.dtype.bytes() as u32;
        let a_row = if problem.a.col_stride == 1 { ("K", problem.k) } else { ("M", problem.m) };
        let b_row = if problem.b.row_stride == 1 { ("K", problem.k) } else { ("N", problem.n) };
        let rows: &[_] = match self.family {
            Family::Gevm | Family::Sm90Gemm | Family::Sm90Tf32 => &[("N", problem.n)],
            Family::TileGemm => &[("N", problem.n), a_row, b_row],
            Family::Gemv => &[("K", problem.k)],
            _ => &[],
        };
        match rows.iter().find(|(_, length)| length % multiple as usize != 0) {
            Some(&(dimension, have)) => Err(Rejection::RowLength { dimension, have, multiple }),
            None => Ok(()),
        }
    }

    fn supports_alignment(&self, operands: &[(&'static str, u32)]) -> Result<(), Rejection> {
        match operands.iter().find(|(_, have)| *have < self.align) {
            Some(&(operand, have)) => Err(Rejection::Alignment { operand, need: self.align, have }),
            None => Ok(()),
        }
    }

    fn supports_epilogue(&self, problem: &Problem) -> Result<(), Rejection> {
        let epilogue = &problem.epilogue;
        if self.fusion < Fusion::BiasAct && epilogue.bias.is_some() {
            return Err(Rejection::Epilogue { what: "a bias" });
        }
        if self.fusion < Fusion::BiasAct && epilogue.activation != Default::default() {
            return Err(Rejection::Epilogue { what: "an activation" });
        }
        // cuBLAS adds to D in place.
        let adds = self.family == Family::Cublas && epilogue.in_place && epilogue.c == Some(problem.d);
        if self.fusion < Fusion::Full && epilogue.reads_c() && !adds {
            return Err(Rejection::Epilogue { what: "beta * C" });
        }
        Ok(())
    }

    /// cuBLAS takes leading dimensions of 32 bits.
    fn supports_leading_dimensions(&self, problem: &Problem) -> Result<(), Rejection> {
        if self.family != Family::Cublas {
            return Ok(());
        }
        let leading = |o: &Operand| if o.col_stride == 1 { o.row_stride } else { o.col_stride };
        let mut operands =
            [("A", problem.a), ("B", problem.b), ("D", problem.d)].map(|(name, o)| (name, leading(&o))).into_iter();
        match operands.find(|(_, have)| i32::try_from(*have).is_err()) {
            Some((operand, have)) => Err(Rejection::LeadingDimension { operand, have }),
            None => Ok(()),
        }
    }

    fn supports_extent(&self, problem: &Problem) -> Result<(), Rejection> {
        if self.family != Family::Cublas {
            return Ok(()); // `limits` has the others
        }
        let largest = [problem.m, problem.n, problem.k, problem.batch_count()].into_iter().max().unwrap_or(0) as i64;
        if largest > i64::from(i32::MAX) {
            return Err(Rejection::Extent { extent: largest });
        }
        Ok(())
    }
}

/// Whether a matrix with one contiguous dimension keeps its rows (or columns) apart.
fn spans(row_stride: i64, col_stride: i64, rows: usize, cols: usize) -> bool {
    (col_stride == 1 && (row_stride >= cols as i64 || rows == 1))
        || (row_stride == 1 && (col_stride >= rows as i64 || cols == 1))
}

impl fmt::Display for KernelDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}
