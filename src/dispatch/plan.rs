//! A plan: a problem and the kernel that runs it.

use super::chosen::Reason;
use super::counter::Counter;
use super::memo::{Answer, Question};
use super::policy::Policy;
use crate::config::Config;
use crate::kernel::KernelDesc;
use crate::packing::{self, Packing};
use crate::problem::{Canonical, Problem};
use crate::workspace::partition::Need;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

/// A problem and the kernel that runs it.
#[derive(Debug)]
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
    /// The plan for a stream that has no workspace.
    pub(super) without: Option<Arc<Plan>>,
    pub(super) dispatcher: usize,
    pub(super) policy: Policy,
    pub(super) calls: Calls,
    /// Whether an event has told that another plan runs in this plan's place.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    pub(super) told: AtomicBool,
    /// Whether a launch of the kernel loads nothing.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    pub(super) ready: AtomicBool,
}

/// How often a plan was launched. When the plan is dropped, its launches move to the dispatcher's count.
#[derive(Debug)]
pub(super) struct Calls {
    pub counter: Counter,
    pub forgotten: Arc<AtomicU64>,
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.forgotten.fetch_add(self.counter.sum(), Ordering::Relaxed);
    }
}

impl Plan {
    /// Counts one launch.
    #[cfg(feature = "cuda")]
    pub(crate) fn count(&self) {
        self.calls.counter.count();
    }

    /// Whether this is the first call: an event tells each plan's replacement once.
    #[cfg(feature = "cuda")]
    pub(crate) fn tell(&self) -> bool {
        !self.told.swap(true, Ordering::Relaxed)
    }

    /// Whether the kernel's code is on the device.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Notes that the kernel's code is on the device.
    #[cfg(feature = "cuda")]
    pub(crate) fn set_ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    /// The plan that runs instead on a stream without a workspace ([`crate::workspace`]): the same problem, on a kernel that needs no
    /// workspace. `None` where the kernel was asked for by name, or needs no workspace itself.
    pub fn without_workspace(&self) -> Option<&Plan> {
        self.without.as_deref()
    }

    /// The name of the kernel, with the operands that are copied: `NAME+copies_AB`.
    pub fn name(&self) -> String {
        packing::name(self.kernel.name, self.packing)
    }

    /// How often the plan was launched.
    pub fn calls(&self) -> u64 {
        self.calls.counter.sum()
    }
}

impl Answer for Plan {
    fn question(&self) -> Question<'_> {
        Question { dispatcher: self.dispatcher, policy: self.policy, problem: &self.asked }
    }
}
