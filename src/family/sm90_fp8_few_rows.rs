//! `csrc/sm90_fp8_few_rows`: up to 64 rows of 8 bits by weights of 8 bits, TMA and WGMMA with A and B swapped, and K split over a cluster. The columns of
//! B are called the rows of W. One tile has all rows of A: a row of the table has tiles of several widths, and the lowest that has room is taken.
//!
//! A configuration names the tile of D, whose columns are as even as possible, the parts of K (`split`), and the stages of the ring, whose number decides
//! how many blocks share a multiprocessor.

use super::fitted::fitted;
use super::fp8::{self, Sums};
use crate::config::Config;
use crate::cost::pipeline::{l2_us_of_one, memory_us, Activities};
use crate::kernel::{Case, ElementCost, Family, KernelDesc, Rejection};
use crate::problem::Problem;

const LEAST_STAGES: u32 = 3;
const MOST_STAGES: u32 = 16;
/// Columns of D in a tile are a multiple of it.
const UNIT: u32 = 8;

fitted! {
    Sm90Fp8FewRows {
        /// Launch, the first loads and the drain, beside the card's overlapped launch.
        launch_us: f64 = "us", -1.7 to 3.0;
        /// K in parts, and each doubling of the parts: the path through distributed shared memory.
        split_us: [f64; 2] = "us", -0.2 to 3.0;
        /// Latency of a stage from request to arrival, over the card's.
        latency: f64 = "", 0.1 to 3.0;
        /// The cycles of a stage over wgmma's: of whole sums, of sums in f32, and with factors of blocks.
        products: [f64; 3] = "", 0.5 to 4.0;
        /// The same beside the products of a second block on the multiprocessor, over those without.
        second: f64 = "", 1.0 to 3.0;
        /// A tile's time beside its stages.
        tile_us: f64 = "us", -0.5 to 3.0;
        /// The rate at which one multiprocessor loads, over L2's rate to a multiprocessor.
        pull: f64 = "", 0.2 to 3.0;
        /// Memory time over the time of one pass.
        memory: f64 = "", 0.9 to 2.0;
        /// The norm by which memory and tiles overlap.
        norm: f64 = "", 1.0 to 16.0;
        /// The store of one of the rows that a tile has room for.
        row_us: f64 = "us", 0.0 to 0.5;
        /// Epilogues, for each element of D: an activation's instruction, a bias before an activation, `beta * C`, unaligned rows.
        epilogue_ns: [f64; 4] = "ns", 0.0 to 10.0;
    }
}

/// The rows of the lowest tile that has all rows of A.
fn lowest(case: &Case) -> u32 {
    let width = case.kernel.widths.iter().find(|width| case.problem.m <= **width as usize);
    width.copied().unwrap_or(case.kernel.tile[0])
}

/// Stages that fit in shared memory beside the sums of the other parts of K, with `residents` blocks on a multiprocessor.
fn most_stages(case: &Case, width: u32, split: u32, residents: u32) -> u32 {
    let [_, w_rows, depth] = case.kernel.tile;
    let has_blocks = fp8::sums(case.kernel, case.problem) == Sums::Blocks;
    let boxes = depth / 128;
    let in_stage = if has_blocks { (boxes * (width + 2) * 4).next_multiple_of(16) } else { 0 };
    let in_tile = if has_blocks { 0 } else { 4 * (width + w_rows) };
    let fragments = w_rows / 16 * (width / 8);
    let inbox = if split > 1 { split * fragments.div_ceil(split) * 512 } else { 0 };
    let room = (228 * 1024 / residents - 1024).saturating_sub(in_tile + inbox + 8);
    (room / ((w_rows + width) * depth + in_stage + 16)).min(MOST_STAGES)
}

/// Columns of a tile, as even as possible: about `tiles` tiles cut N, or twice as many where these are too high, and so on.
fn even(n: usize, tiles: usize, most: u32) -> u32 {
    let mut tiles = tiles.max(1);
    loop {
        let columns = n.div_ceil(tiles).next_multiple_of(UNIT as usize);
        if columns <= most as usize {
            return columns as u32;
        }
        tiles *= 2;
    }
}

/// Every way that the kernel can run the problem, except ways that would never be fast.
fn ways(case: &Case) -> Vec<Config> {
    let Case { kernel, problem, device, .. } = *case;
    let [_, w_rows, depth] = kernel.tile;
    let (width, k_steps) = (lowest(case), problem.k.div_ceil(depth as usize));
    let splits = [1, 2, 4, 8].into_iter().filter(|split| *split <= kernel.split && *split as usize <= k_steps);
    let mut ways: Vec<Config> = Vec::new();
    for (split, residents) in splits.flat_map(|split| [(split, 1), (split, 2)]) {
        let places = device.model.reached(device.sm_count as usize, split as usize) * residents as usize;
        let columns = even(problem.n, places / split as usize, w_rows);
        let stages = most_stages(case, width, split, residents);
        let way = Config { cluster: [1, 1], stages, swap_ab: true, ..Config::tile([width, columns], split) };
        if stages >= LEAST_STAGES && !ways.contains(&way) {
            ways.push(way);
        }
    }
    ways
}

impl Family for Sm90Fp8FewRows {
    fn supports(&self, kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        fp8::supports(kernel, problem)
    }

    fn configurations(&self, case: &Case) -> Vec<Config> {
        ways(case)
    }

    fn choose(&self, case: &Case) -> Config {
        super::fastest(self, case, ways(case))
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let Case { kernel, problem, device, .. } = *case;
        let ([width, columns], parts) = (config.tile, config.split.max(1));
        let depth = kernel.tile[2];
        let blocks = (problem.n.div_ceil(columns.max(UNIT) as usize) * parts as usize) as f64;
        let at_once = device.model.reached(device.sm_count as usize, parts as usize).max(1) as f64;
        let residents = if config.stages > most_stages(case, width, parts, 2) { 1.0 } else { 2.0 };
        let turns = (blocks / (residents * at_once)).ceil();
        let steps = problem.k.div_ceil((parts * depth) as usize) as f64;
        // A wgmma of 32 of K takes 16 cycles at least.
        let cycles = f64::from(depth / 32) * (f64::from(width) / 2.0).max(16.0);
        let kind = fp8::sums(kernel, problem) as usize;
        let shared = if residents > 1.0 { self.second } else { 1.0 };
        let products = shared * self.products[kind] * cycles / (device.model.clock_ghz * 1e3);
        let latency = self.latency * device.model.latency_us / f64::from(config.stages.max(1));
        let stages = turns * (steps * products.max(latency) + self.tile_us);
        let bytes = (blocks / at_once).ceil() * f64::from(columns * depth) * steps;
        let ring = stages.max(l2_us_of_one(bytes, self.pull, device) + self.tile_us);
        let memory = self.memory * memory_us(problem, device);
        let loads = Activities { ring, memory, ..Activities::default() }.overlapped(self.norm);
        let [split_us, doubling_us] = self.split_us;
        let split_us = if parts > 1 { split_us + doubling_us * f64::from(parts.ilog2()) } else { 0.0 };
        let launch = device.model.overlapped_launch_us + self.launch_us;
        launch + loads + split_us + f64::from(width) * self.row_us
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost::of(self.epilogue_ns)
    }
}
