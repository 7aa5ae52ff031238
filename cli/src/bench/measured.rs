//! The measurements of a product, before the record has them.

use super::arms::Arm;
use super::grouped::CANDLES;
use super::report;
use super::samples::Samples;
use candle_tilegemm::{Config, Format};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

/// Set by Ctrl-C: the run ends after the row in hand, and the record is written.
pub static STOP: AtomicBool = AtomicBool::new(false);

/// The factor on the tolerance for partial sums in 16 bits. Such sums are rounded at least as often as the result: in
/// bf16 their error is at most a result's mean.
const SUMS_IN_16_BITS: f64 = 16.0;

/// Times of one row, before the row is written.
#[derive(Default)]
pub struct Measured {
    /// The arms, each with its index in `runs`.
    pub arms: Vec<(Arm, usize)>,
    /// The measured runs; arms with the same launches share a run.
    pub runs: Vec<Run>,
    /// Arms without a time, with the reason.
    pub absent: BTreeMap<String, String>,
    pub flags: Vec<String>,
    pub card: Vec<report::Card>,
    /// Calls that learning has cost.
    pub lost_calls: Option<f64>,
}

/// The measurement of one kernel or call.
pub struct Run {
    pub kernel: String,
    /// The configuration; all zeros where the kernel has no configuration.
    pub config: Config,
    pub samples: Samples,
    /// Microseconds in kernels, for a call that no graph can hold.
    pub us_in_kernels: Option<f64>,
    /// Microseconds in a program that calls the product, where the run learned.
    pub us_in_program: Option<f64>,
    /// `None` without a check.
    pub error: Option<Error>,
}

/// The distance to the reference, and the distance that rounding explains.
#[derive(Clone, Copy)]
pub struct Error {
    pub error: f64,
    pub tolerance: f64,
}

impl Run {
    /// Whether the result is not the product.
    pub fn is_wrong(&self) -> bool {
        self.error.is_some_and(|error| error.error > error.tolerance)
    }

    /// The flag for the result as a result of `arm`: `wrong`, or `inexact` where the arm may add partial sums in 16
    /// bits and such sums explain the error.
    pub fn flag(&self, arm: &Arm, dtype: Format) -> Option<&'static str> {
        let Error { error, tolerance } = self.error.filter(|_| self.is_wrong())?;
        // candle's kernel for experts adds in f32.
        let in_16_bits = arm.may_add_in_16_bits(dtype) && self.kernel != CANDLES;
        let explained = in_16_bits && error <= SUMS_IN_16_BITS * tolerance;
        Some(if explained { "inexact" } else { "wrong" })
    }
}

impl Measured {
    /// The measurement of an arm.
    pub fn run_of(&self, arm: &Arm) -> Option<&Run> {
        let (_, index) = self.arms.iter().find(|(other, _)| other == arm)?;
        self.runs.get(*index)
    }
}

#[cfg(test)]
mod tests {
    use super::{Arm, Error, Run, Samples};
    use candle_tilegemm::{Config, Format};

    #[test]
    fn only_arms_that_may_add_in_16_bits_are_inexact_and_not_wrong() {
        let flag = |arm: Arm, dtype, error| {
            let error = Some(Error { error, tolerance: 0.0625 });
            let samples = Samples::default();
            Run {
                kernel: String::new(),
                config: Config::default(),
                samples,
                us_in_kernels: None,
                us_in_program: None,
                error,
            }
            .flag(&arm, dtype)
        };
        for arm in [Arm::Candle, Arm::CublasLtAny] {
            let errors = [0.05, 0.5, 1.5, 1e300].map(|error| flag(arm.clone(), Format::BF16, error));
            assert_eq!(errors, [None, Some("inexact"), Some("wrong"), Some("wrong")], "{}", arm.name());
            assert_eq!(flag(arm, Format::F32, 0.5), Some("wrong"));
        }
        for arm in [Arm::Ours, Arm::Own, Arm::OwnBest, Arm::CublasLt] {
            assert_eq!(flag(arm, Format::BF16, 0.5), Some("wrong"));
        }
    }
}
