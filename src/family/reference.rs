//! `csrc/reference`: any problem, slowly; the oracle on the device.

use crate::config::Config;
use crate::cost::LAUNCH_US;
use crate::kernel::{Case, Family, KernelDesc, Limits};
use crate::problem::Problem;

/// The kernel reads both factors of every product through L1, and one thread adds all of K, a product after the other.
const TFLOPS: f64 = 0.6;
const PRODUCT_US: f64 = 0.08;

pub(crate) struct Reference;

impl Family for Reference {
    fn limits(&self, _: &KernelDesc, _: &Problem) -> Limits {
        Limits { least_k: 0, any_strides: true, ..Limits::NONE }
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        LAUNCH_US + (case.problem.flops() / (TFLOPS * 1e6)).max(case.problem.k as f64 * PRODUCT_US)
    }
}
