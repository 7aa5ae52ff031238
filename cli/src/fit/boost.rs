//! Gradient boosting of oblivious trees, for squared errors.
//!
//! Sources: Friedman, "Greedy function approximation: a gradient boosting machine" (2001) and "Stochastic gradient boosting" (2002);
//! Prokhorenkova et al., "CatBoost: unbiased boosting with categorical features" (2018) for trees with one question on each level. Such a
//! tree is a table of leaves, and takes a plan some nanoseconds.

use candle_tilegemm::internal::fit::{Fact, Facts, Tree, DEPTH, LEAF_UNIT};
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How closely trees follow the samples.
#[derive(Clone, Copy)]
pub struct Pace {
    /// Trees at most; fewer where a tree would have fewer than [`LEAST_SHARE`] samples.
    trees: usize,
    /// The share of a tree's step that is taken.
    rate: f64,
    /// The weight of samples with no error that each leaf gets beside its own.
    ridge: f64,
}

/// Of a family's trees, and of those that continue another card's.
pub const WHOLE: Pace = Pace { trees: 160, rate: 0.3, ridge: 3.0 };
pub const CONTINUED: Pace = Pace { trees: 16, rate: 0.2, ridge: 5.0 };
const LEAST_SHARE: usize = 8;
/// The most bounds of a fact.
const BOUNDS: usize = 48;
/// The share of the samples that a tree's questions are chosen by, and the share of the facts that a question may be about.
const SAMPLED: f64 = 0.8;
const ASKED: f64 = 0.5;

/// A measurement.
#[derive(Clone, Copy)]
pub struct Sample {
    pub facts: Facts,
    /// The logarithm of the measured over the expected time.
    pub target: f64,
    pub weight: f64,
}

/// Random numbers, the same in each run.
struct Random(ChaCha8Rng);

impl Random {
    fn of(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// From 0 to 1.
    fn next(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A fact's bounds, and for each sample the number of bounds that its fact is greater than.
struct Column {
    fact: Fact,
    bounds: Vec<f32>,
    places: Vec<u8>,
}

impl Column {
    fn of(fact: Fact, samples: &[Sample]) -> Self {
        let value = |sample: &Sample| sample.facts[fact as usize];
        let mut values: Vec<f32> = samples.iter().map(value).collect();
        values.sort_by(f32::total_cmp);
        let step = values.len() as f64 / (BOUNDS + 1) as f64;
        let quantile = |i: usize| (i as f64 * step) as usize;
        // Between two different values near each quantile.
        let between = |at: usize| {
            let next = values.partition_point(|value| *value <= values[at]);
            values.get(next).map(|next| 0.5 * (values[at] + next))
        };
        let mut bounds: Vec<f32> = (0..=BOUNDS).filter_map(|i| between(quantile(i))).collect();
        bounds.dedup();
        let place = |sample: &Sample| bounds.partition_point(|bound| value(sample) > *bound) as u8;
        let places = samples.iter().map(place).collect();
        Self { fact, bounds, places }
    }

    /// The best bound for the next question of a tree, and the gain of the question: `leaves` has each sample's leaf so far.
    fn best(
        &self,
        level: usize,
        rows: &[usize],
        leaves: &[u8],
        errors: &[f64],
        samples: &[Sample],
        ridge: f64,
    ) -> (f64, usize) {
        let width = self.bounds.len() + 1;
        let mut sums = vec![[0.0f64; 2]; width << level];
        for &row in rows {
            let sum = &mut sums[usize::from(leaves[row]) * width + usize::from(self.places[row])];
            sum[0] += samples[row].weight * errors[row];
            sum[1] += samples[row].weight;
        }
        let mut gains = vec![0.0; self.bounds.len()];
        for leaf in sums.chunks(width) {
            let total = leaf.iter().fold([0.0; 2], |total, sum| [total[0] + sum[0], total[1] + sum[1]]);
            let mut below = [0.0; 2];
            for (gain, sum) in gains.iter_mut().zip(leaf) {
                below = [below[0] + sum[0], below[1] + sum[1]];
                let explained = |[error, weight]: [f64; 2]| error * error / (weight + ridge);
                *gain += explained(below) + explained([total[0] - below[0], total[1] - below[1]]);
            }
        }
        let best = gains.into_iter().enumerate().max_by(|x, y| x.1.total_cmp(&y.1));
        best.map_or((0.0, 0), |(bound, gain)| (gain, bound))
    }
}

/// Trees whose sum is near the samples' targets.
pub fn trees(samples: &[Sample], pace: Pace) -> Vec<Tree> {
    let columns: Vec<Column> = Fact::ALL.iter().map(|fact| Column::of(*fact, samples)).collect();
    let columns: Vec<Column> = columns.into_iter().filter(|column| !column.bounds.is_empty()).collect();
    let mut random = Random::of(1);
    let mut errors: Vec<f64> = samples.iter().map(|sample| sample.target).collect();
    let mut trees = Vec::new();
    while !columns.is_empty() && trees.len() < pace.trees.min(samples.len() / LEAST_SHARE) {
        let rows: Vec<usize> = (0..samples.len()).filter(|_| random.next() < SAMPLED).collect();
        let mut leaves = vec![0u8; samples.len()];
        let mut tree = Tree { splits: [(Fact::ALL[0], f32::MAX); DEPTH], leaves: [0; 1 << DEPTH] };
        for level in 0..DEPTH {
            let asked = columns.iter().filter(|_| random.next() < ASKED);
            let best = asked.map(|column| (column.best(level, &rows, &leaves, &errors, samples, pace.ridge), column));
            let Some(((_, bound), column)) = best.max_by(|x, y| x.0 .0.total_cmp(&y.0 .0)) else { continue };
            tree.splits[level] = (column.fact, column.bounds[bound]);
            for (leaf, place) in leaves.iter_mut().zip(&column.places) {
                *leaf |= u8::from(usize::from(*place) > bound) << level;
            }
        }
        let mut sums = [[0.0f64; 2]; 1 << DEPTH];
        for ((leaf, error), sample) in leaves.iter().zip(&errors).zip(samples) {
            let sum = &mut sums[usize::from(*leaf)];
            *sum = [sum[0] + sample.weight * error, sum[1] + sample.weight];
        }
        tree.leaves =
            sums.map(|[error, weight]| (pace.rate * error / (weight + pace.ridge) / LEAF_UNIT).round() as i16);
        for (leaf, error) in leaves.iter().zip(&mut errors) {
            *error -= f64::from(tree.leaves[usize::from(*leaf)]) * LEAF_UNIT;
        }
        trees.push(tree);
    }
    trees
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_tilegemm::internal::fit::factors;

    /// Samples whose target depends on two facts together.
    fn samples(seed: u64, count: usize) -> Vec<Sample> {
        let mut random = Random::of(seed);
        let sample = |_| {
            let mut facts = [0.0; Fact::ALL.len()];
            facts.fill_with(|| (16.0 * random.next()) as f32);
            let [m, k] = [Fact::M, Fact::K].map(|fact| facts[fact as usize]);
            let target = if (m > 5.0) != (k > 9.0) { 0.2 } else { -0.1 };
            Sample { facts, target, weight: 1.0 }
        };
        (0..count).map(sample).collect()
    }

    #[test]
    fn trees_find_what_two_facts_say_together() {
        let trees = trees(&samples(1, 2000), WHOLE);
        let unseen = samples(2, 500);
        let facts: Vec<Facts> = unseen.iter().map(|sample| sample.facts).collect();
        let errors = unseen.iter().zip(factors(&trees, &facts)).map(|(sample, f)| (f.ln() - sample.target).abs());
        let mean = errors.sum::<f64>() / unseen.len() as f64;
        assert!(mean < 0.02, "{mean}");
    }

    #[test]
    fn the_same_samples_give_the_same_trees_and_few_samples_give_few() {
        assert_eq!(trees(&samples(1, 300), WHOLE), trees(&samples(1, 300), WHOLE));
        assert_eq!(trees(&samples(1, 80), WHOLE).len(), 80 / LEAST_SHARE);
        assert!(trees(&[], WHOLE).is_empty());
    }
}
