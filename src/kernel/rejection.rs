//! The reasons why a kernel does not run a problem.

use crate::arch::Arch;
use crate::config::Config;
use crate::problem::f32_mode::Math;
use crate::problem::{F32Mode, Layout, Types};

/// Why a kernel was rejected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// The kernel's machine code does not run on the device.
    #[error("built for {built}, the device has compute capability {}.{}", device / 10, device % 10)]
    Arch {
        /// The row's architecture.
        built: Arch,
        /// The device's compute capability.
        device: u16,
    },
    /// The kernel is in the table but not in this build.
    #[error("not in this build; build with the {}", in_words(features))]
    NotBuilt {
        /// The Cargo features that are off and that build the kernel together.
        features: Vec<String>,
    },
    /// The kernel was left out of this build: a development build, or a build by a CUDA that cannot compile the kernel.
    #[error("left out by TILEGEMM_PROFILE, or by a CUDA older than 13.3, which has no cuTile C++")]
    NotInProfile,
    /// Other kernels win on this architecture, or no card has run the kernel: the kernel runs by name only.
    #[error("not known to win here; runs by name only, in a build with TILEGEMM_PROFILE=every and by TILEGEMM_FORCE")]
    ByName,
    /// The device has too little shared memory for a thread block.
    #[error("needs {need} bytes of shared memory, a thread block of this device has {have}")]
    SharedMemory {
        /// The kernel's shared memory of a thread block, in bytes.
        need: u32,
        /// The device's most shared memory of a thread block, in bytes.
        have: u32,
    },
    /// The kernel has another type.
    #[error("computes in {have}, the problem is in {need}")]
    Types {
        /// The kernel's type.
        have: Box<Types>,
        /// The problem's type.
        need: Box<Types>,
    },
    /// Blocks of B are cut, or do not lie one after the other along K.
    #[error("B has blocks of {block} numbers along K, {what} is {have}")]
    Blocks {
        /// Numbers of a block.
        block: usize,
        /// K, or a stride.
        what: &'static str,
        /// The problem's extent or stride, in elements; expected a multiple of the block, and 1 along K.
        have: i64,
    },
    /// The kernel takes no factors of the operand.
    #[error("takes no scales of {operand}")]
    Scales {
        /// A, B or D.
        operand: &'static str,
    },
    /// The factors of an operand are none that kernels read.
    #[error("the scales of {operand} {what}")]
    Factors {
        /// A, B or D.
        operand: &'static str,
        /// What is wrong, and what is expected.
        what: &'static str,
    },
    /// The kernel does not take groups of rows with a B each.
    #[error("takes one B for all rows, the problem has groups of rows")]
    Groups,
    /// The kernel takes groups of rows only.
    #[error("takes groups of rows with a B each, the problem has one B for all rows")]
    NoGroups,
    /// The kernel takes gated products only.
    #[error("takes gated products only, in halves")]
    NoGate,
    /// The kernel's arithmetic is not exact enough.
    #[error("multiplies f32 as {offers}, the f32 mode is {asked}")]
    Precision {
        /// The problem's mode.
        asked: F32Mode,
        /// The kernel's arithmetic.
        offers: Math,
    },
    /// The sums of the kernel are the tensor cores', and the problem asks for sums in f32.
    #[error("has the tensor cores' sums over all of K, the problem asks for no fast accumulation")]
    FastAccumulation,
    /// K is too short for the kernel to be as exact as fused multiply-adds, or to be any faster.
    #[error("K is {have}, at least {least} needed to multiply f32 as {math}")]
    ShortSums {
        /// The kernel's arithmetic.
        math: Math,
        /// The problem's K.
        have: usize,
        /// The kernel's least K.
        least: usize,
    },
    /// The kernel needs more device memory beside the operands than the policy allows.
    #[error("needs a workspace of {}, there are {} (TILEGEMM_WORKSPACE)", mib(*need), mib(*have))]
    Workspace {
        /// The kernel's least workspace, in bytes.
        need: u64,
        /// The policy's workspace, in bytes.
        have: u64,
    },
    /// The kernel reads another layout.
    #[error("reads {have}, the operands are {need}")]
    Layout {
        /// The kernel's layout.
        have: Layout,
        /// The problem's layout.
        need: Layout,
    },
    /// A pointer or stride has too small an alignment.
    #[error("{operand} is aligned to {have} bytes, {need} needed")]
    Alignment {
        /// A, B, C or D.
        operand: &'static str,
        /// The kernel's alignment.
        need: u32,
        /// The problem's alignment.
        have: u32,
    },
    /// Rows end inside a 16-byte piece.
    #[error("{dimension} is {have}, a multiple of {multiple} needed")]
    RowLength {
        /// M, N or K.
        dimension: &'static str,
        /// The problem's extent.
        have: usize,
        /// The kernel's multiple.
        multiple: u32,
    },
    /// The rows of D or C are not contiguous.
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
    /// The kernel does not fuse this epilogue.
    #[error("does not fuse {what}")]
    Epilogue {
        /// The missing part.
        what: &'static str,
    },
    /// The kernel has a smaller limit.
    #[error("takes at most {most} {what}, the problem has {have}")]
    TooMany {
        /// Rows, columns, matrices, tiles or elements.
        what: &'static str,
        /// The problem's number.
        have: usize,
        /// The kernel's limit.
        most: usize,
    },
    /// The kernel supports a single batch stride per operand.
    #[error("takes one batch dimension, the operands need two")]
    Batch,
    /// TMA cannot address the operand.
    #[error("{operand} has a stride of {have} elements, at least 0 and at most {most} needed")]
    Stride {
        /// A, B, C or D.
        operand: &'static str,
        /// The problem's stride.
        have: i64,
        /// TMA's largest stride.
        most: u64,
    },
    /// A cluster has more blocks than the device has multiprocessors.
    #[error("needs {need} multiprocessors, the device has {have}")]
    Multiprocessors {
        /// Blocks of a cluster.
        need: u32,
        /// The device's multiprocessors.
        have: u32,
    },
    /// A leading dimension does not fit the vendor library's interface.
    #[error("rows of {operand} are {have} elements apart, cuBLAS takes leading dimensions of 32 bits")]
    LeadingDimension {
        /// A, B or D.
        operand: &'static str,
        /// The distance of the operand's rows, or of its columns where columns are contiguous.
        have: i64,
    },
    /// The product has an empty sum.
    #[error("K is 0")]
    EmptyK,
    /// The kernel multiplies without a sum over K.
    #[error("takes a K of 1, the problem has {have}")]
    Sum {
        /// The problem's K.
        have: usize,
    },
    /// The kernel is not compiled for this configuration, or cannot run the problem in the configuration.
    #[error("cannot run it as {asked}; it can as {}", list(legal))]
    Configuration {
        /// The configuration asked for by name.
        asked: Config,
        /// The configurations in which the kernel can run the problem.
        legal: Vec<Config>,
    },
    /// The vendor library is switched off.
    #[error("the vendor library is switched off")]
    VendorOff,
}

impl Rejection {
    /// Refuses the first of these numbers that is above its limit: what is counted, the problem's number, and the most that a kernel takes.
    pub(crate) fn check_counts<const N: usize>(counts: [(&'static str, usize, usize); N]) -> Result<(), Self> {
        match counts.into_iter().find(|(_, have, most)| have > most) {
            Some((what, have, most)) => Err(Self::TooMany { what, have, most }),
            None => Ok(()),
        }
    }
}

/// `feature gguf`, or `features gguf and experts`.
pub(crate) fn in_words(features: &[String]) -> String {
    format!("feature{} {}", if features.len() > 1 { "s" } else { "" }, features.join(" and "))
}

fn list(configurations: &[Config]) -> String {
    match configurations {
        [] | [Config { tile: [0, 0], cluster: [0, 0], split: 0, .. }] => "it is, without a configuration".into(),
        all => all.iter().map(Config::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn mib(bytes: u64) -> String {
    match bytes as f64 / f64::from(1 << 20) {
        0.0 => "0 MiB".into(),
        small if small < 10.0 => format!("{:.1} MiB", small.max(0.1)),
        large => format!("{large:.0} MiB"),
    }
}
