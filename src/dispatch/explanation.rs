//! The answer to the question which kernel a problem gets, and why.

use super::{Candidate, Reason, Tuned};
use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::kernel::KernelDesc;
use crate::problem::{Canonical, Problem};

/// The answer of [`Dispatcher::explain`](super::Dispatcher::explain); its `Display` is the table that `tilegemm explain` prints.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Explanation {
    /// The device that the choice is for.
    pub device: DeviceInfo,
    /// The problem as the caller asked.
    pub asked: Problem,
    /// The problem as kernels see it.
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
    /// Why this kernel would run.
    pub reason: Option<Reason>,
    /// The least time that arithmetic and memory allow, in microseconds.
    pub roofline_us: f64,
}
