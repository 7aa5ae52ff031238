//! `csrc/sm90_wave`: some 65 to 800 rows in 16 bits, TMA and WGMMA in one wave of tiles. A row of the table has tiles of several
//! widths.
//!
//! A configuration names a tile of D, the blocks that share W (`cluster`), the parts of K (`split`), and the stages of
//! the ring. The ring has as many stages as fit in shared memory.
//!
//! The constants of the estimate are fitted to recordings of 33 to 1536 rows, K from 512 to 14336, on an H100
//! (2026-11-21). Of the 164 configurations within 10 % of the best for their shape the mean error was 2.5 %, at most 8
//! %. The costs of launches, shared loads, further warp groups and idle multiprocessors were set again by hand, so that
//! choices agree with the record of 2026-11-22 (5 to 257 rows).

use crate::config::Config;
use crate::cost::{memory_us, roofline_us};
use crate::kernel::{Case, ElementCost, Family, KernelDesc};
use crate::problem::Problem;

/// Launch, the first loads and the drain, overlapped with the kernels before and after, microseconds.
const LAUNCH_US: f64 = 1.68;
/// Additional time where two blocks share loads: each block waits for the other.
const SHARE_US: f64 = 0.9;
/// Time of each further warp group: 64 rows of wgmma's M side.
const GROUP_US: f64 = 0.25;
/// The least K for shared loads: with a smaller K, the blocks of a cluster wait for each other longer than sharing
/// saves (5 to 12 % up to 1536).
const SHARED_K: usize = 2048;
/// The cost of a second part of K: the path through distributed shared memory, and the time for each byte of a tile of
/// D.
const SPLIT_US: f64 = 0.1;
const SUM_US: f64 = 4.9e-5;
/// Latency of a stage from request to arrival, microseconds: with few stages in flight the latency limits a block.
const STAGE_US: f64 = 1.8;
/// Total bandwidth of L2, multicast counted once, GB/s.
const L2_GBPS: f64 = 14_200.0;
/// The cost of each further cluster that reads the same part of B, as a fraction of the memory time of B.
const REREAD: f64 = 0.08;
/// The clock of the tensor cores, GHz, in one wave of tiles and in several waves, which last long enough for the power
/// limit to apply; and the clock's gain from idle multiprocessors, whose power the others use.
const GHZ: [f64; 2] = [1.8, 1.6];
const IDLE_GAIN: f64 = 0.3;
/// Additional memory time where multiprocessors are idle: in one wave of tiles, and in several.
const UNEVEN: [f64; 2] = [0.22, 0.52];
/// Time of a tile's stores, which nothing hides, microseconds for each byte.
const STORE_US: f64 = 3.2e-5;
/// Time from the end of a tile to the first products of the next tile, where nothing hides that time, microseconds: 384
/// x 512 x 512 x 64.
const RESTART_US: f64 = 1.5;
/// Overlap of activities: this norm of their times.
const NORM: f64 = 5.0;

/// Bytes of shared memory that a block has for its ring, its barriers aside.
const RING_BYTES: u32 = 227 * 1024 - 264;
const MOST_STAGES: u32 = 16;

pub(crate) struct Sm90Wave;

/// The tiles of one width, and the values that follow from the width.
#[derive(Debug, Clone, Copy)]
struct Tile {
    /// Rows and columns of D.
    sides: [u32; 2],
    /// wgmma's sides: `p` rows of the M side, and the width.
    p: u32,
    width: u32,
    /// K of a stage.
    depth: u32,
}

impl Tile {
    fn of(kernel: &KernelDesc, width: u32) -> Self {
        let [tile_m, tile_n, tile_k] = kernel.tile;
        let (p, sides) = if is_swapped(kernel) { (tile_n, [width, tile_n]) } else { (tile_m, [tile_m, width]) };
        let deep = Self { sides, p, width, depth: tile_k };
        let depth = if deep.stages(kernel.split) >= 5 { tile_k } else { 64 };
        Self { depth, ..deep }
    }

    /// Stages that fit in shared memory beside the sums of the other part of K.
    fn stages(&self, split: u32) -> u32 {
        let inbox = if split > 1 { self.p / 16 * (self.width / 8).div_ceil(2) * 512 } else { 0 };
        let room = RING_BYTES - if inbox > 20_000 { 0 } else { inbox };
        (room / ((self.p + self.width) * self.depth * 2)).min(MOST_STAGES)
    }

    /// Blocks of D, and blocks that run at the same time.
    fn blocks(&self, case: &Case, share: usize, split: usize) -> [usize; 2] {
        let [m_tiles, n_tiles] = self.tiles(case.problem, share);
        let sms = case.device.sm_count as usize;
        // Clusters of four do not reach all multiprocessors: they reach 120 of an H100's 132.
        let at_once = if share * split > 2 { sms * 9 / 10 } else { sms }.max(1);
        [m_tiles * n_tiles * case.problem.batch_count() * split, at_once]
    }

    /// Tiles along M, in whole clusters, and along N.
    fn tiles(&self, problem: &Problem, share: usize) -> [usize; 2] {
        let [rows, columns] = self.sides.map(|side| side as usize);
        [problem.m.div_ceil(rows).next_multiple_of(share), problem.n.div_ceil(columns)]
    }
}

fn is_swapped(kernel: &KernelDesc) -> bool {
    kernel.schedule == "exchanged"
}

/// Every tile, number of blocks that share W, and number of parts of K that the kernel can run the problem with.
fn each(case: &Case, mut visit: impl FnMut(Tile, usize, usize)) {
    let (kernel, problem) = (case.kernel, case.problem);
    let most_share = if problem.k < SHARED_K { 1 } else { kernel.cluster[0] as usize };
    for tile in kernel.widths.iter().map(|width| Tile::of(kernel, *width)) {
        // The reduction of a split K costs one or two microseconds; tiles that share W save that time by other means.
        let split_k = if kernel.cluster[0] > 1 { 8192 } else { 4 * tile.depth as usize };
        for share in (1..=most_share).rev() {
            // Whole clusters only: where A is on the N side, one more tile makes all tiles lower; otherwise the
            // additional tile is idle.
            let whole = problem.m.div_ceil(tile.sides[0] as usize) % share == 0;
            if !whole && !is_swapped(kernel) {
                continue;
            }
            for split in 1..=kernel.split as usize {
                let [blocks, at_once] = tile.blocks(case, share, split);
                // Nothing hides a second wave of reductions.
                if split == 1 || (blocks <= at_once && problem.k >= split_k) {
                    visit(tile, share, split);
                }
            }
        }
    }
}

fn config(tile: &Tile, share: usize, split: usize) -> Config {
    let (tile, stages) = (tile.sides, tile.stages(split as u32));
    Config { tile, cluster: [share as u32, 1], split: split as u32, stages, ..Config::default() }
}

/// The configuration with the least work of the busiest multiprocessor, which processes its tiles in sequence. The work
/// of a tile is its width plus a constant.
fn best(case: &Case) -> Option<(Tile, usize, usize)> {
    let mut best = None;
    let mut least = usize::MAX;
    each(case, |tile, share, split| {
        let [blocks, at_once] = tile.blocks(case, share, split);
        let work = blocks.div_ceil(at_once) * (tile.width as usize + 32) * 2 / split;
        if work < least {
            (least, best) = (work, Some((tile, share, split)));
        }
    });
    best
}

fn us_of(case: &Case, tile: &Tile, share: usize, split: usize) -> f64 {
    let (problem, device) = (case.problem, case.device);
    let bytes = problem.b.format.bits() / 8.0;
    let [blocks, at_once] = tile.blocks(case, share, split);
    let turns = blocks.div_ceil(at_once);
    let [m_tiles, _] = tile.tiles(problem, share);
    let height = problem.m.div_ceil(m_tiles) as f64;
    let several = usize::from(turns > 1);
    let (turns, blocks, share, parts) = (turns as f64, blocks as f64, share as f64, split as f64);
    let (w_rows, depth, width) = (f64::from(tile.sides[1]), f64::from(tile.depth), f64::from(tile.width));
    let k = problem.k as f64 / parts;
    let idle = 1.0 - blocks / (turns * at_once as f64);
    let ring = turns * k / depth * STAGE_US / f64::from(tile.stages(split as u32));
    let l2 = blocks * (height + w_rows / share) * k * bytes / (L2_GBPS * 1e3);
    // wgmma's cycles for 16 steps of K: the larger of its arithmetic and its shared-memory reads.
    let cycles = f64::from(tile.p) / 64.0 * (width / 2.0).max(16.0 + width / 4.0);
    let products = turns * cycles * k / 16.0 / (GHZ[several] * 1e3) * (1.0 - IDLE_GAIN * idle);
    let w_us = (problem.n * problem.k * problem.batch_count()) as f64 * bytes / (device.rates.hbm_gbps * 1e3);
    let uneven = UNEVEN[several];
    let reread = REREAD * w_us * (m_tiles as f64 / share - 1.0);
    let memory = memory_us(problem, device) * (1.0 + uneven * idle) + reread;
    let together = [memory, ring, l2, products].map(|time| time.powf(NORM)).iter().sum::<f64>().powf(1.0 / NORM);
    let bytes_of_tile = height * w_rows * bytes;
    let split_us = if parts > 1.0 { SPLIT_US + bytes_of_tile * SUM_US } else { 0.0 };
    // Only plain products of one matrix with an unsplit K overlap the loads of the next tile with the stores of the
    // last.
    let marches = parts == 1.0 && problem.batch_count() == 1 && problem.epilogue.is_linear();
    let restarts = if marches { 0.0 } else { (turns - 1.0) * RESTART_US };
    let share_us = if share > 1.0 { SHARE_US } else { 0.0 };
    let group_us = GROUP_US * (f64::from(tile.p) / 64.0 - 1.0);
    // At 6 % above the roofline no overlap is left to gain: 512 rows of 28672.
    let busy = together + split_us + restarts + turns * bytes_of_tile * STORE_US;
    LAUNCH_US + share_us + group_us + busy.max(1.06 * roofline_us(problem, device))
}

impl Family for Sm90Wave {
    fn configurations(&self, case: &Case) -> Vec<Config> {
        let mut configurations = Vec::new();
        each(case, |tile, share, split| configurations.push(config(&tile, share, split)));
        configurations
    }

    fn choose(&self, case: &Case) -> Config {
        best(case).map_or(Config::default(), |(tile, share, split)| config(&tile, share, split))
    }

    /// The estimate of the chosen configuration is never below the estimate for some rows fewer. Evenly filled tiles
    /// make the estimate slightly lower, and then the chosen kernel alternates as M grows by a few rows.
    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let width = if is_swapped(case.kernel) { config.tile[0] } else { config.tile[1] };
        let (tile, share, split) = (Tile::of(case.kernel, width), config.cluster[0] as usize, config.split as usize);
        let us = us_of(case, &tile, share.max(1), split.max(1));
        if *config != self.choose(case) {
            return us;
        }
        let fewer = (0..8).map(|i| (case.problem.m / 32).saturating_sub(i) * 32).filter(|&m| m > 0);
        let with_fewer = fewer.map(|m| {
            let case = Case { problem: &Problem { m, ..*case.problem }, ..*case };
            best(&case).map_or(0.0, |(tile, share, split)| us_of(&case, &tile, share, split))
        });
        with_fewer.fold(us, f64::max)
    }

    fn element_cost(&self) -> ElementCost {
        ElementCost { instruction: 0.009, bias: 0.35, residual: 0.8, unaligned: 3.7 }
    }
}
