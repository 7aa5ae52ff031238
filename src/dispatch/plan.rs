//! A plan: a problem and the kernel that runs it.

use super::chosen::Reason;
use crate::config::Config;
use crate::kernel::KernelDesc;
use crate::packing::{self, Packing};
use crate::problem::{Canonical, Problem};
use crate::workspace::partition::Need;

/// A problem and the kernel that runs it: plain data. [`Planned`](super::Planned) has a plan for launches.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// The problem as the caller asked.
    pub asked: Problem,
    /// The problem as the kernel gets it.
    pub canonical: Canonical,
    /// The kernel.
    pub kernel: &'static KernelDesc,
    /// Why this kernel was taken.
    pub reason: Reason,
    /// The expected time, in microseconds.
    pub estimate_us: f64,
    /// Multiprocessors that the kernel may fill.
    pub sm_count: u32,
    /// The configuration that the kernel runs in.
    pub config: Config,
    /// The operands of which the kernel gets copies. The estimate includes the copies.
    pub packing: Option<Packing>,
    /// Device memory that the kernel needs beside the operands.
    pub workspace: Need,
}

impl Plan {
    /// The name of the kernel, with the operands that are copied: `NAME+copies_AB`.
    pub fn name(&self) -> String {
        packing::name(self.kernel.name, self.packing)
    }
}
