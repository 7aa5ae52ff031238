//! One product: who may beat the dispatcher's choice, and whether someone does so twice.

use super::Args;
use crate::bench::arms::Arm;
use crate::bench::measure::{How, Measured, Session};
use crate::Result;
use candle_tilegemm::family::{self, KERNELS};
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::tuning::{Among, Point, LEAST_GAIN};
use candle_tilegemm::Problem;

/// What a policy chooses, and what may be faster.
struct Contest {
    among: Among,
    choice: Arm,
    challengers: Vec<Arm>,
}

/// What came out of a product.
#[derive(Default)]
pub struct Outcome {
    /// For each policy that runs it.
    pub points: Vec<(Among, Point)>,
    /// Kernels that computed something else than the product.
    pub wrong: Vec<String>,
}

/// Measures `problem`, and a second time on other operands what was faster than the choice.
pub fn hold(session: &Session, problem: &Problem, args: &Args) -> Result<Outcome> {
    let how = How { samples: args.samples.into(), hot: false, check: true, scale: 1.0 };
    let canonical = problem.canonical().problem;
    let contests = contests(session, &canonical);
    let mut outcome = Outcome::default();

    let first = session.measure(problem, &all_arms(&contests), &how)?;
    let mut leaders = Vec::new();
    for contest in &contests {
        if first.run_of(&contest.choice).is_none() {
            continue; // no kernel of that policy runs it
        }
        match contest.leader(&first, &mut outcome.wrong)? {
            Some((kernel, gain)) => leaders.push((contest, kernel, gain)),
            None => outcome.points.push((contest.among, Point::without_winner(canonical.m))),
        }
    }
    if leaders.is_empty() {
        return Ok(outcome);
    }

    let arms: Vec<Arm> =
        leaders.iter().flat_map(|(contest, kernel, _)| [contest.choice.clone(), Arm::Kernel(kernel)]).collect();
    let second = session.measure(problem, &distinct(arms), &how)?;
    for (contest, kernel, gain) in leaders {
        let again = contest.gain(&second, &Arm::Kernel(kernel), &mut outcome.wrong)?;
        let point =
            again.map_or(Point::without_winner(canonical.m), |again| Point::new(canonical.m, kernel, &[gain, again]));
        outcome.points.push((contest.among, point));
    }
    Ok(outcome)
}

fn contests(session: &Session, canonical: &Problem) -> [Contest; 2] {
    let device = session.dispatcher.device();
    let vendor = KERNELS.iter().find(|k| k.role == Role::Vendor && k.supports(canonical, device).is_ok());
    let challengers = [Arm::OwnBest].into_iter().chain(vendor.map(Arm::Kernel)).collect();
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
    /// The fastest challenger that is worth a second look, and its gain.
    fn leader(&self, measured: &Measured, wrong: &mut Vec<String>) -> Result<Option<(&'static KernelDesc, f64)>> {
        let mut best: Option<(&'static KernelDesc, f64)> = None;
        for arm in &self.challengers {
            let Some(gain) = self.gain(measured, arm, wrong)? else { continue };
            let kernel = measured.run_of(arm).and_then(|run| family::by_name(&run.kernel));
            let Some(kernel) = kernel.filter(|_| gain > LEAST_GAIN) else { continue };
            if best.is_none_or(|(_, least)| gain > least) {
                best = Some((kernel, gain));
            }
        }
        Ok(best)
    }

    /// How many times as fast `arm` was as the choice. `None` where it did not run, or computed something else.
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
