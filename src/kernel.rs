//! What a kernel is: its row of the table, what it supports, and what its family says about it.

use crate::arch::{Arch, DeviceInfo};
use crate::config::Config;
use crate::partition::{Footprint, Need};
use crate::problem::{DType, Layout, Problem};
use crate::workspace;
use std::fmt;

pub use crate::problem::epilogue::Fusion;
pub use crate::problem::f32_mode::Math;
pub use rejection::Rejection;

mod limits;
mod rejection;

pub(crate) use limits::{Extent, Limits, Tiles, INT};

/// What a kernel is in the dispatcher's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// One of ours, chosen by its estimate.
    Kernel,
    /// The vendor library.
    Vendor,
    /// Taken only where no other kernel runs the problem.
    LastResort,
}

/// What the dispatcher asks a family about one of its kernels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case<'a> {
    pub kernel: &'a KernelDesc,
    /// Canonical, not empty, and supported by the kernel.
    pub problem: &'a Problem,
    pub device: &'a DeviceInfo,
    /// Bytes of device memory that the kernel may use beside the operands.
    pub workspace: u64,
}

/// What each element of D takes longer than the bare product in aligned rows, in nanoseconds of one multiprocessor.
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

/// A family of kernels: kernels of one source, which differ in their rows.
pub(crate) trait Family: Sync {
    /// The limits of the kernel, where the problem changes what the table says.
    fn limits(&self, kernel: &KernelDesc, _problem: &Problem) -> Limits {
        kernel.limits
    }

    /// What the family refuses beyond its limits.
    fn supports(&self, _kernel: &KernelDesc, _problem: &Problem) -> Result<(), Rejection> {
        Ok(())
    }

    /// What the kernel keeps in the workspace for rows of A and columns of B.
    fn footprint(&self, _kernel: &KernelDesc, _problem: &Problem) -> Option<Footprint> {
        None
    }

    /// What a configuration keeps in the workspace for the whole product, in bytes.
    fn scratch_bytes(&self, _problem: &Problem, _config: &Config) -> u64 {
        0
    }

    /// The configurations in which the kernel can run the problem; the one of zeros where there is nothing to choose.
    fn configurations(&self, _case: &Case) -> Vec<Config> {
        vec![Config::default()]
    }

    /// The configuration that a plan takes.
    fn choose(&self, case: &Case) -> Config {
        let configurations = self.configurations(case).into_iter();
        let timed = configurations.map(|config| (config, self.estimate(case, &config)));
        timed.min_by(|x, y| x.1.total_cmp(&y.1)).map_or(Config::default(), |(config, _)| config)
    }

    /// Expected time of the bare product in this configuration, in microseconds.
    fn estimate(&self, case: &Case, config: &Config) -> f64;

    /// What its epilogues take on top.
    fn element_cost(&self) -> ElementCost {
        ElementCost { instruction: 0.009, bias: 0.35, ..ElementCost::default() }
    }

    /// What another of our kernels' estimates this family's has to be below, as a share, since this family's are less exact.
    fn lead(&self) -> f64 {
        1.0
    }
}

/// The family's own code for a kernel.
#[derive(Clone, Copy)]
pub(crate) struct Room(pub &'static dyn Family);

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Room")
    }
}

impl PartialEq for Room {
    /// The name of the family decides.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// One kernel: a table row for one arch, dtype and layout.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct KernelDesc {
    /// Position in [`KERNELS`](crate::family::KERNELS).
    pub index: usize,
    /// CUTLASS grammar, computed from the row.
    pub name: &'static str,
    /// The folder of csrc with its source.
    pub family: &'static str,
    /// What it is in the dispatcher's choice.
    pub role: Role,
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
    /// Widths of tiles that a plan chooses from; empty: that of `tile`.
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
    /// Hash of its row and of the code that it is compiled from, without comments: 16 hexadecimal digits.
    pub code: &'static str,
    /// What it takes at most.
    #[serde(skip)]
    pub(crate) limits: Limits,
    /// A Cargo feature that it takes beside its arch's, and whether that is on.
    #[serde(skip)]
    pub(crate) feature: Option<(&'static str, bool)>,
    #[serde(skip)]
    pub(crate) built: bool,
    #[serde(skip)]
    pub(crate) room: Room,
}

impl KernelDesc {
    /// Whether it is in this build: its arch feature and its family's feature are on, and the build profile has it.
    pub fn is_built(&self) -> bool {
        self.built
    }

    /// What would bring it into the build, of which `archs` are the compute capabilities.
    pub(crate) fn not_built(&self, archs: &[u16]) -> Rejection {
        let feature = match self.feature {
            Some((feature, false)) => feature.into(),
            _ if archs.contains(&self.arch.capability) => return Rejection::NotInProfile,
            _ => format!("sm{}", self.arch.capability),
        };
        Rejection::NotBuilt { feature }
    }

    /// Whether it can run `problem`, which must be canonical, on `device`. This is the one statement of what a kernel supports; the
    /// kernels themselves check again and refuse rather than compute something else.
    ///
    /// # Errors
    /// The first [`Rejection`] found.
    pub fn supports(&self, problem: &Problem, device: &DeviceInfo) -> Result<(), Rejection> {
        if !self.arch.runs_on(device.capability) {
            return Err(Rejection::Arch { built: self.arch, device: device.capability });
        }
        if self.dtype != problem.dtype {
            return Err(Rejection::DType { have: self.dtype, need: problem.dtype });
        }
        if !problem.f32_mode.admits(self.math) {
            return Err(Rejection::Precision { asked: problem.f32_mode, offers: self.math });
        }
        if ![Layout::Any, problem.layout()].contains(&self.layout) {
            return Err(Rejection::Layout { have: self.layout, need: problem.layout() });
        }
        self.room.0.limits(self, problem).check(self, problem, device)?;
        self.room.0.supports(self, problem)
    }

    /// The configurations in which it can run the canonical `problem` on `device`, with a workspace of the default size: one without
    /// numbers where it has nothing to choose, none where it cannot run or there is nothing to compute. What is left out are
    /// configurations that would never be fast. [`Policy::force`](crate::dispatch::Policy::force) takes each of them.
    pub fn configurations(&self, problem: &Problem, device: &DeviceInfo) -> Vec<Config> {
        if problem.is_empty() || self.supports(problem, device).is_err() {
            return Vec::new();
        }
        self.room.0.configurations(&Case { kernel: self, problem, device, workspace: workspace::DEFAULT_BYTES })
    }

    /// What the kernel keeps in the workspace for rows of A and columns of B of the canonical `problem`.
    pub(crate) fn footprint(&self, problem: &Problem) -> Option<Footprint> {
        self.room.0.footprint(self, problem).filter(|_| !problem.is_empty())
    }

    /// Device memory that the kernel needs beside the operands of the canonical `problem`, whatever its configuration.
    pub fn workspace(&self, problem: &Problem) -> Need {
        self.footprint(problem).map_or(Need::default(), |footprint| footprint.need(problem))
    }

    /// The same in this configuration.
    pub(crate) fn workspace_of(&self, problem: &Problem, config: &Config) -> Need {
        match self.room.0.scratch_bytes(problem, config) {
            0 => self.workspace(problem),
            bytes => Need { least: bytes, best: bytes },
        }
    }

    pub(crate) fn family(&self) -> &'static dyn Family {
        self.room.0
    }
}

impl fmt::Display for KernelDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}
