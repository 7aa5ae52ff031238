//! `csrc/reference`: any problem, slowly; the correctness reference on the device.

use crate::config::Config;
use crate::cost::LAUNCH_US;
use crate::kernel::{Case, Family};

/// The kernel reads both factors of every multiplication through L1, and one thread sums all of K in sequence.
const TFLOPS: f64 = 0.6;
const PRODUCT_US: f64 = 0.08;

pub(crate) struct Reference;

impl Family for Reference {
    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        LAUNCH_US + (case.problem.flops() / (TFLOPS * 1e6)).max(case.problem.k as f64 * PRODUCT_US)
    }
}
