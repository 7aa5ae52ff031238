//! `csrc/outer`: K = 1 in f32, at the speed of stores.

use crate::config::Config;
use crate::cost::memory_us;
use crate::kernel::{Case, Family};

/// Launch, scheduling, the first loads and the drain, overlapped with the kernels before and after, microseconds.
const LAUNCH_US: f64 = 0.8;
/// The factor on the store time where elements are stored one by one.
const SINGLE: f64 = 2.0;

pub(crate) struct Outer;

impl Family for Outer {
    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let problem = case.problem;
        let vectors = problem.d.col_stride == 1 && problem.n.is_multiple_of(4) && problem.d.align() == 16;
        LAUNCH_US + memory_us(problem, case.device) * if vectors { 1.0 } else { SINGLE }
    }
}
