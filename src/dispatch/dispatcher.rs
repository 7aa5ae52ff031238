//! A dispatcher, and its verdict on a single kernel.

use super::explanation::Candidate;
use super::left_out;
use super::memo::{Memo, Question};
use super::planned::Planned;
use super::policy::Policy;
use super::refit::Refit;
use super::split::Split;
use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::error::Result;
use crate::family::card::Card;
use crate::family::model::Model;
use crate::family::KERNELS;
use crate::kernel::{Case, KernelDesc, Rejection, Role};
use crate::problem::Problem;
use crate::tuning::{Host, Tables, Tuning};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

/// Chooses kernels for one device.
///
/// ```
/// use candle_tilegemm::arch::DeviceInfo;
/// use candle_tilegemm::dispatch::{Dispatcher, Policy};
/// use candle_tilegemm::{Format, Layout, Problem};
///
/// let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
/// let problem = Problem::dense(16, 4096, 4096, 1, Layout::NT, Format::BF16);
/// let plan = dispatcher.plan(&problem, Policy::default())?;
/// println!("{} {} in {:.1} us", plan.name(), plan.config, plan.estimate_us);
///
/// let explanation = dispatcher.explain(&problem, Policy::default());
/// assert_eq!(explanation.chosen.map(|kernel| kernel.name), Some(plan.kernel.name));
/// for candidate in &explanation.candidates {
///     if let Err(rejection) = &candidate.verdict {
///         println!("{} cannot: {rejection}", candidate.kernel);
///     }
/// }
/// # Ok::<(), candle_tilegemm::Error>(())
/// ```
#[derive(Debug)]
pub struct Dispatcher {
    pub(super) device: DeviceInfo,
    /// The data that estimates for the device are made with.
    pub(super) card: &'static Card,
    pub(super) tables: Tables,
    /// Whether only kernels of this build count; off for questions about a device of another machine.
    pub(super) only_built: bool,
    /// The kernels that can run on the device, in the order of the table.
    pub(super) kernels: Vec<&'static KernelDesc>,
    pub(super) id: usize,
    pub(super) plans: Memo<Planned>,
    pub(super) splits: Memo<Split>,
    /// Launches of plans that the dispatcher has dropped.
    pub(super) forgotten: Arc<AtomicU64>,
    /// Other fitted numbers than those of this build, for questions about a fit.
    pub(super) refit: Option<Refit>,
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
        let card = Card::of(&device);
        Self { device, card, tables, only_built, kernels, id, plans, splits, forgotten, refit: None }
    }

    /// Adds a measured table, which the dispatcher asks before the other tables.
    ///
    /// # Errors
    /// [`Error::Tuning`](crate::Error::Tuning) where the table was not measured on such a device.
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
    /// [`Error::Tuning`](crate::Error::Tuning) where the file of the variable is refused.
    pub fn with_user_tuning(self) -> Result<Self> {
        let host = self.host();
        let tables = self.tables.with_users(&self.device, &host)?;
        Ok(Self::with_tables(self.device, self.only_built, tables))
    }

    /// With the table of what programs have learned in this file, before all other tables.
    #[cfg(test)]
    pub(super) fn with_learned(self, path: &std::path::Path) -> Self {
        use crate::tuning::learned::LearnedTable;
        let table = LearnedTable::read(Some(path.into()), &self.device, self.host());
        Self::with_tables(self.device, self.only_built, self.tables.with_learned(0, table))
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

    /// Writes what programs have learned on the device ([`learning`](super::learning)), where that is not written yet.
    ///
    /// # Errors
    /// Those of the file system.
    #[cfg(feature = "cuda")]
    pub(crate) fn save_learned(&self) -> std::io::Result<()> {
        self.tables.learned().map_or(Ok(()), |learned| learned.save().map(drop))
    }

    /// The device of the plans.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    pub(super) fn question<'a>(&self, problem: &'a Problem, policy: Policy) -> Question<'a> {
        Question { dispatcher: self.id, policy, problem }
    }

    /// The verdict of every kernel of the table on the canonical `problem`; `judged` are those that are known.
    pub(super) fn candidates(&self, problem: &Problem, policy: Policy, mut judged: Vec<Candidate>) -> Vec<Candidate> {
        let mut known = |kernel: &KernelDesc| {
            let place = judged.iter().position(|candidate| candidate.kernel.index == kernel.index)?;
            Some(judged.swap_remove(place))
        };
        KERNELS.iter().map(|kernel| known(kernel).unwrap_or_else(|| self.judge(kernel, problem, policy))).collect()
    }

    /// The verdict of `kernel` on the canonical `problem`.
    pub(super) fn judge(&self, kernel: &'static KernelDesc, problem: &Problem, policy: Policy) -> Candidate {
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
    pub(super) fn has_memory(
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
    pub(super) fn admits(
        &self,
        kernel: &KernelDesc,
        problem: &Problem,
        policy: Policy,
    ) -> std::result::Result<(), Rejection> {
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
    pub(super) fn model<'a>(&'a self, kernel: &'a KernelDesc) -> Model<'a> {
        match &self.refit {
            Some(refit) => refit.model(kernel, self.card),
            None => self.card.model(kernel),
        }
    }

    pub(super) fn case<'a>(&'a self, kernel: &'a KernelDesc, problem: &'a Problem, policy: Policy) -> Case<'a> {
        Case { kernel, problem, device: &self.device, workspace: policy.workspace }
    }

    /// Whether `kernel`, which supports the canonical `problem`, can run it in this configuration.
    pub(super) fn check(
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
}
