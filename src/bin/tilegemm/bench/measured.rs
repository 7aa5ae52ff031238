//! What was measured of a product, before it is written down.

use super::arms::Arm;
use super::report;
use super::timing::Samples;
use candle_tilegemm::{Config, DType};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

/// Set by Ctrl-C: the run ends after the row in hand and is written down.
pub static STOP: AtomicBool = AtomicBool::new(false);

/// Partial sums in 16 bits are rounded as often as the result is, and then some: in bf16 they are off by a result's mean at most.
const SUMS_IN_16_BITS: f64 = 16.0;

/// Times of one row, before they are written down.
#[derive(Default)]
pub struct Measured {
    /// Each with its place in `runs`.
    pub arms: Vec<(Arm, usize)>,
    /// What the arms run; arms that run the same share one.
    pub runs: Vec<Run>,
    /// Arms without a time, and why.
    pub absent: BTreeMap<String, String>,
    pub flags: Vec<String>,
    pub card: Vec<report::Card>,
}

/// What was measured of one kernel or call.
pub struct Run {
    pub kernel: String,
    /// Of zeros where the kernel has nothing to choose.
    pub config: Config,
    pub samples: Samples,
    /// `None` where nothing was compared.
    pub error: Option<Error>,
}

/// The distance to the right result, and what rounding explains.
#[derive(Clone, Copy)]
pub struct Error {
    pub error: f64,
    pub tolerance: f64,
}

impl Run {
    /// Whether it computed something else than the product.
    pub fn is_wrong(&self) -> bool {
        self.error.is_some_and(|error| error.error > error.tolerance)
    }

    /// The flag for its result as one of `arm`: `wrong`, or `inexact` where the arm may add partial sums in 16 bits and that
    /// explains the error.
    pub fn flag(&self, arm: &Arm, dtype: DType) -> Option<&'static str> {
        let Error { error, tolerance } = self.error.filter(|_| self.is_wrong())?;
        let explained = arm.may_add_in_16_bits(dtype) && error <= SUMS_IN_16_BITS * tolerance;
        Some(if explained { "inexact" } else { "wrong" })
    }
}

impl Measured {
    /// What was measured of an arm.
    pub fn run_of(&self, arm: &Arm) -> Option<&Run> {
        let (_, index) = self.arms.iter().find(|(other, _)| other == arm)?;
        self.runs.get(*index)
    }
}

#[cfg(test)]
mod tests {
    use super::{Arm, Error, Run, Samples};
    use candle_tilegemm::{Config, DType};

    #[test]
    fn only_arms_that_may_add_in_16_bits_are_inexact_and_not_wrong() {
        let flag = |arm: Arm, dtype, error| {
            let error = Some(Error { error, tolerance: 0.0625 });
            Run { kernel: String::new(), config: Config::default(), samples: Samples::default(), error }
                .flag(&arm, dtype)
        };
        for arm in [Arm::Candle, Arm::CublasLtAny] {
            let errors = [0.05, 0.5, 1.5, 1e300].map(|error| flag(arm.clone(), DType::BF16, error));
            assert_eq!(errors, [None, Some("inexact"), Some("wrong"), Some("wrong")], "{}", arm.name());
            assert_eq!(flag(arm, DType::F32, 0.5), Some("wrong"));
        }
        for arm in [Arm::Ours, Arm::Own, Arm::OwnBest, Arm::CublasLt] {
            assert_eq!(flag(arm, DType::BF16, 0.5), Some("wrong"));
        }
    }
}
