//! The choice of a kernel: from a [`Problem`] to a [`Plan`], with the reasons.
//!
//! [`Dispatcher::plan`] is pure: the same problem, device, policy and measured tables give the same plan, with or without a
//! GPU. A program that learns ([`learning`]) changes a table, and with it later plans.

use crate::config::Config;
use crate::cost;
use crate::error::{Error, Result};
#[cfg(feature = "cuda")]
use crate::kernel::KernelDesc;
use crate::kernel::Rejection;
use crate::problem::{Canonical, Problem};
use crate::workspace::partition::Need;
use chosen::Chosen;
use memo::Recent;
use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::sync::Arc;

#[cfg(any(test, all(feature = "candle", feature = "cuda")))]
mod beside;
mod choice;
mod chosen;
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
mod contest;
mod counter;
mod dispatcher;
mod explanation;
mod fuse;
mod invariant;
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
mod learning;
mod left_out;
mod margins;
mod memo;
mod plan;
mod planned;
mod policy;
pub(crate) mod refit;
mod skipped;
mod split;
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
mod turns;

#[cfg(all(feature = "candle", feature = "cuda"))]
pub(crate) use beside::{shares, MOST_BESIDE};
pub use chosen::Reason;
#[cfg(feature = "cuda")]
#[cfg(feature = "cuda")]
pub(crate) use contest::{Contest, Event, Mark, Open, Sample, State};
#[cfg(feature = "interpose")]
pub(crate) use counter::Counter;
pub use dispatcher::Dispatcher;
pub use explanation::{Candidate, Explanation, Tuned};
pub use learning::{learning, set_learning};
pub use plan::Plan;
pub use planned::Planned;
pub use policy::{batch_invariant, set_batch_invariant, Policy};
#[cfg(feature = "cuda")]
pub(crate) use turns::Turn;

/// What is decided for a problem: a plan keeps the choice, an explanation shows all of it.
struct Decision {
    /// The kernels that can run the problem, with the estimates that the choice was made by; the kernel that was asked for by name, with its verdict.
    /// Empty where the order of sums decides.
    judged: Vec<Candidate>,
    /// The answers of the measured tables, up to the first entry whose kernel can run.
    tuned: Vec<Tuned>,
    /// The choice. No choice: why the kernel that was asked for by name cannot run; `None` where no kernel can.
    chosen: std::result::Result<Chosen, Option<Rejection>>,
}

thread_local! {
    static RECENT_PLANS: RefCell<Recent<Planned>> = const { RefCell::new(Recent::new()) };
}

impl Dispatcher {
    /// The plan for `problem` under `policy`, from the cache where the same plan was asked for before.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when no kernel runs the problem, [`Error::NotBuilt`] when this build lacks the feature that has its kernels, and
    /// [`Error::Forced`] when the kernel asked for by name does not.
    pub fn plan(&self, problem: &Problem, policy: Policy) -> Result<Arc<Planned>> {
        self.with_plan(problem, policy, Arc::clone)
    }

    /// As [`Dispatcher::plan`], for one use of the plan. Where the thread had the plan before, this function writes to no memory that
    /// other threads use, not even to the plan's reference count. Threads that run the same products do not wait for each other.
    ///
    /// # Errors
    /// As for [`Dispatcher::plan`].
    pub fn with_plan<T>(&self, problem: &Problem, policy: Policy, then: impl FnOnce(&Arc<Planned>) -> T) -> Result<T> {
        self.plans.recall(&RECENT_PLANS, self.question(problem, policy), || self.choose(problem, policy), then)
    }

    fn choose(&self, asked: &Problem, policy: Policy) -> Result<Planned> {
        let canonical = asked.canonical();
        let chosen = self.decide(asked, &canonical.problem, policy).chosen.map_err(|rejection| {
            match policy.forced().zip(rejection) {
                Some((kernel, rejection)) => {
                    let (kernel, problem, rejection) = (kernel.name.into(), asked.to_string(), rejection.into());
                    Error::Forced { kernel, problem, rejection }
                }
                None => self.unsupported(asked, &canonical.problem, policy),
            }
        })?;
        Ok(self.plan_of(asked, policy, canonical, chosen))
    }

    /// The decision for the problem `asked`, whose canonical form is `problem`.
    fn decide(&self, asked: &Problem, problem: &Problem, policy: Policy) -> Decision {
        if let Some(kernel) = policy.forced() {
            let judged = self.judge(kernel, problem, policy);
            let chosen = self.by_name(judged.clone(), problem, policy).map_err(Some);
            return Decision { judged: vec![judged], tuned: Vec::new(), chosen };
        }
        let mut decision = Decision { judged: Vec::new(), tuned: Vec::new(), chosen: Err(None) };
        // Dense kernels would run it on copies in 16 bits, several times as slowly.
        if self.only_built && !left_out::lacking(problem).is_empty() {
            return decision;
        }
        let chosen = if policy.batch_invariant && !problem.is_empty() {
            self.sum_order(asked, policy).and_then(|order| self.in_order(problem, policy, order))
        } else {
            decision.judged = self.able(problem, policy);
            decision.tuned = self.tuned(problem, policy, &decision.judged);
            self.with_packing(problem, policy, self.among(problem, &decision.judged, &decision.tuned))
        };
        decision.chosen = chosen.ok_or(None);
        decision
    }

    fn plan_of(&self, asked: &Problem, policy: Policy, canonical: Canonical, chosen: Chosen) -> Planned {
        let p = &canonical.problem;
        let Chosen { kernel, config, us: estimate_us, reason, packing } = chosen;
        tracing::debug!(
            target: "tilegemm::dispatch", m = p.m, n = p.n, k = p.k, batch = p.batch_count(), layout = %p.layout(),
            types = %p.types(), f32_mode = %p.f32_mode, kernel = kernel.name, %config, ?reason, estimate_us, "chosen"
        );
        let workspace = match packing {
            Some(packing) => packing.footprint(p).map_or(Need::default(), |footprint| footprint.need(p)),
            None => kernel.workspace_of(p, &config),
        };
        let without = match policy.forced {
            None if workspace.least > 0 && policy.workspace > 0 => self.plan(asked, policy.with_workspace(0)).ok(),
            _ => None,
        };
        let sm_count = self.device.sm_count;
        let plan = Plan { asked: *asked, canonical, kernel, reason, estimate_us, sm_count, config, packing, workspace };
        Planned::new(plan, without, self.question(asked, policy), self.forgotten.clone())
    }

    /// The fastest plan for a plan's problem that needs no workspace, among the kernels of ours that `is_among` admits; `None` where none
    /// runs the problem, or the plan's kernel was asked for by name or for its order of sums.
    #[cfg(feature = "cuda")]
    pub(crate) fn plan_among(&self, plan: &Planned, is_among: &dyn Fn(&KernelDesc) -> bool) -> Option<Planned> {
        let policy = Policy { vendor: false, ..plan.policy().with_workspace(0) };
        if policy.forced.is_some() || policy.batch_invariant {
            return None;
        }
        let canonical = plan.asked.canonical();
        let mut able = self.able(&canonical.problem, policy);
        able.retain(|candidate| is_among(candidate.kernel));
        let chosen = self.among(&canonical.problem, &able, &[])?;
        Some(self.plan_of(&plan.asked, policy, canonical, chosen))
    }

    /// Every kernel of the table with its estimate or the reason why the kernel cannot run `problem`.
    pub fn explain(&self, problem: &Problem, policy: Policy) -> Explanation {
        let canonical = problem.canonical();
        let Decision { mut judged, tuned, chosen } = self.decide(problem, &canonical.problem, policy);
        if judged.is_empty() {
            judged = self.able(&canonical.problem, policy);
        }
        let candidates = self.candidates(&canonical.problem, policy, judged);
        // A kernel that was asked for by name is shown also where it cannot run.
        let refused = policy.forced().map(|kernel| {
            let config = candidates[kernel.index].config;
            Chosen { kernel, config, us: 0.0, reason: Reason::Forced, packing: None }
        });
        let chosen = chosen.ok().or(refused);
        let sums = chosen.as_ref().filter(|_| policy.batch_invariant).and_then(|c| c.kernel.sums(&c.config));
        let packing = chosen.as_ref().and_then(|chosen| Some((chosen.packing?, chosen.us)));
        let config = chosen.as_ref().map_or(Config::default(), |chosen| chosen.config);
        let (chosen, reason) = chosen.map(|chosen| (chosen.kernel, chosen.reason)).unzip();
        let roofline_us = cost::roofline_us(&canonical.problem, &self.device);
        let device = self.device.clone();
        Explanation {
            device,
            asked: *problem,
            canonical,
            candidates,
            tuned,
            chosen,
            config,
            packing,
            sums,
            reason,
            roofline_us,
        }
    }

    /// The plans that the dispatcher keeps, with their call counts: all plans, or of more than 32,768 distinct products the latest.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn plans(&self) -> Vec<Arc<Planned>> {
        self.plans.all()
    }

    /// Launches of plans that the dispatcher has dropped.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn forgotten_calls(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }
}
