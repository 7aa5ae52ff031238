//! `csrc/outer`: K = 1 in f32, at the speed of stores.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::memory_us;
use crate::kernel::{Case, Family, KernelDesc, SumOrder};

fitted! {
    Outer {
        /// The launch, beside the card's overlapped launch.
        launch_us: f64 = "us", -1.7 to 3.0;
        /// The factor on the store time where elements are stored one by one.
        single: f64 = "", 1.0 to 8.0;
    }
}

impl Family for Outer {
    fn sums(&self, _: &KernelDesc, _: &Config) -> Option<SumOrder> {
        Some(SumOrder::Chain)
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let problem = case.problem;
        let vectors = problem.d.col_stride == 1 && problem.n.is_multiple_of(4) && problem.d.align() == 16;
        let launch = case.device.model.overlapped_launch_us + self.launch_us;
        launch + memory_us(problem, case.device) * if vectors { 1.0 } else { self.single }
    }
}
