//! The choice of a kernel: from a [`Problem`] to a [`Plan`], with the reasons.
//!
//! [`Dispatcher::plan`] is pure: the same problem, device, policy and measured tables give the same plan, with or without a
//! GPU.

use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::cost::{self, Model};
use crate::error::{Error, Result};
use crate::family::KERNELS;
use crate::kernel::{Case, KernelDesc, Rejection, Role};
use crate::packing::Packing;
use crate::problem::{Canonical, Problem};
use crate::tuning::{Among, Entry, Host, Tables, Tuning};
use crate::workspace::partition::Need;
use fuse::Split;
use memo::{Memo, Question, Recent};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

mod choice;
mod counter;
mod explanation;
mod fuse;
mod invariant;
mod left_out;
mod margins;
mod memo;
mod plan;
mod policy;
pub(crate) mod refit;
mod skipped;

pub(crate) use counter::Counter;
pub use explanation::{Candidate, Explanation, Tuned};
use plan::Calls;
pub use plan::Plan;
pub use policy::{batch_invariant, set_batch_invariant, Policy};
use refit::Refit;

/// Why a plan's kernel was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The caller asked for the kernel by name.
    Forced,
    /// The kernel is the fastest by a measured table.
    Tuned,
    /// The kernel has the lowest estimate of all kernels that support the problem.
    Estimate,
}

/// The kernel that is taken, its configuration, its expected time in microseconds, and the reason.
struct Chosen {
    kernel: &'static KernelDesc,
    config: Config,
    us: f64,
    reason: Reason,
    packing: Option<Packing>,
}

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

/// Chooses kernels for one device.
#[derive(Debug)]
pub struct Dispatcher {
    device: DeviceInfo,
    tables: Tables,
    /// Whether only kernels of this build count; off for questions about a device of another machine.
    only_built: bool,
    /// The kernels that can run on the device, in the order of the table.
    kernels: Vec<&'static KernelDesc>,
    id: usize,
    plans: Memo<Plan>,
    splits: Memo<Split>,
    /// Launches of plans that the dispatcher has dropped.
    forgotten: Arc<AtomicU64>,
    /// Other fitted numbers than those of this build, for questions about a fit.
    refit: Option<Refit>,
}

thread_local! {
    static RECENT_PLANS: RefCell<Recent<Plan>> = const { RefCell::new(Recent::new()) };
}

impl Dispatcher {
    /// A dispatcher over the kernels of this build, for a device of this machine, with the measured table that ships for its model.
    pub fn new(device: DeviceInfo) -> Self {
        let tables = Tables::shipped(&Host::here(&device));
        Self::with_tables(device, true, tables)
    }

    /// A dispatcher over the whole table, as if every kernel were built: for questions about a device of another machine.
    pub fn hypothetical(device: DeviceInfo) -> Self {
        let tables = Tables::shipped(&Host::hypothetical(&device));
        Self::with_tables(device, false, tables)
    }

    fn with_tables(device: DeviceInfo, only_built: bool, tables: Tables) -> Self {
        static NEXT_ID: AtomicUsize = AtomicUsize::new(0);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let (plans, splits, forgotten) = (Memo::default(), Memo::default(), Arc::default());
        let runs = |kernel: &&KernelDesc| {
            let may_be_chosen = kernel.role != Role::ByName && (kernel.is_built() || !only_built);
            may_be_chosen && kernel.arch.runs_on(device.capability)
        };
        let kernels = KERNELS.iter().filter(runs).collect();
        Self { device, tables, only_built, kernels, id, plans, splits, forgotten, refit: None }
    }

    /// Adds a measured table, which the dispatcher asks before the other tables.
    ///
    /// # Errors
    /// [`Error::Tuning`] where the table was not measured on such a device.
    #[doc(hidden)]
    pub fn with_tuning(self, tuning: Tuning) -> Result<Self> {
        let host = self.host();
        Ok(Self::with_tables(self.device, self.only_built, self.tables.before(tuning, &host)?))
    }

    /// Removes all measured tables: the cost model alone chooses.
    pub fn without_tuning(self) -> Self {
        Self::with_tables(self.device, self.only_built, Tables::default())
    }

    /// Estimates with other fitted numbers than those of this build, without measured tables.
    #[doc(hidden)]
    pub fn with_refit(self, refit: Refit) -> Self {
        Self { refit: Some(refit), ..self.without_tuning() }
    }

    /// Uses the user's table and the table that ships, as `TILEGEMM_TUNING=<file>|off` asks.
    ///
    /// # Errors
    /// [`Error::Tuning`] where the file of the variable is refused.
    pub fn with_user_tuning(self) -> Result<Self> {
        let host = self.host();
        Ok(Self::with_tables(self.device, self.only_built, self.tables.with_users(&host)?))
    }

    /// The machine that measured tables must fit.
    fn host(&self) -> Host {
        match self.only_built {
            true => Host::here(&self.device),
            false => Host::hypothetical(&self.device),
        }
    }

    /// The measured tables.
    #[doc(hidden)]
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The device of the plans.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// The plan for `problem` under `policy`, from the cache where the same plan was asked for before.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when no kernel runs the problem, [`Error::Forced`] when the kernel asked for by name does not.
    pub fn plan(&self, problem: &Problem, policy: Policy) -> Result<Arc<Plan>> {
        self.with_plan(problem, policy, Arc::clone)
    }

    /// As [`Dispatcher::plan`], for one use of the plan. Where the thread had the plan before, this function writes to no memory that
    /// other threads use, not even to the plan's reference count. Threads that run the same products do not wait for each other.
    ///
    /// # Errors
    /// As for [`Dispatcher::plan`].
    pub fn with_plan<T>(&self, problem: &Problem, policy: Policy, then: impl FnOnce(&Arc<Plan>) -> T) -> Result<T> {
        self.plans.recall(&RECENT_PLANS, self.question(problem, policy), || self.choose(problem, policy), then)
    }

    fn question<'a>(&self, problem: &'a Problem, policy: Policy) -> Question<'a> {
        Question { dispatcher: self.id, policy, problem }
    }

    fn choose(&self, asked: &Problem, policy: Policy) -> Result<Plan> {
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

    fn plan_of(&self, asked: &Problem, policy: Policy, canonical: Canonical, chosen: Chosen) -> Plan {
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
        let (sm_count, dispatcher) = (self.device.sm_count, self.id);
        let calls = Calls { counter: Counter::default(), forgotten: self.forgotten.clone() };
        let asked = *asked;
        Plan {
            asked,
            canonical,
            kernel,
            reason,
            estimate_us,
            sm_count,
            config,
            packing,
            workspace,
            without,
            dispatcher,
            policy,
            calls,
            told: AtomicBool::new(false),
            ready: AtomicBool::new(false),
        }
    }

    /// The fastest plan for a plan's problem that needs no workspace, among the kernels of ours that `is_among` admits; `None` where none
    /// runs the problem, or the plan's kernel was asked for by name or for its order of sums.
    #[cfg(feature = "cuda")]
    pub(crate) fn plan_among(&self, plan: &Plan, is_among: &dyn Fn(&KernelDesc) -> bool) -> Option<Plan> {
        let policy = Policy { vendor: false, ..plan.policy.with_workspace(0) };
        if policy.forced.is_some() || policy.batch_invariant {
            return None;
        }
        let canonical = plan.asked.canonical();
        let mut able = self.able(&canonical.problem, policy);
        able.retain(|candidate| is_among(candidate.kernel));
        let chosen = self.among(&canonical.problem, &able, &[])?;
        Some(self.plan_of(&plan.asked, policy, canonical, chosen))
    }

    /// The verdict of every kernel of the table on the canonical `problem`; `judged` are those that are known.
    fn candidates(&self, problem: &Problem, policy: Policy, mut judged: Vec<Candidate>) -> Vec<Candidate> {
        let mut known = |kernel: &KernelDesc| {
            let place = judged.iter().position(|candidate| candidate.kernel.index == kernel.index)?;
            Some(judged.swap_remove(place))
        };
        KERNELS.iter().map(|kernel| known(kernel).unwrap_or_else(|| self.judge(kernel, problem, policy))).collect()
    }

    /// The answers of the measured tables, up to the first entry whose kernel can run.
    fn tuned(&self, problem: &Problem, policy: Policy, candidates: &[Candidate]) -> Vec<Tuned> {
        if policy.forced.is_some() || policy.batch_invariant {
            return Vec::new();
        }
        let mut tuned = Vec::new();
        for (table, entry) in self.tables.lookup(problem, Among::with_vendor(policy.vendor)) {
            let rejection = match choice::find(candidates, entry.kernel) {
                Some(candidate) => candidate.verdict.as_ref().err().cloned(),
                None => self.judge(entry.kernel, problem, policy).verdict.err(),
            };
            let rejection = rejection.or_else(|| self.check(entry.kernel, problem, policy, entry.config?).err());
            let runs = rejection.is_none();
            tuned.push(Tuned { table: table.name().into(), entry: *entry, rejection });
            if runs {
                break;
            }
        }
        tuned
    }

    /// The choice among the candidates, without copies of operands.
    fn among(&self, problem: &Problem, candidates: &[Candidate], tuned: &[Tuned]) -> Option<Chosen> {
        let fastest = choice::fastest(problem, &self.device, candidates)?;
        let us = *fastest.verdict.as_ref().ok()?;
        Some(match tuned.iter().find(|tuned| tuned.rejection.is_none()) {
            Some(Tuned { entry: Entry { kernel, config, gain, .. }, .. }) => {
                // The time of the estimate's choice over the measured gain: the measurement has shown the entry's own estimate to be wrong.
                let us = (us / gain).max(cost::roofline_us(problem, &self.device));
                let config = config.or_else(|| Some(choice::find(candidates, kernel)?.config)).unwrap_or_default();
                Chosen { kernel, config, us, reason: Reason::Tuned, packing: None }
            }
            None => {
                Chosen { kernel: fastest.kernel, config: fastest.config, us, reason: Reason::Estimate, packing: None }
            }
        })
    }

    /// The verdict of `kernel` on the canonical `problem`.
    fn judge(&self, kernel: &'static KernelDesc, problem: &Problem, policy: Policy) -> Candidate {
        let (verdict, config) = match self.estimate(kernel, problem, policy) {
            Ok((config, us)) => (Ok(us), config),
            Err(rejection) => (Err(rejection), Config::default()),
        };
        Candidate { kernel, verdict, config }
    }

    fn estimate(
        &self,
        kernel: &KernelDesc,
        problem: &Problem,
        policy: Policy,
    ) -> std::result::Result<(Config, f64), Rejection> {
        self.admits(kernel, problem, policy)?;
        let (case, model) = (self.case(kernel, problem, policy), self.model(kernel));
        match policy.forced {
            Some((_, Some(config))) => {
                self.check(kernel, problem, policy, config)?;
                Ok((config, model.configured_us(&case, &config)))
            }
            _ => {
                let (config, us) = model.configure(&case);
                self.has_memory(kernel, problem, policy, &config)?;
                Ok((config, us))
            }
        }
    }

    /// Whether the policy's workspace holds what the kernel keeps there in this configuration.
    fn has_memory(
        &self,
        kernel: &KernelDesc,
        problem: &Problem,
        policy: Policy,
        config: &Config,
    ) -> std::result::Result<(), Rejection> {
        match kernel.workspace_of(problem, config).least {
            need if need > policy.workspace => Err(Rejection::Workspace { need, have: policy.workspace }),
            _ => Ok(()),
        }
    }

    /// Whether the kernel can run the canonical `problem` under this policy, in any configuration.
    fn admits(&self, kernel: &KernelDesc, problem: &Problem, policy: Policy) -> std::result::Result<(), Rejection> {
        kernel.supports(problem, &self.device)?;
        if self.only_built {
            left_out::check(kernel, problem)?;
        }
        if kernel.role == Role::ByName && policy.forced().map(|forced| forced.index) != Some(kernel.index) {
            return Err(Rejection::ByName);
        }
        if kernel.role == Role::Vendor && !policy.vendor {
            return Err(Rejection::VendorOff);
        }
        match kernel.workspace(problem).least {
            need if need > policy.workspace => Err(Rejection::Workspace { need, have: policy.workspace }),
            _ => Ok(()),
        }
    }

    /// The estimates of a kernel's family, with the fitted numbers and the trees that count.
    fn model<'a>(&'a self, kernel: &'a KernelDesc) -> Model<'a> {
        self.refit.as_ref().map_or_else(|| Model::of(kernel), |refit| refit.model(kernel))
    }

    fn case<'a>(&'a self, kernel: &'a KernelDesc, problem: &'a Problem, policy: Policy) -> Case<'a> {
        Case { kernel, problem, device: &self.device, workspace: policy.workspace }
    }

    /// Whether `kernel`, which supports the canonical `problem`, can run it in this configuration.
    fn check(
        &self,
        kernel: &KernelDesc,
        problem: &Problem,
        policy: Policy,
        asked: Config,
    ) -> std::result::Result<(), Rejection> {
        let case = self.case(kernel, problem, policy);
        let legal = if problem.is_empty() { Vec::new() } else { kernel.family().configurations(&case) };
        match legal.contains(&asked) {
            true => Ok(()),
            false => Err(Rejection::Configuration { asked, legal }),
        }
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
    pub(crate) fn plans(&self) -> Vec<Arc<Plan>> {
        self.plans.all()
    }

    /// Launches of plans that the dispatcher has dropped.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn forgotten_calls(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }
}
