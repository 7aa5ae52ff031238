//! `csrc/sm90_skinny`: up to 128 rows in 16 bits, TMA and WGMMA with A and B swapped, K split over a cluster.
//!
//! A configuration names the rows that an instance is compiled for and the rows of W (`tile`), the blocks that split K
//! (`split`) and the stages of the ring. The number of stages decides how many blocks share a multiprocessor.

use crate::config::Config;
use crate::cost::memory_us;
use crate::kernel::{Case, ElementCost, Family, KernelDesc};
use crate::problem::Problem;

/// Launch, scheduling, the first loads and the drain, overlapped with the kernels before and after, microseconds.
const LAUNCH_US: f64 = 1.14;
/// The cost of a second part of K, and of more than two: the path through distributed shared memory. This constant and
/// the constants below are fitted to 37 recordings of 5 to 96 rows (mean error 2 %, at most 6 %).
const SPLIT_US: [f64; 2] = [0.45, 0.55];
/// Latency of a stage from request to arrival, microseconds: with few stages in flight the latency limits a block.
const STAGE_US: f64 = 1.22;
/// Load rate of a multiprocessor for W, GB/s, with one block, and with two: K is short, and some multiprocessors have
/// two blocks while most have one.
const SM_GBPS: [f64; 2] = [50.0, 38.0];
/// Time to store one of the rows that a tile has room for, microseconds.
const ROW_US: f64 = 0.027;

/// Rows of A that the kernel is compiled for.
const ROWS: [u32; 9] = [8, 16, 24, 32, 48, 64, 80, 96, 128];
const SPLITS: [u32; 4] = [1, 2, 4, 8];
const LEAST_STAGES: u32 = 3;
const MOST_STAGES: u32 = 16;
const BARRIERS_BYTES: u32 = 8 * (2 * MOST_STAGES + 1);
const WARPS: u32 = 4;

pub(crate) struct Sm90Skinny;

/// Stages that fit in shared memory beside the other parts' sums, with `residents` blocks on a multiprocessor.
fn stages(kernel: &KernelDesc, rows: u32, split: u32, residents: u32) -> u32 {
    let [_, w_rows, depth] = kernel.tile;
    let fragments = WARPS * rows / 8;
    let inbox = if split > 1 { split * fragments.div_ceil(split) * 512 } else { 0 };
    let room = (228 * 1024 / residents - 1024).saturating_sub(BARRIERS_BYTES + inbox);
    (room / ((rows + w_rows) * depth * 2)).min(MOST_STAGES)
}

/// The rows of A that the smallest sufficient instance is compiled for.
fn rows(problem: &Problem) -> u32 {
    ROWS.into_iter().find(|rows| problem.m <= *rows as usize).unwrap_or(128)
}

fn tiles(case: &Case) -> usize {
    case.problem.n.div_ceil(case.kernel.tile[1] as usize) * case.problem.batch_count()
}

/// The configuration with `residents` blocks on a multiprocessor, if their rings have enough stages.
fn config(case: &Case, split: u32, residents: u32) -> Option<Config> {
    let rows = rows(case.problem);
    let stages = stages(case.kernel, rows, split, residents);
    let config = Config { tile: [rows, case.kernel.tile[1]], split, stages, ..Config::default() };
    (stages >= LEAST_STAGES).then_some(config)
}

impl Family for Sm90Skinny {
    /// Each part of K has a stage at least.
    fn configurations(&self, case: &Case) -> Vec<Config> {
        let stages = case.problem.k.div_ceil(case.kernel.tile[2] as usize);
        let splits = SPLITS.into_iter().filter(|split| *split as usize <= stages);
        splits
            .flat_map(|split| [1, 2].into_iter().filter_map(move |residents| config(case, split, residents)))
            .collect()
    }

    /// As many parts of K as there are multiprocessors for, with two stages of K in each part at least.
    ///
    /// Two blocks share a multiprocessor, so that the next kernel's block can load while this kernel's block still
    /// stores. One deep ring is better for a split of many rows, with its large stages, and for a split that fills the
    /// device: there two blocks of a kernel may share a multiprocessor and leave another idle.
    fn choose(&self, case: &Case) -> Config {
        let (sms, depth) = (case.device.sm_count as usize, case.kernel.tile[2] as usize);
        // Clusters of four and eight do not reach all multiprocessors: they reach 120 of an H100's 132.
        let fits = |split: u32| tiles(case) * split as usize <= if split > 2 { sms * 9 / 10 } else { sms };
        let is_deep = |split: u32| case.problem.k >= 2 * depth * split as usize;
        let split = SPLITS.into_iter().skip(1).take_while(|split| fits(*split) && is_deep(*split)).last().unwrap_or(1);
        let is_full = tiles(case) * split as usize > sms * 9 / 10;
        let is_alone = split > 1 && (rows(case.problem) >= 64 || is_full);
        let shared = config(case, split, 2).filter(|_| !is_alone);
        shared.or_else(|| config(case, split, 1)).unwrap_or_default()
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let [rows, tile_n] = config.tile;
        let tile_k = case.kernel.tile[2];
        let (sms, split) = (f64::from(device.sm_count), f64::from(config.split));
        let blocks = tiles(case) as f64 * split;
        let residents = if config.stages > stages(case.kernel, rows, config.split, 2) { 1.0 } else { 2.0 };
        let turns = (blocks / (residents * sms)).ceil();
        let k = problem.k as f64 / split;
        let ring = turns * k / f64::from(tile_k) * STAGE_US / f64::from(config.stages);
        let rate = SM_GBPS[usize::from(blocks > sms)];
        let pull = (blocks / sms).ceil() * f64::from(tile_n) * k * problem.b.format.bits() / 8.0 / (rate * 1e3);
        let memory = (1.016 * memory_us(problem, device)).max(pull);
        // Overlap of memory and ring: the 3.4-norm, by the fit.
        let loads = (memory.powf(3.4) + ring.powf(3.4)).powf(1.0 / 3.4);
        let split_us = if split > 2.0 { SPLIT_US[1] } else { SPLIT_US[0] * (split - 1.0) };
        // Loads of the next tile hide all stores but the last.
        LAUNCH_US + loads + split_us + residents.min((blocks / sms).ceil()) * f64::from(rows) * ROW_US
    }

    fn element_cost(&self) -> ElementCost {
        ElementCost { instruction: 0.009, bias: 0.35, residual: 0.8, unaligned: 0.84 }
    }
}
