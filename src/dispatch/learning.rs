//! Choices that are learned in the program that runs: the kernels that a product's first calls try in turns, and what stays of them.

use super::choice::REACH;
use super::chosen::{Chosen, Reason};
use super::contest::Contest;
use super::dispatcher::Dispatcher;
use super::planned::Planned;
use super::turns::Verdict;
use crate::config::Config;
use crate::error::Result;
use crate::kernel::{KernelDesc, Role};
use crate::problem::Problem;
use crate::settings::{self, Switch};
use crate::tuning::{Among, Entry, Key, Learned};
use std::sync::Arc;

/// Kernels, or configurations of them, that are tried.
const MOST: usize = 6;
/// The vendor library's estimate may be this far too low: up to here our own kernels are tried beside it.
const VENDOR_REACH: f64 = 1.5;
/// From here on a call is timed by itself. An event costs one kernel up to two microseconds more than another, so shorter products have samples of several
/// calls, of this time together.
const LONG_US: f64 = 120.0;
const MOST_CALLS: u32 = 32;

static LEARNING: Switch = Switch::new(settings::learn);

/// Sets whether this process learns, the interposer's products included ([`learning`]).
///
/// ```
/// use candle_tilegemm::dispatch::{learning, set_learning};
///
/// set_learning(true);
/// assert!(learning()?);
/// # Ok::<(), candle_tilegemm::Error>(())
/// ```
pub fn set_learning(on: bool) {
    LEARNING.set(on);
}

/// Whether this process learns: the first calls of a product whose estimates are near to each other run the kernels in turns, timed by events on the caller's
/// stream, and the fastest stays. By [`set_learning`], else by the environment variable `TILEGEMM_LEARN=on|off`, else not.
///
/// # Errors
/// [`Error::BadSetting`](crate::Error::BadSetting) when the environment variable decides and its value is neither.
pub fn learning() -> Result<bool> {
    LEARNING.is_on()
}

impl Dispatcher {
    /// The contest of a plan; `None` where nothing is near enough to its estimate, and where the caller, or the order of sums, has chosen.
    pub(crate) fn contest(&self, plan: &Planned) -> Option<Contest<Planned>> {
        let policy = plan.policy();
        let problem = &plan.canonical.problem;
        if policy.forced.is_some() || policy.batch_invariant || plan.packing.is_some() || problem.is_empty() {
            return None;
        }
        if plan.reason == Reason::Learned || plan.kernel.role == Role::LastResort {
            return None;
        }
        let rivals: Vec<Arc<Planned>> = self.near(plan).into_iter().map(|chosen| self.rival(plan, chosen)).collect();
        (!rivals.is_empty()).then(|| Contest::new(rivals, calls(plan.estimate_us), plan.estimate_us))
    }

    /// Choices other than the plan's own whose estimates are near to the least, the nearest first, and the vendor library. Where the vendor library has the least,
    /// those near to the least of ours.
    fn near(&self, plan: &Planned) -> Vec<Chosen> {
        let (problem, policy) = (&plan.canonical.problem, plan.policy());
        let mut able = self.able(problem, policy);
        able.retain(|candidate| candidate.kernel.role != Role::LastResort);
        let least_of = |is_vendor: bool| {
            let kind = able.iter().filter(|candidate| (candidate.kernel.role == Role::Vendor) == is_vendor);
            kind.filter_map(|candidate| candidate.verdict.as_ref().ok()).copied().fold(f64::INFINITY, f64::min)
        };
        let [own, vendor] = [false, true].map(least_of);
        let most = REACH * if own <= VENDOR_REACH * vendor { own } else { vendor };
        let mut near: Vec<(&'static KernelDesc, Config, f64)> = Vec::new();
        for candidate in &able {
            let (kernel, config, Ok(us)) = (candidate.kernel, candidate.config, &candidate.verdict) else { continue };
            if kernel.role == Role::Vendor {
                near.push((kernel, config, 0.0)); // whatever its estimate
            } else if *us <= most {
                near.push((kernel, config, *us));
                let case = self.case(kernel, problem, policy);
                let model = self.model(kernel);
                let others = kernel.family().rivals(&case, &config, most).into_iter();
                let others = others.map(|(config, _)| (kernel, config, model.configured_us(&case, &config)));
                near.extend(others.filter(|(.., us)| *us <= most));
            }
        }
        near.retain(|(kernel, config, _)| (kernel.index, *config) != (plan.kernel.index, plan.config));
        near.sort_by(|x, y| x.2.total_cmp(&y.2));
        near.truncate(MOST - 1);
        let chosen = |(kernel, config, us)| Chosen { kernel, config, us, reason: Reason::Learned, packing: None };
        near.into_iter().map(chosen).collect()
    }

    fn rival(&self, plan: &Planned, chosen: Chosen) -> Arc<Planned> {
        Arc::new(self.plan_of(&plan.asked, plan.policy(), plan.asked.canonical(), chosen))
    }

    /// Keeps the result of a plan's contest: launches of the plan run the winner from now on, and later plans are made with it.
    pub(crate) fn settle(&self, plan: &Planned, contest: &Contest<Planned>, verdict: Verdict) {
        let winner = contest.plan(plan, verdict.kernel);
        let name = |plan: &Planned| format!("{}@{}", plan.kernel, plan.config);
        tracing::debug!(
            target: "tilegemm::learn", problem = %plan.asked, kernel = winner.kernel.name, config = %winner.config,
            us = verdict.us, against_us = verdict.against_us, samples = verdict.samples,
            tried = contest.tried(plan, verdict.kernel, name), "learned"
        );
        plan.settle(contest.rival(verdict.kernel));
        // Without the workspace other kernels may have been tried than an entry speaks of.
        let has_workspace = plan.policy().workspace > 0;
        let Some(table) = self.tables.learned().filter(|_| has_workspace && verdict.samples > 0) else { return };
        let Some(key) = Key::of(&plan.canonical.problem, Among::with_vendor(plan.policy().vendor)) else { return };
        let Verdict { samples, us, against_us, .. } = verdict;
        let m = plan.canonical.problem.m;
        // Kernels without configurations, such as the vendor's, have none in tables either.
        let (kernel, config) = (winner.kernel, Some(winner.config).filter(|config| !config.is_default()));
        // Only the difference is the kernels': what lies between calls is in both times.
        let gain =
            if verdict.kernel == 0 { 1.0 } else { 1.0 + (against_us - us).max(0.0) / winner.estimate_us.max(1.0) };
        table.add(Entry { key, m: [m, m], kernel, config, gain, learned: Some(Learned { samples, us, against_us }) });
        // Products at other addresses have the same entry.
        let has_entry = |problem: &Problem| problem.m == m && Key::of(problem, key.among) == Some(key);
        self.plans.forget(|problem| has_entry(&problem.canonical().problem));
    }
}

/// Calls of a sample.
fn calls(us: f64) -> u32 {
    ((LONG_US / us.max(1.0)).ceil() as u32).clamp(1, MOST_CALLS)
}

#[cfg(test)]
mod tests {
    use super::{calls, Contest, Dispatcher, Verdict, MOST, REACH};
    use crate::arch::DeviceInfo;
    use crate::dispatch::{Planned, Policy, Reason};
    use crate::kernel::Role;
    use crate::problem::{Format, Layout, Problem};
    use std::sync::Arc;

    /// A product that several kernels are estimated to be equally fast at.
    fn product(m: usize) -> Problem {
        Problem::dense(m, 4096, 4096, 1, Layout::NT, Format::BF16)
    }

    fn plan(dispatcher: &Dispatcher, m: usize) -> Arc<Planned> {
        dispatcher.plan(&product(m), Policy::default()).unwrap()
    }

    /// The plan's contest, made as another thread makes it.
    fn contest<'a>(dispatcher: &Dispatcher, plan: &'a Planned) -> &'a Contest<Planned> {
        plan.set_contest(dispatcher.contest(plan));
        plan.contest().flatten().unwrap()
    }

    #[test]
    fn a_contest_is_between_kernels_near_to_the_least_estimate_and_the_vendor_library() {
        let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100()).without_tuning();
        let mut contested = 0;
        for m in [1, 7, 48, 130, 300, 777, 2048, 5000] {
            let plan = plan(&dispatcher, m);
            let Some(contest) = dispatcher.contest(&plan) else { continue };
            contested += 1;
            let all: Vec<&Planned> = (0..)
                .map_while(|place| (place == 0 || contest.rival(place).is_some()).then(|| contest.plan(&plan, place)))
                .collect();
            let pairs: std::collections::BTreeSet<_> =
                all.iter().map(|plan| (plan.kernel.index, plan.config.to_string())).collect();
            assert_eq!(pairs.len(), all.len(), "{m}: twice the same");
            assert!(all.len() <= MOST && all.iter().any(|plan| plan.kernel.role == Role::Vendor), "{m}");
            let own = all.iter().filter(|plan| plan.kernel.role != Role::Vendor);
            let least = own.clone().map(|plan| plan.estimate_us).fold(f64::INFINITY, f64::min);
            assert!(own.clone().all(|plan| plan.estimate_us <= 1.001 * REACH * least), "{m}");
        }
        assert!(contested >= 6, "{contested}");
    }

    #[test]
    fn what_a_caller_has_chosen_is_not_contested() {
        let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
        let policies = [Policy::force("cublas_bf16_nt").unwrap(), Policy::default().with_batch_invariance(true)];
        for policy in policies {
            let plan = dispatcher.plan(&product(300), policy).unwrap();
            assert!(dispatcher.contest(&plan).is_none());
        }
        assert!(dispatcher.contest(&plan(&dispatcher, 0)).is_none(), "nothing to compute");
    }

    #[test]
    fn launches_of_a_plan_run_what_won_and_later_plans_are_made_with_it() {
        let path = std::env::temp_dir().join(format!("tilegemm-settle-{}.json", std::process::id()));
        let dispatcher = || Dispatcher::hypothetical(DeviceInfo::h100()).with_learned(&path);
        let program = dispatcher();
        let before = plan(&program, 300);
        let contest = contest(&program, &before);
        let winner = contest.rival(2).unwrap();
        let verdict = Verdict { kernel: 2, samples: 5, us: 30.0, against_us: 33.0 };
        program.settle(&before, contest, verdict);
        assert!(std::ptr::eq(before.settled(), &*winner));
        assert!(before.is_settled());
        let is_winner = |plan: &Planned| (plan.kernel.index, plan.config) == (winner.kernel.index, winner.config);
        let after = {
            // Another thread: this one still has the plan that it had.
            std::thread::scope(|scope| scope.spawn(|| plan(&program, 300)).join().unwrap())
        };
        assert!(is_winner(&after) && after.reason == Reason::Learned);
        assert!(program.contest(&after).is_none(), "it is known");
        assert_eq!(plan(&program, 301).reason, Reason::Estimate, "of other rows nothing is known");

        // The next program, and what `explain` says there.
        program.tables().learned().unwrap().save().unwrap();
        let next = dispatcher();
        assert!(is_winner(&plan(&next, 300)));
        let text = next.explain(&product(300), Policy::default()).to_string();
        assert!(text.contains("5 samples, 30.0 us against 33.0"), "{text}");
        let invariant = next.plan(&product(300), Policy::default().with_batch_invariance(true)).unwrap();
        assert_ne!(invariant.reason, Reason::Learned);
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(path.with_extension("lock")).unwrap();
    }

    #[test]
    fn the_usual_choice_that_won_is_kept_as_well() {
        let path = std::env::temp_dir().join(format!("tilegemm-usual-{}.json", std::process::id()));
        let program = Dispatcher::hypothetical(DeviceInfo::h100()).with_learned(&path);
        let before = plan(&program, 300);
        let contest = contest(&program, &before);
        program.settle(&before, contest, Verdict { kernel: 0, samples: 9, us: 30.0, against_us: 30.1 });
        assert!(std::ptr::eq(before.settled(), &*before));
        let entries = program.tables().learned().unwrap().entries();
        assert_eq!((entries[0].kernel, entries[0].gain), (before.kernel, 1.0));
    }

    #[test]
    fn any_kernel_that_won_is_what_later_plans_are_made_with() {
        for (product, device) in [
            (product(300), DeviceInfo::h100()),
            (product(7), DeviceInfo::h100()),
            (Problem::dense(128, 4096, 1224, 1, Layout::NT, Format::BF16), DeviceInfo::h200()),
        ] {
            for place in 0..MOST {
                let path = std::env::temp_dir().join(format!("tilegemm-any-{place}-{}.json", std::process::id()));
                let program = Dispatcher::hypothetical(device.clone()).with_learned(&path);
                // What others have asked for with less workspace, and at other addresses, is planned anew, too.
                let elsewhere = product.with(|problem| problem.a.pointer_align = 64);
                let less = Policy::default().with_workspace(1 << 20);
                let questions = [(product, Policy::default()), (product, less), (elsewhere, Policy::default())];
                let [before, ..] = questions.map(|(product, policy)| program.plan(&product, policy).unwrap());
                let contest = contest(&program, &before);
                if place > 0 && contest.rival(place).is_none() {
                    break;
                }
                program.settle(&before, contest, Verdict { kernel: place, samples: 9, us: 30.0, against_us: 33.0 });
                let winner = contest.plan(&before, place);
                for (product, policy) in questions {
                    let plan = || program.plan(&product, policy).unwrap();
                    let after = std::thread::scope(|scope| scope.spawn(plan).join().unwrap());
                    assert_eq!((after.kernel.name, after.config), (winner.kernel.name, winner.config), "{product}");
                    assert_eq!(after.reason, Reason::Learned, "{product} by {}", winner.kernel.name);
                }
            }
        }
    }

    #[test]
    fn short_products_have_samples_of_several_calls() {
        assert_eq!([2.0, 5.0, 9.0, 30.0, 61.0, 121.0].map(calls), [32, 24, 14, 4, 2, 1]);
    }
}
