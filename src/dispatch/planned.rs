//! A plan that a dispatcher keeps, with the record of its launches.

use super::chosen::Reason;
use super::contest::Contest;
use super::counter::Counter;
use super::memo::{Answer, Question};
use super::plan::Plan;
use super::policy::Policy;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A [`Plan`] that a dispatcher keeps, with the record of its launches. It derefs to the plan.
#[derive(Debug)]
pub struct Planned {
    plan: Plan,
    /// The plan for a stream that has no workspace.
    without: Option<Arc<Planned>>,
    dispatcher: usize,
    policy: Policy,
    launches: Launches,
    learned: LearnedPlan,
}

/// What a program learns of a plan.
#[derive(Debug, Default)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
struct LearnedPlan {
    /// The kernels that calls run in turns, once the program learns; `None` where the plan is not contested.
    contest: OnceLock<Option<Contest<Planned>>>,
    /// Whether somebody makes the contest.
    is_asked: AtomicBool,
    /// What won, where it is another plan.
    settled: OnceLock<Option<Arc<Planned>>>,
}

/// What launches of a plan have left.
#[derive(Debug)]
struct Launches {
    count: Counter,
    /// The dispatcher's count of the launches of plans that it has dropped.
    forgotten: Arc<AtomicU64>,
    /// Whether an event has told that another plan runs in this plan's place.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    told: AtomicBool,
    /// Whether a launch of the kernel loads nothing.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    ready: AtomicBool,
}

impl Drop for Launches {
    fn drop(&mut self) {
        self.forgotten.fetch_add(self.count.sum(), Ordering::Relaxed);
    }
}

impl Deref for Planned {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}

impl Planned {
    /// A plan without launches. `forgotten` counts them when the plan is dropped.
    pub(super) fn new(
        plan: Plan,
        without: Option<Arc<Planned>>,
        Question { dispatcher, policy, .. }: Question,
        forgotten: Arc<AtomicU64>,
    ) -> Self {
        let launches = Launches { count: Counter::default(), forgotten, told: false.into(), ready: false.into() };
        Self { plan, without, dispatcher, policy, launches, learned: LearnedPlan::default() }
    }

    /// The policy that the plan was made under.
    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// The plan that runs instead on a stream without a workspace ([`crate::workspace`]): the same problem, on a kernel that needs no
    /// workspace. `None` where the kernel was asked for by name, or needs no workspace itself.
    pub fn without_workspace(&self) -> Option<&Planned> {
        self.without.as_deref()
    }

    /// What the program has learned to run in the plan's place, or the plan.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn settled(&self) -> &Planned {
        self.learned.settled.get().and_then(Option::as_deref).unwrap_or(self)
    }

    /// Whether the plan's contest has ended.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn is_settled(&self) -> bool {
        self.learned.settled.get().is_some()
    }

    /// The plan's contest; `Some(None)` where nothing is near to the plan's choice, and `None` until [`set_contest`](Self::set_contest).
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn contest(&self) -> Option<Option<&Contest<Planned>>> {
        self.learned.contest.get().map(Option::as_ref)
    }

    /// Whether a program that learns ([`learning`](super::learning)) has nothing more to learn of the plan: its kernels have run in turns, or nothing is near to
    /// the choice. A plan made from then on is made with what was learned.
    pub fn is_learned(&self) -> bool {
        self.is_settled() || matches!(self.contest(), Some(None)) || self.plan.reason == Reason::Learned
    }

    /// Keeps the plan's contest, the first that comes.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn set_contest(&self, contest: Option<Contest<Planned>>) {
        let _ = self.learned.contest.set(contest);
    }

    /// Ends the plan's contest.
    pub(super) fn settle(&self, winner: Option<Arc<Planned>>) {
        let _ = self.learned.settled.set(winner);
    }

    /// How often the plan was launched.
    pub fn calls(&self) -> u64 {
        self.launches.count.sum()
    }
}

/// For launches.
#[cfg(feature = "cuda")]
impl Planned {
    /// Counts one launch.
    pub(crate) fn count(&self) {
        self.launches.count.count();
    }

    /// Whether this is the first call: an event tells each plan's replacement once.
    pub(crate) fn tell(&self) -> bool {
        !self.launches.told.swap(true, Ordering::Relaxed)
    }

    /// Whether the kernel's code is on the device.
    pub(crate) fn is_ready(&self) -> bool {
        self.launches.ready.load(Ordering::Relaxed)
    }

    /// Whether this is the first to ask for the plan's contest.
    pub(crate) fn is_first_question(&self) -> bool {
        !self.learned.is_asked.swap(true, Ordering::Relaxed)
    }

    /// Notes that the kernel's code is on the device.
    pub(crate) fn set_ready(&self) {
        self.launches.ready.store(true, Ordering::Relaxed);
    }
}

impl Answer for Planned {
    fn question(&self) -> Question<'_> {
        Question { dispatcher: self.dispatcher, policy: self.policy, problem: &self.plan.asked }
    }
}
