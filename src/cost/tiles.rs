//! A model of persistent kernels with output tiles: tiles are spread over the multiprocessors in waves; each wave takes as long as its
//! arithmetic or its loads, whichever is longer, and the whole no less than device memory needs.

use super::pipeline::{l2_us, l2_us_of_one, memory_us};
use super::{arithmetic_us, overlapped, peak_tflops};
use crate::kernel::Case;

/// What a family adds to the model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiles {
    /// Whether the blocks of a cluster compute one tile together; else each block has its own.
    pub shares_tile: bool,
    /// What a multiprocessor does of its share of the sustained peak between two epilogues.
    pub efficiency: f64,
    pub epilogue: EpilogueTime,
    /// What loads of a tile that D cuts off cost, as a share of a tile's time.
    pub cut_off: f64,
    pub loads: Loads,
}

/// How a family loads: shares of what L2 gives to all multiprocessors, and to one that has a single tile, and memory time over that of
/// one pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loads {
    pub l2: f64,
    pub single: f64,
    pub memory: f64,
}

/// When a tile's epilogue runs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EpilogueTime {
    /// After the tile's products, microseconds.
    After(f64),
    /// While the tensor cores multiply the next tile into other sums, microseconds. Nothing hides the last epilogue.
    Under(f64),
    /// While another warp group multiplies the next tile, microseconds beside the products, and the share of the last epilogue that
    /// nothing hides.
    Beside(f64, f64),
}

impl Tiles {
    /// Whole waves of tiles that the product takes.
    pub fn waves(case: &Case, shares_tile: bool) -> f64 {
        let (tiles, slots) = tiles_and_slots(case, shares_tile);
        (tiles / slots).ceil()
    }

    pub fn us(&self, case: &Case) -> f64 {
        let [tile_m, tile_n, tile_k] = case.kernel.tile.map(f64::from);
        let [cluster_m, cluster_n] = case.kernel.cluster.map(f64::from);
        let (problem, device) = (case.problem, case.device);
        let blocks_per_tile = if self.shares_tile { cluster_m * cluster_n } else { 1.0 };
        let (along_m, along_n) = if self.shares_tile { (1.0, 1.0) } else { (cluster_m, cluster_n) };
        let (tiles, slots) = tiles_and_slots(case, self.shares_tile);
        let waves = (tiles / slots).ceil();
        let depth = (problem.k as f64 / tile_k).ceil() * tile_k;

        let peak_per_slot = peak_tflops(problem.a.format, case.kernel.math, device) * 1e6 / slots; // FLOP per microsecond
        let products = 2.0 * tile_m * tile_n * depth / (peak_per_slot * self.efficiency);
        let tile_us = match self.epilogue {
            // Two warp groups take turns: each has half of the time.
            EpilogueTime::Beside(us, _) => products.max(0.5 * (products + us)),
            EpilogueTime::Under(us) => products.max(us),
            EpilogueTime::After(us) => products + us,
        };
        let cut_off = if problem.m as f64 % tile_m != 0.0 { self.cut_off } else { 0.0 };
        let last = match self.epilogue {
            EpilogueTime::Beside(us, share) => share * us,
            EpilogueTime::Under(us) => us,
            EpilogueTime::After(_) => 0.0,
        };
        let arithmetic = (waves + cut_off) * tile_us + last;
        // The blocks of a cluster share what they have in common of A and B.
        let tile_bytes = (tile_m / along_n + tile_n / along_m) * depth * problem.a.format.bits() / 8.0;
        let l2 = l2_us(tiles * tile_bytes, self.loads.l2, device);
        let single = l2_us_of_one(tile_bytes / blocks_per_tile, self.loads.single, device);
        let load = if waves > 1.0 { l2 } else { l2.max(single) };
        // Short bursts run above the sustained rate, whole products do not.
        let least = arithmetic_us(problem, case.kernel.math, device);
        overlapped(&[arithmetic, load, self.loads.memory * memory_us(problem, device)]).max(least)
    }
}

/// Tiles of D, and tiles that run at the same time.
fn tiles_and_slots(case: &Case, shares_tile: bool) -> (f64, f64) {
    let [tile_m, tile_n, _] = case.kernel.tile.map(f64::from);
    let [cluster_m, cluster_n] = case.kernel.cluster.map(f64::from);
    let blocks_per_tile = if shares_tile { cluster_m * cluster_n } else { 1.0 };
    // Whole clusters run, also where some of their tiles lie outside of D.
    let (along_m, along_n) = if shares_tile { (1.0, 1.0) } else { (cluster_m, cluster_n) };
    let count = |extent: usize, tile: f64, cluster: f64| (extent as f64 / (tile * cluster)).ceil() * cluster;
    let matrices = case.problem.batch_count() as f64;
    let tiles = count(case.problem.m, tile_m, along_m) * count(case.problem.n, tile_n, along_n) * matrices;
    (tiles, (f64::from(case.device.sm_count) / blocks_per_tile).floor())
}
