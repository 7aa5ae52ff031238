//! The errors of a family's estimates as its measurements show them: boosted regression trees over facts of the launch.
//!
//! A model of a kernel leaves errors of some 10 %, which differ from shape to shape but hardly from run to run: two measurements of a kernel
//! on two cards differ by 1 %. So `tilegemm fit` learns the logarithm of measured over estimated time from random products, by gradient
//! boosting (Friedman, "Greedy function approximation", 2001) over oblivious trees, which ask one question on each level (Prokhorenkova et
//! al., "CatBoost", 2018). The data lie in `tuning/<card>/trees/<family>.toml`, which build.rs turns into constants.

use crate::arch::{Chip, DeviceInfo, Known};
use std::ops::RangeInclusive;

/// Questions of a tree.
pub const DEPTH: usize = 6;
/// The unit of leaves, by logarithm.
pub const LEAF_UNIT: f64 = 1e-4;
/// A factor stays in this range, whatever the trees say.
pub const FACTORS: RangeInclusive<f64> = 0.85..=2.0;

/// A tree: the answers to its questions, the first in the lowest bit, are the place of its leaf.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tree {
    /// Whether the fact is greater than the number.
    pub splits: [(Fact, f32); DEPTH],
    /// Logarithms of factors, in [`LEAF_UNIT`].
    pub leaves: [i16; 1 << DEPTH],
}

/// Declares the facts and their list.
macro_rules! facts {
    ($($(#[doc = $meaning:literal])+ $fact:ident,)*) => {
        /// A fact of a launch. Sizes, counts and times are logarithms to base 2.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Fact { $($(#[doc = $meaning])+ $fact,)* }

        impl Fact {
            /// Every fact, in the order of [`Facts`].
            pub const ALL: &[Fact] = &[$(Fact::$fact),*];
        }
    };
}

facts! {
    /// Rows of D.
    M,
    /// Columns of D.
    N,
    /// The length of the sums.
    K,
    /// Matrices.
    Batch,
    /// The estimate in microseconds.
    Us,
    /// Elements of D.
    Outputs,
    /// Multiplications.
    Flops,
    /// Multiplications for each element of A, B and D.
    Intensity,
    /// Rows of an output tile, not by logarithm.
    TileM,
    /// Columns of an output tile, not by logarithm.
    TileN,
    /// K of a pipeline stage, not by logarithm.
    TileK,
    /// Blocks of a cluster along M, not by logarithm.
    ClusterM,
    /// Blocks of a cluster along N, not by logarithm.
    ClusterN,
    /// Parts of K, not by logarithm.
    Split,
    /// Pipeline stages, not by logarithm.
    Stages,
    /// Warps, not by logarithm.
    Warps,
    /// 1 where B is on the tensor cores' M side.
    SwapAb,
    /// The place of the kernel among the kernels of its family with the same types and layout.
    Variant,
    /// Blocks of the launch.
    Blocks,
    /// Waves of blocks, not by logarithm, 24 at most.
    Waves,
    /// The share of the multiprocessors that the last wave occupies; 0 where the last wave occupies all.
    LastWave,
    /// Waves, rounded up, over waves.
    Waste,
    /// Rows of tiles over rows of D.
    PadM,
    /// Columns of tiles over columns of D.
    PadN,
    /// `Waste` of tiles of 128 x 128, of 256 x 128, and of 128 x 256.
    Waste128x128,
    /// The same.
    Waste256x128,
    /// The same.
    Waste128x256,
    /// Rows of D modulo 64, not by logarithm.
    MMod64,
    /// The largest power of two that divides N, 512 at most.
    DivisorN,
    /// The largest power of two that divides K, 512 at most.
    DivisorK,
    /// The least alignment of an operand in bytes, 16 at most.
    Align,
    /// 1 where columns of A are contiguous.
    TransposedA,
    /// 1 where columns of B are contiguous.
    TransposedB,
    /// 1 where f32 may be TF32.
    Tf32,
    /// Bits of an element of A, not by logarithm.
    Bits,
}

/// The facts of a launch.
pub type Facts = [f32; Fact::ALL.len()];

/// Launches that go through the trees together, as many as a vector register has room for.
const LANES: usize = 4;
/// Trees whose leaves are found before any is read: a compiler uses vector instructions for questions alone.
const TREES: usize = 32;

/// The factors on estimates by these trees.
pub fn factors(trees: &[Tree], launches: &[Facts]) -> Vec<f64> {
    launches.chunks(LANES).flat_map(|chunk| some_factors(trees, chunk).into_iter().take(chunk.len())).collect()
}

fn some_factors(trees: &[Tree], launches: &[Facts]) -> [f64; LANES] {
    let mut facts = [[0.0f32; LANES]; Fact::ALL.len()];
    for (lane, launch) in launches.iter().enumerate() {
        for (fact, value) in facts.iter_mut().zip(launch) {
            fact[lane] = *value;
        }
    }
    let mut sums = [0i32; LANES];
    for trees in trees.chunks(TREES) {
        let mut places = [[0u32; LANES]; TREES];
        for (places, tree) in places.iter_mut().zip(trees) {
            for (level, (fact, bound)) in tree.splits.iter().enumerate() {
                for (place, value) in places.iter_mut().zip(&facts[*fact as usize]) {
                    *place |= u32::from(value > bound) << level;
                }
            }
        }
        for (places, tree) in places.iter().zip(trees) {
            for (sum, place) in sums.iter_mut().zip(places) {
                *sum = sum.wrapping_add(i32::from(tree.leaves[*place as usize % (1 << DEPTH)]));
            }
        }
    }
    sums.map(|sum| (f64::from(sum) * LEAF_UNIT).exp().clamp(*FACTORS.start(), *FACTORS.end()))
}

/// The facts of a problem that have to lie between the least and the largest of the measurements.
pub const BOUNDED: [Fact; 6] = [Fact::M, Fact::N, Fact::K, Fact::Batch, Fact::Outputs, Fact::Flops];
/// How far a fact may lie outside, as a difference of logarithms to base 2.
const SLACK: f32 = 0.1;

/// The trees of a family, and the problems that they hold for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trees<'a> {
    /// The chip of the card that the measurements are of: the trees hold for cards with the same.
    pub chip: Chip,
    /// The least and the largest of each of the facts [`BOUNDED`].
    pub ranges: [[f32; 2]; BOUNDED.len()],
    /// In the order in which they were learned.
    pub trees: &'a [Tree],
}

impl Trees<'_> {
    /// No trees.
    pub const NONE: Trees<'static> =
        Trees { chip: Known::named("h100").chip, ranges: [[0.0; 2]; BOUNDED.len()], trees: &[] };

    /// Whether there are trees, and they hold for the device.
    pub fn hold_for(&self, device: &DeviceInfo) -> bool {
        !self.trees.is_empty() && self.chip == device.chip()
    }

    /// Whether the trees hold for a problem with these facts.
    pub fn hold(&self, of_problem: &Facts) -> bool {
        let within = |(fact, [least, most]): (Fact, [f32; 2])| {
            (least - SLACK..=most + SLACK).contains(&of_problem[fact as usize])
        };
        BOUNDED.into_iter().zip(self.ranges).all(within)
    }
}
