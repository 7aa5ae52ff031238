//! The errors of a family's estimates as its measurements show them: boosted regression trees over facts of the launch.
//!
//! A model of a kernel leaves errors of some 10 %, which differ from shape to shape but hardly from run to run: two measurements of a kernel
//! on two cards differ by 1 %. So `tilegemm fit` learns the logarithm of measured over estimated time from random products, by gradient
//! boosting (Friedman, "Greedy function approximation", 2001) over oblivious trees, which ask one question on each level (Prokhorenkova et
//! al., "CatBoost", 2018). The data lie in `tuning/<card>/trees/<family>.toml`, which build.rs turns into constants.

use crate::arch::{Chip, DeviceInfo, Known};
use crate::config::Config;
use crate::kernel::Case;
use crate::problem::{F32Mode, Problem};
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

/// Sets facts.
fn set<const N: usize>(facts: &mut Facts, values: [(Fact, f32); N]) {
    for (fact, value) in values {
        facts[fact as usize] = value;
    }
}

/// Tiles that D has.
fn tiles(problem: &Problem, rows: usize, columns: usize) -> f32 {
    (problem.m.div_ceil(rows) * problem.n.div_ceil(columns) * problem.batch_count()) as f32
}

/// Waves, rounded up, over waves.
fn waste(waves: f32) -> f32 {
    waves.ceil() / waves
}

/// The facts of a problem on a device; the facts of the launch are 0.
pub fn of_problem(problem: &Problem, device: &DeviceInfo) -> Facts {
    let (m, n, k) = (problem.m, problem.n, problem.k);
    let [log_m, log_n, log_k, log_batch] = [m, n, k, problem.batch_count()].map(|size| (size as f32).log2());
    let outputs = log_m + log_n + log_batch;
    let elements = (m as f32 * k as f32 + k as f32 * n as f32 + m as f32 * n as f32).log2() + log_batch;
    let waste_of = |rows, columns| waste(tiles(problem, rows, columns) / device.sm_count as f32);
    let divisor = |size: usize| size.trailing_zeros().min(9) as f32;
    let align = problem.alignments().iter().map(|(_, align)| *align).min().unwrap_or(16).min(16);
    let flag = |flag: bool| f32::from(u8::from(flag));
    let mut facts = [0.0; Fact::ALL.len()];
    let of_shape = [
        (Fact::M, log_m),
        (Fact::N, log_n),
        (Fact::K, log_k),
        (Fact::Batch, log_batch),
        (Fact::Outputs, outputs),
        (Fact::Flops, outputs + log_k),
        (Fact::Intensity, outputs + log_k - elements),
        (Fact::Waste128x128, waste_of(128, 128)),
        (Fact::Waste256x128, waste_of(256, 128)),
        (Fact::Waste128x256, waste_of(128, 256)),
        (Fact::MMod64, (m % 64) as f32),
        (Fact::DivisorN, divisor(n)),
        (Fact::DivisorK, divisor(k)),
        (Fact::Align, align.trailing_zeros() as f32),
        (Fact::TransposedA, flag(problem.a.col_stride != 1)),
        (Fact::TransposedB, flag(problem.b.row_stride != 1)),
        (Fact::Tf32, flag(problem.is_f32() && problem.f32_mode == F32Mode::Tf32)),
        (Fact::Bits, problem.a.format.bits() as f32),
    ];
    set(&mut facts, of_shape);
    facts
}

/// The facts of a kernel's launch in this configuration, which the family's model expects to take `us` microseconds, from the facts
/// of the problem.
pub fn of_launch(mut facts: Facts, case: &Case, config: &Config, us: f64) -> Facts {
    let Case { kernel, problem, device, .. } = *case;
    let or = |configured: u32, row: u32| if configured == 0 { row } else { configured };
    let [tile_m, tile_n] = [0, 1].map(|of| or(config.tile[of], kernel.tile[of]));
    let [cluster_m, cluster_n] = [0, 1].map(|of| or(config.cluster[of], kernel.cluster[of]).max(1));
    let split = config.split.max(1) as f32;
    // The vendor's tiles are unknown.
    let [rows, columns] = [tile_m, tile_n].map(|side| if side == 0 { 128 } else { side as usize });
    let blocks = tiles(problem, rows, columns) * split;
    let waves = blocks / device.sm_count as f32;
    let pad = |size: usize, tile: usize| (size.div_ceil(tile) * tile) as f32 / size as f32;
    let of_launch = [
        (Fact::Us, (us as f32).log2()),
        (Fact::TileM, tile_m as f32),
        (Fact::TileN, tile_n as f32),
        (Fact::TileK, kernel.tile[2] as f32),
        (Fact::ClusterM, cluster_m as f32),
        (Fact::ClusterN, cluster_n as f32),
        (Fact::Split, split),
        (Fact::Stages, or(config.stages, kernel.stages) as f32),
        (Fact::Warps, or(config.warps, kernel.warps) as f32),
        (Fact::SwapAb, f32::from(u8::from(config.swap_ab))),
        (Fact::Variant, kernel.room.variant as f32),
        (Fact::Blocks, blocks.log2()),
        (Fact::Waves, waves.min(24.0)),
        (Fact::LastWave, waves.fract()),
        (Fact::Waste, waste(waves)),
        (Fact::PadM, pad(problem.m, rows)),
        (Fact::PadN, pad(problem.n, columns)),
    ];
    set(&mut facts, of_launch);
    facts
}

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
