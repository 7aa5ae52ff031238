//! The verdicts of all kernels on a problem.

use super::chosen::Reason;
use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::kernel::{KernelDesc, Rejection, SumOrder};
use crate::packing::Packing;
use crate::problem::{Canonical, Problem};
use crate::tuning::Entry;

/// One kernel's verdict on a problem.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Candidate {
    /// The kernel.
    pub kernel: &'static KernelDesc,
    /// The kernel's estimate in microseconds, or why the kernel cannot run.
    pub verdict: std::result::Result<f64, Rejection>,
    /// The configuration in which the kernel would run; all zeros where the kernel cannot run.
    pub config: Config,
}

/// A measured table's answer to a problem.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Tuned {
    /// The table's name.
    pub table: String,
    /// The table's entry.
    pub entry: Entry,
    /// Why the entry's kernel cannot run; `None` where the kernel can.
    pub rejection: Option<Rejection>,
}

/// The answer of [`Dispatcher::explain`](super::Dispatcher::explain); its `Display` is the table that `tilegemm explain` prints.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Explanation {
    /// The device that the choice is for.
    pub device: DeviceInfo,
    /// The problem as the caller asked.
    pub asked: Problem,
    /// The problem in the form that kernels see.
    pub canonical: Canonical,
    /// Every kernel of the table, with its verdict.
    pub candidates: Vec<Candidate>,
    /// The answers of measured tables, up to the entry that counts.
    #[doc(hidden)]
    pub tuned: Vec<Tuned>,
    /// The kernel that would run.
    pub chosen: Option<&'static KernelDesc>,
    /// The configuration in which the kernel would run.
    pub config: Config,
    /// The operands that the kernel would read as copies, and the expected time with the copies, in microseconds.
    pub packing: Option<(Packing, f64)>,
    /// In batch-invariant mode, the order of sums of every number of rows.
    pub sums: Option<SumOrder>,
    /// Why this kernel would run.
    pub reason: Option<Reason>,
    /// The least time that arithmetic and memory allow, in microseconds.
    pub roofline_us: f64,
}
