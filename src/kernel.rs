//! A kernel's descriptor: its row of the table, the problems that it supports, and the trait of its family.

use crate::arch::{Arch, DeviceInfo};
use crate::config::Config;
use crate::problem::{Layout, Problem, Types};
use crate::workspace;
use crate::workspace::partition::{Footprint, Need};
use std::fmt;

pub use crate::problem::epilogue::Fusion;
pub use crate::problem::f32_mode::Math;
pub(crate) use rejection::in_words;
pub use rejection::Rejection;
pub use sums::SumOrder;

mod limits;
mod rejection;
mod sums;

use limits::Row;
pub(crate) use limits::{Extent, Gating, Grouping, Limits, Tiles, INT};

/// Shared memory that the system takes of each thread block (CUDA C++ Programming Guide, "Compute Capability 8.x", "Shared Memory").
const BLOCK_BYTES: u32 = 1024;

/// A kernel's role in the dispatcher's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// A kernel of ours, chosen by its estimate.
    Kernel,
    /// The vendor library.
    Vendor,
    /// Taken only where no other kernel runs the problem.
    LastResort,
    /// Run only by name ([`Policy::force`](crate::dispatch::Policy::force)): other kernels win on the kernel's architecture, or no card has run
    /// the kernel.
    ByName,
}

/// The subject of the dispatcher's questions to a family: a kernel, a problem and a device.
#[doc(hidden)] // `tilegemm fit` asks, too
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// The kernel.
    pub kernel: &'a KernelDesc,
    /// Canonical, not empty, and supported by the kernel.
    pub problem: &'a Problem,
    /// The device.
    pub device: &'a DeviceInfo,
    /// Bytes of device memory that the kernel may use beside the operands.
    pub workspace: u64,
}

/// Time of an epilogue for each element of D, beside the bare product in aligned rows, in nanoseconds of one multiprocessor.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ElementCost {
    /// An instruction of the activation (csrc/common/activation.hpp).
    pub instruction: f64,
    /// The bias, where there is an activation.
    pub bias: f64,
    /// `beta * C`, beside the bytes of C.
    pub residual: f64,
    /// Rows of D that do not start at multiples of 16 bytes.
    pub unaligned: f64,
}

impl ElementCost {
    /// From a family's list: an instruction, the bias, `beta * C`, unaligned rows.
    pub fn of([instruction, bias, residual, unaligned]: [f64; 4]) -> Self {
        Self { instruction, bias, residual, unaligned }
    }
}

/// A family: the kernels of one source, which differ in their rows.
pub(crate) trait Family: Sync {
    /// The limits of the kernel: those of the table, unless the problem changes them.
    fn limits(&self, kernel: &KernelDesc, _problem: &Problem) -> Limits {
        kernel.limits
    }

    /// Whether the family takes a problem that is within the limits.
    fn supports(&self, _kernel: &KernelDesc, _problem: &Problem) -> Result<(), Rejection> {
        Ok(())
    }

    /// The workspace that the kernel needs for each row of A and each column of B.
    fn footprint(&self, _kernel: &KernelDesc, _problem: &Problem) -> Option<Footprint> {
        None
    }

    /// The workspace that a configuration needs for the whole product, in bytes.
    fn scratch_bytes(&self, _problem: &Problem, _config: &Config) -> u64 {
        0
    }

    /// Shared memory of a thread block of the kernel, in bytes; 0 where every card has enough.
    fn shared_bytes(&self, _kernel: &KernelDesc) -> u32 {
        0
    }

    /// The configurations in which the kernel can run the problem; one of all zeros where there is nothing to choose.
    fn configurations(&self, _case: &Case) -> Vec<Config> {
        vec![Config::default()]
    }

    /// The configuration that the family's model takes, one of `configurations`. A family that has several overrides both.
    fn choose(&self, _case: &Case) -> Config {
        Config::default()
    }

    /// The configuration that the family's model takes, and its estimate.
    fn chosen(&self, case: &Case) -> (Config, f64) {
        let config = self.choose(case);
        (config, self.estimate(case, &config))
    }

    /// The other configurations that may be as fast as `chosen`, with their estimates, which are below `most_us`.
    fn rivals(&self, case: &Case, chosen: &Config, most_us: f64) -> Vec<(Config, f64)> {
        let others = self.configurations(case).into_iter().filter(|config| config != chosen);
        others.map(|config| (config, self.estimate(case, &config))).filter(|(_, us)| *us < most_us).collect()
    }

    /// The order in which a kernel adds up the products of an element of D in this configuration; `None` where M or the element's place
    /// decides.
    fn sums(&self, _kernel: &KernelDesc, _config: &Config) -> Option<SumOrder> {
        None
    }

    /// Whether the kernel may run beside the kernel before it in the stream, which may, too, and reads the same A. Such kernels have no workspace, and let the next
    /// kernel start only when all kernels before them have ended.
    #[cfg(any(test, all(feature = "candle", feature = "cuda")))]
    fn runs_beside(&self, _kernel: &KernelDesc, _problem: &Problem, _config: &Config) -> bool {
        false
    }

    /// Expected time of the bare product in this configuration, in microseconds.
    fn estimate(&self, case: &Case, config: &Config) -> f64;

    /// Time that epilogues of the kernel add.
    fn element_cost(&self, _kernel: &KernelDesc) -> ElementCost {
        ElementCost { instruction: 0.009, bias: 0.35, ..ElementCost::default() }
    }

    /// The share of other kernels' estimates that an estimate of this family has to be below; less than 1 where this family's
    /// estimates are less exact.
    fn lead(&self) -> f64 {
        1.0
    }
}

/// A kernel's link to its family.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    /// With numbers for estimates that a card may have others of ([`Model`](crate::family::model::Model)).
    pub family: &'static dyn Family,
    /// The kernel's place among those of its family with the same layout and types.
    pub variant: u32,
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Room")
    }
}

impl PartialEq for Room {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self.family, other.family) && self.variant == other.variant
    }
}

/// One kernel: a table row for one arch, dtype and layout.
///
/// ```
/// use candle_tilegemm::arch::DeviceInfo;
/// use candle_tilegemm::family::KERNELS;
/// use candle_tilegemm::{Format, Layout, Problem};
///
/// // The kernels that run f64 products on an A100.
/// let device = DeviceInfo::a100();
/// let problem = Problem::dense(512, 512, 512, 1, Layout::NT, Format::F64).canonical().problem;
/// let able: Vec<_> = KERNELS.iter().filter(|kernel| kernel.supports(&problem, &device).is_ok()).collect();
/// assert!(able.iter().any(|kernel| kernel.name == "cublas_f64_nt"));
/// ```
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct KernelDesc {
    /// Position in [`KERNELS`](crate::family::KERNELS).
    pub index: usize,
    /// The name, in CUTLASS's grammar, computed from the row.
    pub name: &'static str,
    /// The folder of csrc with the source.
    pub family: &'static str,
    /// The kernel's role in the dispatcher's choice.
    pub role: Role,
    /// The architecture that the kernel is compiled for.
    pub arch: Arch,
    /// The formats of the operands and of the result, and the type of the sums.
    pub types: Types,
    /// How the kernel multiplies.
    pub math: Math,
    /// Layout of (A, B).
    pub layout: Layout,
    /// M, N, K of an output tile and a pipeline stage; zeros for the vendor library.
    pub tile: [u32; 3],
    /// Blocks of a cluster along M and N.
    pub cluster: [u32; 2],
    /// Widths of tiles to choose from; empty where `tile` has the only width.
    pub widths: &'static [u32],
    /// The most parts of K that the blocks of a cluster add up.
    pub split: u32,
    /// Pipeline depth; 0: as many as shared memory holds.
    pub stages: u32,
    /// Worker warps; 0: the family's own number.
    pub warps: u32,
    /// Alignment of pointers and strides, in bytes.
    pub align: u32,
    /// How much of an epilogue the kernel does.
    pub fusion: Fusion,
    /// The schedule, where the family has several.
    pub schedule: &'static str,
    /// The shapes that earn the row its place.
    pub why: &'static str,
    /// Hash of the row and of the kernel's code, without comments: 16 hexadecimal digits.
    pub code: &'static str,
    /// The plain limits of the row.
    #[serde(skip)]
    pub(crate) limits: Limits,
    /// The Cargo features that the build needs beside the arch's.
    pub features: &'static [&'static str],
    #[serde(skip)]
    pub(crate) built: bool,
    #[serde(skip)]
    pub(crate) room: Room,
}

impl KernelDesc {
    /// Whether the kernel is in this build: the features of its arch and its family are on, and the build profile has its row.
    pub fn is_built(&self) -> bool {
        self.built
    }

    /// Whether the kernel takes problems with groups of rows only.
    #[doc(hidden)]
    pub fn needs_groups(&self) -> bool {
        self.limits.groups == Grouping::Always
    }

    /// Whether the kernel takes problems with groups of rows.
    #[doc(hidden)]
    pub fn takes_groups(&self) -> bool {
        self.limits.groups != Grouping::Never
    }

    /// Whether the kernel takes gated products ([`Gate`](crate::problem::Gate)).
    pub fn takes_gates(&self) -> bool {
        self.limits.gates != Gating::Never
    }

    /// Whether the kernel takes gated products only.
    #[doc(hidden)]
    pub fn needs_gates(&self) -> bool {
        self.limits.gates == Gating::Halves
    }

    /// Whether both kernels are of one row, or of rows that differ in the type of the result.
    pub(crate) fn is_twin(&self, other: &Self) -> bool {
        let of = |kernel: &Self| {
            let Self { family, arch, math, layout, tile, cluster, split, stages, warps, align, schedule, .. } = *kernel;
            (family, arch, math, layout, tile, cluster, split, stages, warps, align, schedule)
        };
        of(self) == of(other)
    }

    /// Whether the kernel can run `problem`, which must be canonical, on `device`. This function alone states what a kernel supports.
    /// The launch functions check again and refuse a problem rather than compute something else.
    ///
    /// # Errors
    /// The first [`Rejection`] found.
    pub fn supports(&self, problem: &Problem, device: &DeviceInfo) -> Result<(), Rejection> {
        if !self.arch.runs_on(device.capability) {
            return Err(Rejection::Arch { built: self.arch, device: device.capability });
        }
        self.limits.check_groups(problem)?;
        self.limits.check_gate(problem)?;
        let need = problem.types();
        if self.types != need {
            return Err(Rejection::Types { have: self.types.into(), need: need.into() });
        }
        Limits::check_blocks(problem)?;
        self.limits.check_scales(problem)?;
        if !problem.f32_mode.admits(self.math) {
            return Err(Rejection::Precision { asked: problem.f32_mode, offers: self.math });
        }
        if self.math == Math::FastAccum && !problem.fast_accumulation {
            return Err(Rejection::FastAccumulation);
        }
        if ![Layout::Any, problem.layout()].contains(&self.layout) {
            return Err(Rejection::Layout { have: self.layout, need: problem.layout() });
        }
        let (need, have) = (self.room.family.shared_bytes(self), device.model.shared_bytes - BLOCK_BYTES);
        if need > have {
            return Err(Rejection::SharedMemory { need, have });
        }
        self.room.family.limits(self, problem).check(&self.row(), problem, device)?;
        self.room.family.supports(self, problem)
    }

    /// What its limits mean of its row.
    pub(crate) fn row(&self) -> Row {
        Row { math: self.math, cluster: self.cluster, align: self.align, fusion: self.fusion }
    }

    /// The configurations in which it can run the canonical `problem` on `device`, with a workspace of the default size: one without
    /// numbers where it has nothing to choose, none where it cannot run or there is nothing to compute. What is left out are
    /// configurations that would never be fast. [`Policy::force`](crate::dispatch::Policy::force) takes each of them.
    pub fn configurations(&self, problem: &Problem, device: &DeviceInfo) -> Vec<Config> {
        if problem.is_empty() || self.supports(problem, device).is_err() {
            return Vec::new();
        }
        self.room.family.configurations(&Case { kernel: self, problem, device, workspace: workspace::DEFAULT_BYTES })
    }

    /// What the kernel keeps in the workspace for rows of A and columns of B of the canonical `problem`.
    pub(crate) fn footprint(&self, problem: &Problem) -> Option<Footprint> {
        self.room.family.footprint(self, problem).filter(|_| !problem.is_empty())
    }

    /// Device memory that the kernel needs beside the operands of the canonical `problem`, whatever its configuration.
    pub fn workspace(&self, problem: &Problem) -> Need {
        self.footprint(problem).map_or(Need::default(), |footprint| footprint.need(problem))
    }

    /// Device memory that the kernel needs beside the operands of the canonical `problem` in this configuration.
    pub(crate) fn workspace_of(&self, problem: &Problem, config: &Config) -> Need {
        match self.room.family.scratch_bytes(problem, config) {
            0 => self.workspace(problem),
            bytes => Need { least: bytes, best: bytes },
        }
    }

    /// The order in which the kernel adds up the products of an element of D in this configuration; `None` where M or the element's place
    /// decides.
    pub fn sums(&self, config: &Config) -> Option<SumOrder> {
        self.room.family.sums(self, config)
    }

    pub(crate) fn family(&self) -> &'static dyn Family {
        self.room.family
    }
}

impl fmt::Display for KernelDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}
