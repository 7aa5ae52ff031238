//! `csrc/sm90_skinny`: up to 128 rows in 16 bits, TMA and WGMMA with A and B swapped, K split over a cluster.
//!
//! A configuration names the rows that an instance is compiled for and the rows of W (`tile`), the blocks that split K
//! (`split`) and the stages of the ring. The number of stages decides how many blocks share a multiprocessor.

use crate::config::Config;
use crate::cost::fitted::fitted;
use crate::cost::pipeline::{memory_us, pull_us, ring_us, Activities};
use crate::kernel::{Case, ElementCost, Family, KernelDesc};
use crate::problem::Problem;

/// Rows of A that the kernel is compiled for.
const ROWS: [u32; 9] = [8, 16, 24, 32, 48, 64, 80, 96, 128];
const SPLITS: [u32; 4] = [1, 2, 4, 8];
const LEAST_STAGES: u32 = 3;
const MOST_STAGES: u32 = 16;
const BARRIERS_BYTES: u32 = 8 * (2 * MOST_STAGES + 1);
const WARPS: u32 = 4;

fitted! {
    Sm90Skinny {
        /// Launch, scheduling, the first loads and the drain, beside the card's overlapped launch.
        launch_us: f64 = "us", -1.7 to 3.0;
        /// A second part of K, and more than two: the path through distributed shared memory.
        split_us: [f64; 2] = "us", 0.0 to 3.0;
        /// Latency of a stage from request to arrival, over the card's: with few stages in flight the latency limits a block.
        latency: f64 = "", 0.3 to 3.0;
        /// What a multiprocessor loads of W, over what it pulls: with one block, and with two where K is short and most multiprocessors
        /// have one.
        pull: [f64; 2] = "", 0.2 to 3.0;
        /// Memory time over that of one pass.
        memory: f64 = "", 1.0 to 2.0;
        /// The norm by which memory and ring overlap.
        norm: f64 = "", 1.5 to 16.0;
        /// The store of one of the rows that a tile has room for.
        row_us: f64 = "us", 0.0 to 0.5;
        /// Epilogues, for each element of D: an activation's instruction, a bias before an activation, `beta * C`, unaligned rows.
        epilogue_ns: [f64; 4] = "ns", 0.0 to 10.0;
    }
}

/// Stages that fit in shared memory beside the other parts' sums, with `residents` blocks on a multiprocessor.
fn stages(kernel: &KernelDesc, rows: u32, split: u32, residents: u32) -> u32 {
    let [_, w_rows, depth] = kernel.tile;
    let fragments = WARPS * rows / 8;
    let inbox = if split > 1 { split * fragments.div_ceil(split) * 512 } else { 0 };
    let room = (kernel.arch.shared_bytes() / residents - 1024).saturating_sub(BARRIERS_BYTES + inbox);
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
        let fits = |split: u32| tiles(case) * split as usize <= case.device.model.reached(sms, split as usize);
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
        let ring = ring_us(turns * k / f64::from(tile_k), config.stages.into(), self.latency, device);
        let share = self.pull[usize::from(blocks > sms)];
        let bytes = (blocks / sms).ceil() * f64::from(tile_n) * k * problem.dtype.bytes() as f64;
        let pull = pull_us(bytes, share, device);
        let memory = (self.memory * memory_us(problem, device)).max(pull);
        let loads = Activities { ring, memory, ..Activities::default() }.overlapped(self.norm);
        let split_us = if split > 2.0 { self.split_us[1] } else { self.split_us[0] * (split - 1.0) };
        let launch = device.model.overlapped_launch_us + self.launch_us;
        // Loads of the next tile hide all stores but the last.
        launch + loads + split_us + residents.min((blocks / sms).ceil()) * f64::from(rows) * self.row_us
    }

    fn element_cost(&self) -> ElementCost {
        ElementCost::of(self.epilogue_ns)
    }
}
