//! One product: the challengers of the dispatcher's choice, and the challenger that wins twice.

use super::args::Args;
use crate::bench::arms::Arm;
use crate::bench::measure::{How, Session, WARM_UP};
use crate::bench::measured::Measured;
use crate::lists::Routing;
use crate::Result;
use candle_tilegemm::dispatch::Policy;
use candle_tilegemm::family::{self, KERNELS};
use candle_tilegemm::internal::tuning::{Among, Point, LEAST_GAIN};
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::{Config, Problem};

/// A policy's choice, and the challengers that may be faster.
struct Contest {
    among: Among,
    choice: Arm,
    challengers: Vec<Arm>,
}

/// A kernel that was faster than the choice.
struct Leader {
    kernel: &'static KernelDesc,
    /// The configuration, where the kernel's family chooses another one.
    config: Option<Config>,
    gain: f64,
}

impl Leader {
    fn arm(&self) -> Arm {
        Arm::Kernel(self.kernel, self.config)
    }
}

/// The result of a product.
#[derive(Default)]
pub struct Outcome {
    /// The points, for each policy that runs the product.
    pub points: Vec<(Among, Point)>,
    /// Kernels with a wrong result.
    pub wrong: Vec<String>,
}

/// Measures `problem`, and measures the challengers that were faster than the choice a second time, on other operands. A product in
/// groups has a routing.
pub fn hold(session: &Session, problem: &Problem, routing: Option<Routing>, args: &Args) -> Result<Outcome> {
    let how = How { samples: args.samples.into(), warm_up: WARM_UP, hot: false, check: true, scale: 1.0, routing };
    let canonical = problem.canonical().problem;
    let contests = contests(session, &canonical);
    let mut outcome = Outcome::default();

    let first = session.measure(problem, &all_arms(&contests), &how)?;
    let mut leaders = Vec::new();
    for contest in &contests {
        if first.run_of(&contest.choice).is_none() {
            continue; // no kernel of that policy runs the product
        }
        match contest.leader(session, &canonical, &first, &mut outcome.wrong)? {
            Some(leader) => leaders.push((contest, leader)),
            None => outcome.points.push((contest.among, Point::without_winner(canonical.m))),
        }
    }
    if leaders.is_empty() {
        return Ok(outcome);
    }

    let arms: Vec<Arm> = leaders.iter().flat_map(|(contest, leader)| [contest.choice.clone(), leader.arm()]).collect();
    let second = session.measure(problem, &distinct(arms), &how)?;
    for (contest, leader) in leaders {
        let again = contest.gain(&second, &leader.arm(), &mut outcome.wrong)?;
        let Leader { kernel, config, gain } = leader;
        let won = |again| Point::new(canonical.m, kernel, config, &[gain, again]);
        outcome.points.push((contest.among, again.map_or(Point::without_winner(canonical.m), won)));
    }
    Ok(outcome)
}

fn contests(session: &Session, canonical: &Problem) -> [Contest; 2] {
    let device = session.dispatcher.device();
    let vendor = KERNELS.iter().find(|k| k.role == Role::Vendor && k.supports(canonical, device).is_ok());
    let challengers = [Arm::OwnBest].into_iter().chain(vendor.map(|kernel| Arm::Kernel(kernel, None))).collect();
    [
        Contest { among: Among::All, choice: Arm::Ours, challengers },
        Contest { among: Among::Own, choice: Arm::Own, challengers: vec![Arm::OwnBest] },
    ]
}

fn all_arms(contests: &[Contest]) -> Vec<Arm> {
    let arms = |contest: &Contest| [vec![contest.choice.clone()], contest.challengers.clone()].concat();
    distinct(contests.iter().flat_map(arms).collect())
}

fn distinct(arms: Vec<Arm>) -> Vec<Arm> {
    let mut distinct = Vec::new();
    for arm in arms {
        if !distinct.contains(&arm) {
            distinct.push(arm);
        }
    }
    distinct
}

impl Contest {
    /// The fastest challenger that deserves a second measurement, and its gain.
    fn leader(
        &self,
        session: &Session,
        canonical: &Problem,
        measured: &Measured,
        wrong: &mut Vec<String>,
    ) -> Result<Option<Leader>> {
        let mut best: Option<Leader> = None;
        for arm in &self.challengers {
            let Some(gain) = self.gain(measured, arm, wrong)? else { continue };
            let Some(run) = measured.run_of(arm).filter(|_| gain > LEAST_GAIN) else { continue };
            let Some(kernel) = family::by_name(&run.kernel) else { continue };
            if best.as_ref().is_none_or(|best| gain > best.gain) {
                let chosen = session.dispatcher.plan(canonical, Policy::force(kernel.name)?)?.config;
                let config = (run.config != chosen).then_some(run.config);
                best = Some(Leader { kernel, config, gain });
            }
        }
        Ok(best)
    }

    /// The speedup of `arm` over the choice. `None` where the arm did not run, or had a wrong result.
    fn gain(&self, measured: &Measured, arm: &Arm, wrong: &mut Vec<String>) -> Result<Option<f64>> {
        let choice = measured.run_of(&self.choice).ok_or("the dispatcher's choice did not run")?;
        if choice.is_wrong() {
            return Err(format!("{}, the dispatcher's choice, computes something else", choice.kernel).into());
        }
        let Some(run) = measured.run_of(arm) else { return Ok(None) };
        if run.is_wrong() {
            if !wrong.contains(&run.kernel) {
                wrong.push(run.kernel.clone());
            }
            return Ok(None);
        }
        Ok(Some(choice.samples.median() / run.samples.median()))
    }
}
