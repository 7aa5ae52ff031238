//! The estimates of a family by the data of a card.

use super::facts;
use super::trees::{self, Trees};
use crate::config::Config;
use crate::cost;
use crate::kernel::{Case, Family};

/// The estimates of a family: its model, and the errors that its measurements have shown.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    pub(crate) family: &'a dyn Family,
    pub trees: Trees<'a>,
}

/// The family's other configurations count where the model expects them to take at most this multiple of its choice's time.
const NEAR: f64 = 1.1;

impl Model<'_> {
    /// The configuration that a plan takes, and its expected time in microseconds.
    pub fn configure(&self, case: &Case) -> (Config, f64) {
        let (config, us) = self.uncorrected(case);
        self.corrected(&[(*case, config, us)])[0]
    }

    /// The configuration that the model alone would take.
    pub fn chosen(&self, case: &Case) -> Config {
        self.family.choose(case)
    }

    /// The configuration that the model alone would take, and its expected time by the model alone.
    pub fn uncorrected(&self, case: &Case) -> (Config, f64) {
        if case.problem.is_empty() {
            return (Config::default(), 0.0);
        }
        let (config, us) = self.family.chosen(case);
        (config, us + self.epilogue_us(case))
    }

    /// The configuration that a plan takes, and its expected time, for kernels of the family with the answers of [`Model::uncorrected`] for
    /// one problem.
    pub fn corrected(&self, choices: &[(Case, Config, f64)]) -> Vec<(Config, f64)> {
        let mut best: Vec<(Config, f64)> = choices.iter().map(|(_, config, us)| (*config, *us)).collect();
        let Some((first, ..)) = choices.first() else { return best };
        let Some(of_problem) = self.facts(first) else { return best };
        let roofline = cost::roofline_us(first.problem, first.device);
        let (mut launches, mut facts) = (Vec::new(), Vec::new());
        for (place, (case, config, us)) in choices.iter().enumerate() {
            let epilogue = self.epilogue_us(case);
            let rivals = self.family.rivals(case, config, NEAR * us - epilogue).into_iter();
            let rivals = rivals.map(|(rival, rival_us)| (rival, rival_us + epilogue));
            for (config, us) in [(*config, *us)].into_iter().chain(rivals) {
                launches.push((place, config, us));
                facts.push(facts::of_launch(of_problem, case, &config, us));
            }
            best[place].1 = f64::INFINITY;
        }
        for ((place, config, us), factor) in launches.into_iter().zip(trees::factors(self.trees.trees, &facts)) {
            let us = by(us, factor, roofline);
            if us < best[place].1 {
                best[place] = (config, us);
            }
        }
        best
    }

    /// Expected time in this configuration, in microseconds.
    pub fn configured_us(&self, case: &Case, config: &Config) -> f64 {
        let us = self.uncorrected_us(case, config);
        let Some(of_problem) = self.facts(case) else { return us };
        let facts = facts::of_launch(of_problem, case, config, us);
        by(us, trees::factors(self.trees.trees, &[facts])[0], cost::roofline_us(case.problem, case.device))
    }

    /// Expected time in this configuration by the model alone, in microseconds.
    pub fn uncorrected_us(&self, case: &Case, config: &Config) -> f64 {
        if case.problem.is_empty() {
            return 0.0;
        }
        self.family.estimate(case, config) + self.epilogue_us(case)
    }

    fn epilogue_us(&self, case: &Case) -> f64 {
        cost::epilogue_us(&self.family.element_cost(case.kernel), case.problem, case.device)
    }

    /// The facts of the problem, where the trees hold for it.
    fn facts(&self, case: &Case) -> Option<trees::Facts> {
        if case.problem.is_empty() || !self.trees.hold_for(case.device) {
            return None;
        }
        Some(facts::of_problem(case.problem, case.device)).filter(|facts| self.trees.hold(facts))
    }
}

/// An estimate by a factor, which takes no estimate below the roofline.
fn by(us: f64, factor: f64, roofline: f64) -> f64 {
    (us * factor).max(us.min(roofline))
}
