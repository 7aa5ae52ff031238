//! `csrc/reference`: any problem, slowly; the correctness reference on the device.

use super::fitted::fitted;
use crate::config::Config;
use crate::kernel::{Case, Family, KernelDesc, SumOrder};

fitted! {
    /// The kernel reads both factors of every multiplication through L1, and one thread sums all of K in sequence.
    Reference {
        /// Operations of a multiprocessor in a clock.
        per_clock: f64 = "1/clock", 0.1 to 64.0;
        /// Clocks of one step of K.
        step: f64 = "clocks", 1.0 to 1000.0;
    }
}

impl Family for Reference {
    fn sums(&self, kernel: &KernelDesc, config: &Config) -> Option<SumOrder> {
        Some(SumOrder::Row { kernel: kernel.name, config: *config })
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let (problem, model) = (case.problem, &case.device.model);
        let per_us = self.per_clock * f64::from(case.device.sm_count) * model.clock_ghz * 1e3;
        let steps = problem.k as f64 * self.step / (model.clock_ghz * 1e3);
        model.launch_us + (problem.flops() / per_us).max(steps)
    }
}
