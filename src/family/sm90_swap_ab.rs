//! `csrc/sm90_swap_ab`: up to some 800 rows in 16 bits, TMA and WGMMA with A and B swapped or W shared, and K split over a
//! cluster. The columns of B are called the rows of W. A row of the table has tiles of several widths.
//!
//! A configuration names a tile of D, the blocks that share W (`cluster`), the parts of K (`split`), the stages of the
//! ring, and whether W is on wgmma's M side (`swap_ab`). Two kinds of rows have a choice each:
//!
//! - A row for few rows of A has all of them in one tile, and up to eight parts of K. The number of stages decides how
//!   many blocks share a multiprocessor.
//! - A row for waves has one block to a multiprocessor, with as many stages as fit in shared memory.

use crate::config::Config;
use crate::kernel::{Case, ElementCost, Family, KernelDesc};
use crate::problem::Problem;

const LEAST_STAGES: u32 = 3;
const MOST_STAGES: u32 = 16;
const BARRIERS_BYTES: u32 = 8 * (2 * MOST_STAGES + 1);
/// The least K for shared loads: with a smaller K, the blocks of a cluster wait for each other longer than sharing
/// saves (5 to 12 % up to 1536).
const SHARED_K: usize = 2048;

pub(crate) struct Sm90SwapAb;

/// Whether the row is for few rows of A.
fn has_all_rows(kernel: &KernelDesc) -> bool {
    kernel.split > 2
}

/// Whether W is on wgmma's M side: the widths of the row are rows of A then.
fn swaps_ab(kernel: &KernelDesc) -> bool {
    kernel.widths.last() == Some(&kernel.tile[0])
}

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
    has_all_rows: bool,
}

impl Tile {
    fn of(kernel: &KernelDesc, width: u32) -> Self {
        let [tile_m, tile_n, tile_k] = kernel.tile;
        let (p, sides) = if swaps_ab(kernel) { (tile_n, [width, tile_n]) } else { (tile_m, [tile_m, width]) };
        let deep = Self { sides, p, width, depth: tile_k, has_all_rows: has_all_rows(kernel) };
        let depth = if deep.has_all_rows || deep.stages(kernel.split, 1) >= 5 { tile_k } else { 64 };
        Self { depth, ..deep }
    }

    /// Stages that fit in shared memory beside the sums of the other parts of K, with `residents` blocks on a
    /// multiprocessor.
    fn stages(&self, split: u32, residents: u32) -> u32 {
        let [warps, columns] = [self.p / 16, self.width / 8];
        let inbox = match split {
            0 | 1 => 0,
            _ if self.has_all_rows => split * (warps * columns).div_ceil(split) * 512,
            _ => warps * columns.div_ceil(2) * 512,
        };
        // A large inbox of a wave takes the place of the ring.
        let inbox = if !self.has_all_rows && inbox > 20_000 { 0 } else { inbox };
        let room = (228 * 1024 / residents - 1024).saturating_sub(BARRIERS_BYTES + inbox);
        (room / ((self.p + self.width) * self.depth * 2)).min(MOST_STAGES)
    }

    /// Blocks of D, and blocks that run at the same time.
    fn blocks(&self, case: &Case, share: usize, split: usize) -> [usize; 2] {
        let [m_tiles, n_tiles] = self.tiles(case.problem, share);
        let sms = case.device.sm_count as usize;
        // Clusters of four and eight do not reach all multiprocessors: they reach 120 of an H100's 132.
        let at_once = if share * split > 2 { sms * 9 / 10 } else { sms }.max(1);
        [m_tiles * n_tiles * case.problem.batch_count() * split, at_once]
    }

    /// Tiles along M, in whole clusters, and along N.
    fn tiles(&self, problem: &Problem, share: usize) -> [usize; 2] {
        let [rows, columns] = self.sides.map(|side| side as usize);
        [problem.m.div_ceil(rows).next_multiple_of(share), problem.n.div_ceil(columns)]
    }

    /// Whether K is long enough for so many parts, and the parts are worth their sum.
    fn can_split(&self, case: &Case, share: usize, split: usize) -> bool {
        if self.has_all_rows {
            return split <= case.problem.k.div_ceil(self.depth as usize);
        }
        // The reduction of a split K costs one or two microseconds; tiles that share W save that time by other means.
        let least_k = if case.kernel.cluster[0] > 1 { 8192 } else { 4 * self.depth as usize };
        let [blocks, at_once] = self.blocks(case, share, split);
        // Nothing hides a second wave of reductions.
        split == 1 || (blocks <= at_once && case.problem.k >= least_k)
    }
}

/// A way to run a problem.
#[derive(Debug, Clone, Copy)]
struct Way {
    tile: Tile,
    /// Blocks that share W.
    share: usize,
    split: usize,
    stages: u32,
}

impl Way {
    /// With `residents` blocks on a multiprocessor, if their rings have enough stages.
    fn new(tile: Tile, share: usize, split: usize, residents: u32) -> Option<Self> {
        let stages = tile.stages(split as u32, residents);
        (stages >= LEAST_STAGES).then_some(Self { tile, share, split, stages })
    }

    fn of(kernel: &KernelDesc, config: &Config) -> Self {
        let width = if swaps_ab(kernel) { config.tile[0] } else { config.tile[1] };
        let [share, split] = [config.cluster[0], config.split].map(|count| count.max(1) as usize);
        Self { tile: Tile::of(kernel, width), share, split, stages: config.stages }
    }

    fn config(&self, kernel: &KernelDesc) -> Config {
        Config {
            tile: self.tile.sides,
            cluster: [self.share as u32, 1],
            split: self.split as u32,
            stages: self.stages,
            swap_ab: swaps_ab(kernel),
            ..Config::default()
        }
    }
}

/// The tile for few rows: the lowest that has all rows of A.
fn lowest(case: &Case) -> Tile {
    let width = case.kernel.widths.iter().find(|width| case.problem.m <= **width as usize);
    Tile::of(case.kernel, width.copied().unwrap_or(case.kernel.tile[0]))
}

/// Every way that the kernel can run the problem, except ways that would never be fast.
fn each(case: &Case, mut visit: impl FnMut(Way)) {
    let (kernel, problem) = (case.kernel, case.problem);
    let (all_rows, most_share) =
        (has_all_rows(kernel), if problem.k < SHARED_K { 1 } else { kernel.cluster[0] as usize });
    let tiles = kernel.widths.iter().map(|width| Tile::of(kernel, *width));
    for tile in tiles.filter(|tile| !all_rows || tile.width == lowest(case).width) {
        for share in (1..=most_share).rev() {
            // Whole clusters only: where A is on the N side, one more tile makes all tiles lower; otherwise the
            // additional tile is idle.
            let whole = problem.m.div_ceil(tile.sides[0] as usize) % share == 0;
            if !whole && !swaps_ab(kernel) {
                continue;
            }
            let splits = [1, 2, 4, 8].into_iter().filter(|split| *split <= kernel.split as usize);
            for split in splits.filter(|split| tile.can_split(case, share, *split)) {
                let residents = if all_rows { 1..=2 } else { 1..=1 };
                residents.filter_map(|residents| Way::new(tile, share, split, residents)).for_each(&mut visit);
            }
        }
    }
}

/// The choice for a row that has all rows of A in a tile: as many parts of K as there are multiprocessors for, with two
/// stages of K in each part at least.
///
/// Two blocks share a multiprocessor, so that the next kernel's block can load while this kernel's block still stores.
/// One deep ring is better for a split of many rows, with its large stages, and for a split that fills the device: there
/// two blocks of a kernel may share a multiprocessor and leave another idle.
fn choose_few_rows(case: &Case) -> Option<Way> {
    let (tile, sms) = (lowest(case), case.device.sm_count as usize);
    let fits = |split: usize| {
        let [blocks, at_once] = tile.blocks(case, 1, split);
        blocks <= at_once
    };
    let is_deep = |split: usize| case.problem.k >= 2 * tile.depth as usize * split;
    let split = [2, 4, 8].into_iter().take_while(|split| fits(*split) && is_deep(*split)).last().unwrap_or(1);
    let is_full = tile.blocks(case, 1, split)[0] > sms * 9 / 10;
    let is_alone = split > 1 && (tile.width >= 64 || is_full);
    let shared = Way::new(tile, 1, split, 2).filter(|_| !is_alone);
    shared.or_else(|| Way::new(tile, 1, split, 1))
}

/// The choice for a row of waves: the least work of the busiest multiprocessor, which processes its tiles in sequence.
/// The work of a tile is its width plus a constant.
fn choose_waves(case: &Case) -> Option<Way> {
    let mut best = None;
    let mut least = usize::MAX;
    each(case, |way| {
        let [blocks, at_once] = way.tile.blocks(case, way.share, way.split);
        let work = blocks.div_ceil(at_once) * (way.tile.width as usize + 32) * 2 / way.split;
        if work < least {
            (least, best) = (work, Some(way));
        }
    });
    best
}

/// The estimate for a row that has all rows of A in a tile. The constants from `SPLIT_US` on are fitted to 37 recordings
/// of 5 to 96 rows (mean error 2 %, at most 6 %).
mod few_rows {
    use super::Way;
    use crate::cost::memory_us;
    use crate::kernel::Case;

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

    pub fn us(case: &Case, way: &Way) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let Way { tile, share, split: parts, stages } = *way;
        let (sms, split) = (f64::from(device.sm_count), parts as f64);
        let blocks = tile.blocks(case, share, parts)[0] as f64;
        let residents = if stages > tile.stages(parts as u32, 2) { 1.0 } else { 2.0 };
        let turns = (blocks / (residents * sms)).ceil();
        let k = problem.k as f64 / split;
        let ring = turns * k / f64::from(tile.depth) * STAGE_US / f64::from(stages);
        let rate = SM_GBPS[usize::from(blocks > sms)];
        let pull = (blocks / sms).ceil() * f64::from(tile.p) * k * problem.b.format.bits() / 8.0 / (rate * 1e3);
        let memory = (1.016 * memory_us(problem, device)).max(pull);
        // Overlap of memory and ring: the 3.4-norm, by the fit.
        let loads = (memory.powf(3.4) + ring.powf(3.4)).powf(1.0 / 3.4);
        let split_us = if split > 2.0 { SPLIT_US[1] } else { SPLIT_US[0] * (split - 1.0) };
        // Loads of the next tile hide all stores but the last.
        LAUNCH_US + loads + split_us + residents.min((blocks / sms).ceil()) * f64::from(tile.width) * ROW_US
    }
}

/// The estimate for a row of waves.
///
/// The constants are fitted to recordings of 33 to 1536 rows, K from 512 to 14336, on an H100 (2026-11-21). Of the 164
/// configurations within 10 % of the best for their shape the mean error was 2.5 %, at most 8 %. The costs of launches,
/// shared loads, further warp groups and idle multiprocessors were set again by hand, so that choices agree with the
/// record of 2026-11-22 (5 to 257 rows).
mod waves {
    use super::Way;
    use crate::cost::{memory_us, roofline_us};
    use crate::kernel::Case;

    /// Launch, the first loads and the drain, overlapped with the kernels before and after, microseconds.
    const LAUNCH_US: f64 = 1.68;
    /// Additional time where two blocks share loads: each block waits for the other.
    const SHARE_US: f64 = 0.9;
    /// Time of each further warp group: 64 rows of wgmma's M side.
    const GROUP_US: f64 = 0.25;
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

    pub fn us(case: &Case, way: &Way) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let bytes = problem.b.format.bits() / 8.0;
        let Way { tile, share, split, stages } = *way;
        let [blocks, at_once] = tile.blocks(case, share, split);
        let turns = blocks.div_ceil(at_once);
        let [m_tiles, _] = tile.tiles(problem, share);
        let height = problem.m.div_ceil(m_tiles) as f64;
        let several = usize::from(turns > 1);
        let (turns, blocks, share, parts) = (turns as f64, blocks as f64, share as f64, split as f64);
        let (w_rows, depth, width) = (f64::from(tile.sides[1]), f64::from(tile.depth), f64::from(tile.width));
        let k = problem.k as f64 / parts;
        let idle = 1.0 - blocks / (turns * at_once as f64);
        let ring = turns * k / depth * STAGE_US / f64::from(stages);
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
}

impl Family for Sm90SwapAb {
    fn configurations(&self, case: &Case) -> Vec<Config> {
        let mut configurations = Vec::new();
        each(case, |way| configurations.push(way.config(case.kernel)));
        configurations
    }

    fn choose(&self, case: &Case) -> Config {
        let way = if has_all_rows(case.kernel) { choose_few_rows(case) } else { choose_waves(case) };
        way.map_or(Config::default(), |way| way.config(case.kernel))
    }

    /// The estimate of a wave's chosen configuration is never below the estimate for some rows fewer. Evenly filled tiles
    /// make the estimate slightly lower, and then the chosen kernel alternates as M grows by a few rows.
    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let way = Way::of(case.kernel, config);
        if has_all_rows(case.kernel) {
            return few_rows::us(case, &way);
        }
        let us = waves::us(case, &way);
        if *config != self.choose(case) {
            return us;
        }
        let fewer = (0..8).map(|i| (case.problem.m / 32).saturating_sub(i) * 32).filter(|&m| m > 0);
        let with_fewer = fewer.map(|m| {
            let case = Case { problem: &Problem { m, ..*case.problem }, ..*case };
            choose_waves(&case).map_or(0.0, |way| waves::us(&case, &way))
        });
        with_fewer.fold(us, f64::max)
    }

    fn element_cost(&self, kernel: &KernelDesc) -> ElementCost {
        let unaligned = if has_all_rows(kernel) { 0.84 } else { 3.7 };
        ElementCost { instruction: 0.009, bias: 0.35, residual: 0.8, unaligned }
    }
}
