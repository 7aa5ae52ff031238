//! Random numbers of N(0, 1) for operands: drawn once, and read from a place that the seed gives. Drawing them anew took most of the suite's time.

use crate::device::Element;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use std::sync::LazyLock;

/// A prime: whatever the length of a row, no two rows of a matrix have the same numbers at the same columns, unless the matrix has as many rows.
const COUNT: usize = 4_194_301;

// By one thread: threads that wait for each other's work must not wait for this.
static NORMAL: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let mut rng = StdRng::seed_from_u64(0);
    (0..COUNT).map(|_| StandardNormal.sample(&mut rng)).collect()
});

/// The numbers from a place on, without end.
pub fn normals(rng: &mut StdRng) -> impl Iterator<Item = f64> {
    let all = NORMAL.as_slice();
    let (before, from) = all.split_at(rng.random_range(0..COUNT));
    from.iter().chain(before).copied().cycle()
}

/// So many numbers.
pub fn normal<T: Element>(count: usize, rng: &mut StdRng) -> Vec<T> {
    normals(rng).take(count).map(T::from_f64).collect()
}
