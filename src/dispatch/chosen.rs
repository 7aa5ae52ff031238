//! A choice, and the reason for it.

use crate::config::Config;
use crate::kernel::KernelDesc;
use crate::packing::Packing;

/// Why a plan's kernel was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The caller asked for the kernel by name.
    Forced,
    /// The kernel is the fastest by a measured table.
    Tuned,
    /// The kernel was the fastest in a program that ran ([`learning`](super::learning)).
    Learned,
    /// The kernel has the lowest estimate of all kernels that support the problem.
    Estimate,
}

/// The kernel that is taken, its configuration, its expected time in microseconds, and the reason.
pub(super) struct Chosen {
    pub kernel: &'static KernelDesc,
    pub config: Config,
    pub us: f64,
    pub reason: Reason,
    pub packing: Option<Packing>,
}
