//! The data for errors of f32 products, for `tilegemm f32` and for tests/gpu/exactness.rs.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use std::fmt;

/// Rows of A and columns of B.
pub const SIZE: usize = 512;

/// The distribution of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// N(0, 1).
    Normal,
    /// Uniform in 0 ... 1: all errors of a sum have one sign.
    Positive,
    /// Each product is followed by its opposite, which differs in the last bits.
    Cancelling,
    /// N(0, 1) times 1e-15 ... 1e15.
    Wide,
    /// Rows times 1e-30 ... 1e30, columns times 1e-30 ... 1e4; where the result is above 1e-30.
    Scaled,
    /// Whole numbers up to 30: sums are exact.
    Integers,
    /// Whole numbers up to a million.
    LargeIntegers,
    /// 1.003 ... 1.004: all low parts have one sign.
    Narrow,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Normal => "N(0, 1)",
            Kind::Positive => "0 ... 1",
            Kind::Cancelling => "cancelling",
            Kind::Wide => "1e-15 ... 1e15",
            Kind::Scaled => "rows, columns scaled by 1e-30 ... 1e30",
            Kind::Integers => "whole numbers up to 30",
            Kind::LargeIntegers => "whole numbers up to a million",
            Kind::Narrow => "1.003 ... 1.004",
        })
    }
}

impl Kind {
    pub const ALL: [Kind; 8] = [
        Kind::Normal,
        Kind::Positive,
        Kind::Cancelling,
        Kind::Wide,
        Kind::Scaled,
        Kind::Integers,
        Kind::LargeIntegers,
        Kind::Narrow,
    ];

    /// A row of A (side 0) or a column of B (side 1): `k` reproducible numbers.
    pub fn vector(self, side: u64, k: usize, index: usize) -> Vec<f32> {
        let mut rng = StdRng::seed_from_u64(1_000_003 * side + 1009 * k as u64 + index as u64);
        let decades: f64 = if side == 0 { rng.random_range(-30.0..30.0) } else { rng.random_range(-30.0..4.0) };
        let mut before = 0.0;
        let draw = |p: usize| {
            let normal: f64 = StandardNormal.sample(&mut rng);
            let x = match self {
                Kind::Normal => normal,
                Kind::Positive => rng.random_range(0.0..1.0),
                // The second number of a pair: equal to the first, or its opposite.
                Kind::Cancelling if p % 2 == 1 && side == 0 => before,
                Kind::Cancelling if p % 2 == 1 => -before * (1.0 + f64::from(rng.random_range(0..16)) / 1_048_576.0),
                Kind::Cancelling => normal,
                Kind::Wide => normal * 10f64.powf(rng.random_range(-15.0..15.0)),
                Kind::Scaled => normal * 10f64.powf(decades),
                Kind::Integers => f64::from(rng.random_range(-30..=30)),
                Kind::LargeIntegers => f64::from(rng.random_range(-1_048_576..=1_048_576)),
                Kind::Narrow => rng.random_range(1.003..1.004),
            };
            before = f64::from(x as f32);
            x as f32
        };
        (0..k).map(draw).collect()
    }

    /// The largest error over |A| @ |B|, and the root of the mean square error. `exact` has A @ B and |A| @ |B|.
    pub fn errors(self, d: &[f32], exact: impl IntoIterator<Item = (f64, f64)>) -> [f64; 2] {
        let (mut most, mut squares, mut count) = (0f64, 0.0, 0.0);
        for (&d, (exact, size)) in d.iter().zip(exact) {
            if self == Kind::Scaled && !(1e-30..1e37).contains(&size) {
                continue;
            }
            let error = (f64::from(d) - exact).abs();
            // A NaN counts as the largest error: `min` returns the other number.
            let error = if error == 0.0 { 0.0 } else { (error / size).min(1.0) };
            (most, squares, count) = (most.max(error), squares + error * error, count + 1.0);
        }
        [most, (squares / f64::max(count, 1.0)).sqrt()]
    }
}
