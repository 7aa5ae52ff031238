//! The data for errors of products, for `tilegemm errors`, and for tests/gpu.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal, StudentT};
use std::fmt;

/// Rows of A and columns of B for errors of f32 products.
pub const SIZE: usize = 512;
/// Of so many rows of A or columns of B one has outliers, and of so many activations one is an outlier.
const OUTLIER_ROW: usize = 8;
const OUTLIER_COLUMN: usize = 64;

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
    /// Student's t with three degrees of freedom.
    HeavyTailed,
    /// N(0, 1), one of eight rows of A and of eight columns of B times 1000.
    OutlierRows,
    /// N(0, 1), one of 64 columns of A times 100.
    OutlierColumns,
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
            Kind::HeavyTailed => "heavy-tailed",
            Kind::OutlierRows => "outlier rows",
            Kind::OutlierColumns => "outlier columns",
        })
    }
}

impl Kind {
    /// The data of f32 products.
    pub const OF_F32: [Kind; 8] = [
        Kind::Normal,
        Kind::Positive,
        Kind::Cancelling,
        Kind::Wide,
        Kind::Scaled,
        Kind::Integers,
        Kind::LargeIntegers,
        Kind::Narrow,
    ];

    /// The data of products with quantised weights. An f16 factor holds the weights of each.
    pub const OF_BLOCKS: [Kind; 5] =
        [Kind::Normal, Kind::HeavyTailed, Kind::OutlierRows, Kind::OutlierColumns, Kind::Positive];

    /// A row of A (side 0) or a column of B (side 1): `k` reproducible numbers.
    pub fn vector(self, side: u64, k: usize, index: usize) -> Vec<f32> {
        let mut rng = StdRng::seed_from_u64(1_000_003 * side + 1009 * k as u64 + index as u64);
        let decades: f64 = if side == 0 { rng.random_range(-30.0..30.0) } else { rng.random_range(-30.0..4.0) };
        let heavy = StudentT::new(3.0).expect("3 degrees of freedom are some");
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
                Kind::HeavyTailed => heavy.sample(&mut rng),
                Kind::OutlierRows if index % OUTLIER_ROW == 3 => 1000.0 * normal,
                Kind::OutlierColumns if side == 0 && p % OUTLIER_COLUMN == 7 => 100.0 * normal,
                Kind::OutlierRows | Kind::OutlierColumns => normal,
            };
            before = f64::from(x as f32);
            x as f32
        };
        (0..k).map(draw).collect()
    }

    /// The largest error over |A| @ |B|, and the root of the mean square error. `exact` has A @ B and |A| @ |B|.
    pub fn errors(self, d: &[f32], exact: impl IntoIterator<Item = (f64, f64)>) -> [f64; 2] {
        self.errors_beyond(d, exact, |_| 0.0)
    }

    /// The same of what errors are beyond those that an exact result `allows`.
    pub fn errors_beyond(
        self,
        d: &[f32],
        exact: impl IntoIterator<Item = (f64, f64)>,
        allows: impl Fn(f64) -> f64,
    ) -> [f64; 2] {
        let (mut most, mut squares, mut count) = (0f64, 0.0, 0.0);
        for (&d, (exact, size)) in d.iter().zip(exact) {
            if self == Kind::Scaled && !(1e-30..1e37).contains(&size) {
                continue;
            }
            let error = (f64::from(d) - exact).abs() - allows(exact);
            // A NaN counts as the largest error: `min` returns the other number.
            let error = if error <= 0.0 { 0.0 } else { (error / size).min(1.0) };
            (most, squares, count) = (most.max(error), squares + error * error, count + 1.0);
        }
        [most, (squares / f64::max(count, 1.0)).sqrt()]
    }
}
