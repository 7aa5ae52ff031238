//! The choices of tokens among experts, by a seed.
//!
//! As for random products, ChaCha8 gives the numbers and all arithmetic is on integers: a routing is the same on every platform and in every
//! version. Each token has a stream of its own, so that more tokens leave the choices of the first tokens alone.

use super::random::Draw;
use super::{Distribution, Shape, ShapeGroups};
use candle_tilegemm::problem::Problem;
use std::ops::Range;

/// The lists of a product in groups. Rows of the product are sorted by expert, and rows of an expert by pair.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// The pair of each row of the product.
    pub pairs: Vec<u32>,
    /// The expert of each row of the product, ascending.
    pub experts: Vec<u32>,
    /// The factor of each pair, above 0 and at most 1; none unless the groups are scaled.
    pub factors: Option<Vec<f32>>,
    /// Tokens, each with as many pairs as experts.
    pub tokens: usize,
    pairs_per_row: usize,
}

/// The stream of the ranks of experts, and of the factors. Streams of tokens are below.
const RANKS: u64 = 1 << 62;
const FACTORS: u64 = RANKS + 1;
/// The weight of the first rank in Zipf's distribution.
const FIRST: u64 = 1 << 32;

impl Routing {
    /// The routing of a product of `m` rows.
    pub fn draw(groups: &ShapeGroups, m: usize) -> Self {
        let (seed, top_k) = (groups.seed.into(), groups.top_k.get());
        let weights = weights(groups);
        let mut rows: Vec<(u32, u32)> = Vec::with_capacity(m);
        let tokens = groups.tokens(m);
        for token in 0..tokens {
            let chosen = choose(&weights, top_k, &mut Draw::new(seed, token as u64));
            let first = (token * top_k) as u32;
            rows.extend((first..).zip(chosen).map(|(pair, expert)| (expert, pair)));
        }
        rows.sort_unstable();
        let (experts, pairs) = rows.into_iter().unzip();
        let mut draw = Draw::new(seed, FACTORS);
        let mut factor = || (1 + draw.below(1 << 24)) as f32 / (1 << 24) as f32;
        let factors = groups.scaled.then(|| (0..m).map(|_| factor()).collect());
        Self { pairs, experts, factors, tokens, pairs_per_row: groups.pairs_per_row() }
    }

    /// The routing of a row that has groups.
    pub fn of_row(row: &Shape) -> Option<Self> {
        row.groups.map(|groups| Self::draw(&groups, row.m.get()))
    }

    /// The experts that have rows, each with its rows of the product.
    pub fn of_experts(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let mut next = 0;
        self.experts.chunk_by(|x, y| x == y).map(move |rows| {
            let first = next;
            next += rows.len();
            (rows[0] as usize, first..next)
        })
    }

    /// Experts that have rows.
    pub fn hit(&self) -> usize {
        self.of_experts().count()
    }

    /// Rows of the expert that has most.
    pub fn largest(&self) -> usize {
        self.of_experts().map(|(_, rows)| rows.len()).max().unwrap_or(0)
    }

    /// The row of A of each row of the product.
    pub fn rows_of_a(&self) -> Vec<u32> {
        self.pairs.iter().map(|pair| pair / self.pairs_per_row as u32).collect()
    }

    /// The row of the product of each pair.
    pub fn rows_of_pairs(&self) -> Vec<u32> {
        let mut rows = vec![0; self.pairs.len()];
        for (row, pair) in (0..).zip(&self.pairs) {
            rows[*pair as usize] = row;
        }
        rows
    }

    /// The problem with the number of experts that have rows in place of the expected number: the memory that the product moves.
    pub fn of(&self, problem: &Problem) -> Problem {
        problem.with(|p| p.groups = p.groups.map(|groups| groups.with(|groups| groups.filled = self.hit())))
    }
}

/// The weight of each expert.
fn weights(groups: &ShapeGroups) -> Vec<u64> {
    let experts = groups.experts.get();
    match groups.routing {
        Distribution::Uniform => vec![1; experts],
        Distribution::Zipf => {
            let mut weights: Vec<u64> = (1..=experts as u64).map(|rank| (FIRST / rank).max(1)).collect();
            let mut draw = Draw::new(groups.seed.into(), RANKS);
            for last in (1..experts).rev() {
                weights.swap(last, draw.below(last + 1));
            }
            weights
        }
    }
}

/// Distinct experts by their weights, one after the other among the experts that are left.
fn choose(weights: &[u64], count: usize, draw: &mut Draw) -> Vec<u32> {
    let mut left = weights.to_vec();
    let mut sum: u64 = left.iter().sum();
    let mut chosen = Vec::with_capacity(count);
    for _ in 0..count {
        let mut at = draw.below(sum as usize) as u64;
        let expert = left.iter().position(|weight| {
            let is_here = at < *weight;
            at = at.saturating_sub(*weight);
            is_here
        });
        let expert = expert.expect("a number below the sum of the weights lies in one of them");
        sum -= std::mem::take(&mut left[expert]);
        chosen.push(expert as u32);
    }
    chosen
}
