//! `csrc/sm90_swap_ab`: up to some 800 rows in 16 bits, TMA and WGMMA with A and B swapped or W shared, and K split over a
//! cluster. The columns of B are called the rows of W. A row of the table has tiles of several widths.
//!
//! A configuration names a tile of D, the blocks that share W (`cluster`), the parts of K (`split`), the stages of the
//! ring, and whether W is on wgmma's M side (`swap_ab`). Rows have a choice by their kind:
//!
//! - A row for few rows of A has all of them in one tile, and up to eight parts of K. The number of stages decides how
//!   many blocks share a multiprocessor.
//! - A row for a B at odd addresses is such a row, too, with four warps that copy B line by line in place of TMA.
//! - A row for waves has one block to a multiprocessor, with as many stages as fit in shared memory.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::pipeline::{l2_us, l2_us_of_one, memory_us, odd_lines, ring_us, room, stream_us, Activities};
use crate::cost::{arithmetic_us, roofline_us};
use crate::kernel::{Case, ElementCost, Family, KernelDesc, Math, SumOrder};
use crate::problem::{Layout, Problem, MAX_ALIGN};

const LEAST_STAGES: u32 = 3;
const MOST_STAGES: u32 = 16;
const BARRIERS_BYTES: u32 = 8 * (2 * MOST_STAGES + 1);
/// The least K for shared loads: with a smaller K, the blocks of a cluster wait for each other longer than sharing
/// saves (5 to 12 % up to 1536).
const SHARED_K: usize = 2048;

fitted! {
    Sm90SwapAb {
        /// Few rows: Launch, scheduling, the first loads and the drain, beside the card's overlapped launch.
        few_launch_us: f64 = "us", -2.5 to 3.0;
        /// Few rows: The part of that time that a launch saves where the blocks of two launches find room beside each other.
        few_room_us: f64 = "us", 0.0 to 1.5;
        /// Few rows: K in parts, and each doubling of the parts: the path through distributed shared memory.
        few_split_us: [f64; 2] = "us", -0.2 to 3.0;
        /// Few rows: Latency of a stage from request to arrival, over the card's: beside memory's time where every multiprocessor loads, and
        /// where few do.
        few_latency: [f64; 2] = "", 0.1 to 3.0;
        /// Few rows: The products of a stage, over wgmma's cycles.
        few_products: f64 = "", 0.3 to 2.0;
        /// Few rows: A tile's time beside its stages.
        few_tile_us: f64 = "us", -0.5 to 3.0;
        /// Few rows: The rate at which one multiprocessor loads, over L2's rate to a multiprocessor: by TMA, and where B lies at odd addresses and fewer
        /// than half of the multiprocessors load.
        few_pull: [f64; 2] = "", 0.2 to 3.0;
        /// Few rows: Memory time over the time of one pass.
        few_memory: f64 = "", 0.9 to 2.0;
        /// Few rows: The time of loads where B lies at odd addresses, in nt and nn, over the time of TMA's loads.
        few_raw: [f64; 2] = "", 1.0 to 3.0;
        /// Few rows: The norm by which memory and tiles overlap.
        few_norm: f64 = "", 1.0 to 16.0;
        /// Few rows: The store of one of the rows that a tile has room for. A multiprocessor stores 3 bytes of 16-bit results a clock in this
        /// time; results in f32 are taken to need no more.
        few_row_us: f64 = "us", 0.0 to 0.5;
        /// Few rows: The store of such a row while a second block of the multiprocessor stores, too.
        few_second_row_us: f64 = "us", 0.0 to 0.5;
        /// Launch, the first loads and the drain, beside the card's overlapped launch.
        launch_us: f64 = "us", -1.7 to 3.0;
        /// The part of that time that a launch saves whose blocks all find room beside the blocks of the launch before.
        room_us: f64 = "us", 0.0 to 2.0;
        /// Additional time where two blocks share loads: each block waits for the other.
        share_us: f64 = "us", 0.0 to 4.0;
        /// Each further warp group: 64 rows of wgmma's M side.
        group_us: f64 = "us", 0.0 to 2.0;
        /// A second part of K: the path through distributed shared memory.
        split_us: f64 = "us", 0.0 to 3.0;
        /// The same, for each element of a tile of D, as for two bytes: sums are f32 whatever D is.
        sum_us: f64 = "us", 0.0 to 0.001;
        /// Latency of a stage from request to arrival, over the card's: with few stages in flight the latency limits a block.
        latency: f64 = "", 0.3 to 3.0;
        /// The share of the latency that a card without work saves, times the share of the multiprocessors that have no block.
        idle_latency: f64 = "", 0.0 to 0.9;
        /// The share of L2's rate to all multiprocessors, multicast counted once.
        l2: f64 = "", 0.2 to 1.2;
        /// The time of loads of lines at odd multiples of 32 bytes, and of 16, over that of other lines.
        odd: [f64; 2] = "", 1.0 to 3.0;
        /// Each further cluster that reads the same part of B, as a fraction of the memory time of B.
        reread: f64 = "", 0.0 to 1.0;
        /// The clock of the tensor cores, over the card's: in one wave of tiles, and in several, which last long enough for the power limit.
        clock: [f64; 2] = "", 0.5 to 1.0;
        /// The clock's gain from idle multiprocessors, whose power the others use.
        idle_gain: f64 = "", 0.0 to 1.0;
        /// Additional memory time where multiprocessors are idle: in one wave of tiles, and in several.
        uneven: [f64; 2] = "", 0.0 to 3.0;
        /// A tile's stores, which nothing hides, for each byte.
        store_us: f64 = "us", 0.0 to 0.001;
        /// From the end of a tile to the first products of the next, where nothing hides that time.
        restart_us: f64 = "us", 0.0 to 8.0;
        /// The norm by which activities overlap.
        norm: f64 = "", 1.5 to 16.0;
        /// The least time, over the roofline: no overlap is left to gain.
        roofline: f64 = "", 1.0 to 1.3;
        /// Epilogues, for each element of D: an activation's instruction, a bias before an activation, `beta * C`, unaligned rows.
        epilogue_ns: [f64; 4] = "ns", 0.0 to 10.0;
        /// The last of these in a row for few rows.
        few_unaligned_ns: f64 = "ns", 0.0 to 10.0;
    }
}

/// Whether the row is for few rows of A.
fn has_all_rows(kernel: &KernelDesc) -> bool {
    kernel.split > 2
}

/// Whether lines of B may start anywhere.
fn is_raw(kernel: &KernelDesc) -> bool {
    kernel.align < MAX_ALIGN
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
    /// Bytes of a stage between the lines of a B at odd addresses.
    gaps: u32,
}

impl Tile {
    fn of(kernel: &KernelDesc, width: u32) -> Self {
        let [tile_m, tile_n, tile_k] = kernel.tile;
        let (p, sides) = if swaps_ab(kernel) { (tile_n, [width, tile_n]) } else { (tile_m, [tile_m, width]) };
        let gaps = match kernel.layout {
            _ if !is_raw(kernel) => 0,
            Layout::NN => 16 * tile_k,
            _ => 16 * p,
        };
        let deep = Self { sides, p, width, depth: tile_k, has_all_rows: has_all_rows(kernel), gaps };
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
        (room / ((self.p + self.width) * self.depth * 2 + self.gaps)).min(MOST_STAGES)
    }

    /// wgmma's cycles for 16 steps of K: the larger of its arithmetic and its shared-memory reads.
    fn cycles(&self) -> f64 {
        let width = f64::from(self.width);
        f64::from(self.p) / 64.0 * (width / 2.0).max(16.0 + width / 4.0)
    }

    /// Tiles along M and along N.
    fn tiles(&self, problem: &Problem) -> [usize; 2] {
        let [rows, columns] = self.sides.map(|side| side as usize);
        [problem.m.div_ceil(rows), problem.n.div_ceil(columns)]
    }

    /// Whether K is long enough for so many parts, and the parts are worth their sum.
    fn can_split(&self, case: &Case, grid: &Grid, split: usize) -> bool {
        if self.has_all_rows {
            return split <= case.problem.k.div_ceil(self.depth as usize);
        }
        // The reduction of a split K costs one or two microseconds; tiles that share W save that time by other means.
        let least_k = if case.kernel.cluster[0] > 1 { 8192 } else { 4 * self.depth as usize };
        // Nothing hides a second wave of reductions.
        split == 1 || (case.problem.k >= least_k && grid.blocks <= grid.at_once)
    }
}

/// The blocks of a launch.
#[derive(Debug, Clone, Copy)]
struct Grid {
    /// Tiles along M, in whole clusters.
    m_tiles: usize,
    blocks: usize,
    /// Blocks that run at the same time, one on a multiprocessor.
    at_once: usize,
}

impl Grid {
    fn new(case: &Case, [m_tiles, n_tiles]: [usize; 2], share: usize, split: usize) -> Self {
        let m_tiles = m_tiles.next_multiple_of(share);
        let at_once = case.device.model.reached(case.device.sm_count as usize, share * split).max(1);
        Self { m_tiles, blocks: m_tiles * n_tiles * case.problem.batch_count() * split, at_once }
    }
}

/// A way to run a problem.
#[derive(Debug, Clone, Copy)]
struct Way {
    tile: Tile,
    grid: Grid,
    /// Blocks that share W.
    share: usize,
    split: usize,
    stages: u32,
}

impl Way {
    fn of(case: &Case, config: &Config) -> Self {
        let width = if swaps_ab(case.kernel) { config.tile[0] } else { config.tile[1] };
        let [share, split] = [config.cluster[0], config.split].map(|count| count.max(1) as usize);
        let tile = Tile::of(case.kernel, width);
        let grid = Grid::new(case, tile.tiles(case.problem), share, split);
        Self { tile, grid, share, split, stages: config.stages }
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
    let width = if all_rows { Some(lowest(case).width) } else { None };
    let widths = kernel.widths.iter().filter(|other| width.is_none_or(|width| width == **other));
    for tile in widths.map(|width| Tile::of(kernel, *width)) {
        let tiles = tile.tiles(problem);
        for share in (1..=most_share).rev() {
            // Whole clusters only: where A is on the N side, one more tile makes all tiles lower; otherwise the
            // additional tile is idle.
            let whole = tiles[0] % share == 0;
            if !whole && !swaps_ab(kernel) {
                continue;
            }
            for split in [1, 2, 4, 8].into_iter().filter(|split| *split <= kernel.split as usize) {
                let grid = Grid::new(case, tiles, share, split);
                if !tile.can_split(case, &grid, split) {
                    continue;
                }
                for residents in if all_rows { 1..=2 } else { 1..=1 } {
                    let stages = tile.stages(split as u32, residents);
                    if stages >= LEAST_STAGES {
                        visit(Way { tile, grid, share, split, stages });
                    }
                }
            }
        }
    }
}

/// For a row of waves, the work of the busiest multiprocessor, which processes its tiles in sequence: the work of a tile is its width plus a
/// constant.
fn work(way: &Way) -> usize {
    way.grid.blocks.div_ceil(way.grid.at_once) * (way.tile.width as usize + 32) * 2 / way.split
}

/// The choice for a row of waves: the least work.
fn choose_waves(case: &Case) -> Option<Way> {
    let (mut best, mut least) = (None, usize::MAX);
    each(case, |way| {
        let work = work(&way);
        if work < least {
            (least, best) = (work, Some(way));
        }
    });
    best
}

impl Sm90SwapAb {
    /// The choice for a row of either kind: for a row that has all rows of A in a tile, the way of the least estimate.
    fn chosen_way(&self, case: &Case) -> Option<Way> {
        if !has_all_rows(case.kernel) {
            return choose_waves(case);
        }
        let (mut best, mut least) = (None, f64::INFINITY);
        each(case, |way| {
            let us = self.few_rows_us(case, &way, least);
            if us < least {
                (least, best) = (us, Some(way));
            }
        });
        best
    }

    /// The estimate for a row that has all rows of A in a tile; infinite where a part of the estimate is above `most_us`.
    fn few_rows_us(&self, case: &Case, way: &Way, most_us: f64) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let Way { tile, grid, split: parts, stages, .. } = *way;
        let sms = f64::from(device.sm_count);
        let [blocks, at_once] = [grid.blocks, grid.at_once].map(|count| count as f64);
        let residents = if stages > tile.stages(parts as u32, 2) { 1.0 } else { 2.0 };
        let turns = (blocks / (residents * at_once)).ceil();
        let idle = (1.0 - blocks / sms).max(0.0);
        let steps = (problem.k.div_ceil(parts * tile.depth as usize)) as f64;
        let [full, empty] = self.few_latency;
        let latency = device.model.latency_us * (full + (empty - full) * idle);
        let cycles = f64::from(tile.depth) / 16.0 * tile.cycles();
        let products = self.few_products * cycles / (device.model.clock_ghz * 1e3);
        let stages = turns * (steps * products.max(latency / f64::from(stages)) + self.few_tile_us);
        let bytes =
            (blocks / at_once).ceil() * f64::from(tile.p) * steps * f64::from(tile.depth) * problem.b.format.bits()
                / 8.0;
        let pull = self.few_pull[usize::from(is_raw(case.kernel) && 2.0 * blocks < sms)];
        let ring = stages.max(l2_us_of_one(bytes, pull, device) + self.few_tile_us);
        let raw = match case.kernel.layout {
            _ if !is_raw(case.kernel) => 1.0,
            Layout::NT => self.few_raw[0],
            _ => self.few_raw[1],
        };
        let memory = self.few_memory * memory_us(problem, device);
        let loads = Activities { ring, memory, ..Activities::default() };
        // Clusters of the next launch find room all at once or not at all.
        let finds_room = residents * at_once >= 2.0 * blocks;
        let launch =
            device.model.overlapped_launch_us + self.few_launch_us - self.few_room_us * f64::from(u8::from(finds_room));
        if launch + raw * loads.longest() > most_us {
            return f64::INFINITY;
        }
        let loads = (raw * loads.overlapped(self.few_norm)).max(arithmetic_us(problem, Math::Native, device)); // of cards with slow tensor cores
        let [split_us, doubling_us] = self.few_split_us;
        let split_us = if parts > 1 { split_us + doubling_us * f64::from(parts.ilog2()) } else { 0.0 };
        // Loads of the next tile hide all stores but the last.
        let second = residents.min((blocks / sms).ceil()) - 1.0;
        let row_us = self.few_row_us + second * self.few_second_row_us;
        launch + loads + split_us + f64::from(tile.width) * row_us
    }

    /// The estimate for a row of waves; infinite where a part of the estimate is above `most_us`.
    fn waves_us(&self, case: &Case, way: &Way, most_us: f64) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let bytes = problem.b.format.bits() / 8.0;
        let Way { tile, grid: Grid { m_tiles, blocks, at_once }, share, split, stages } = *way;
        let turns = blocks.div_ceil(at_once);
        let height = problem.m.div_ceil(m_tiles) as f64;
        let several = usize::from(turns > 1);
        let (turns, blocks, share, parts) = (turns as f64, blocks as f64, share as f64, split as f64);
        let (w_rows, depth) = (f64::from(tile.sides[1]), f64::from(tile.depth));
        let k = problem.k as f64 / parts;
        let idle = 1.0 - blocks / (turns * at_once as f64);
        let latency = self.latency * (1.0 - self.idle_latency * idle);
        let odd = odd_lines(problem, self.odd);
        let ring = odd * ring_us(turns * (k / depth).ceil(), stages.into(), latency, device);
        let l2 = odd * l2_us(blocks * (height + w_rows / share) * k * bytes, self.l2, device);
        let clocks_per_us = self.clock[several] * device.model.clock_ghz * 1e3;
        let products = turns * tile.cycles() * k / 16.0 / clocks_per_us * (1.0 - self.idle_gain * idle);
        let w_us = stream_us((problem.n * problem.k * problem.batch_count()) as f64 * bytes, 1.0, device);
        let uneven = self.uneven[several];
        let reread = self.reread * w_us * (m_tiles as f64 / share - 1.0);
        let memory = memory_us(problem, device) * (1.0 + uneven * idle) + reread;
        let launch = device.model.overlapped_launch_us + self.launch_us
            - self.room_us * room(blocks, f64::from(device.sm_count));
        let together = Activities { products, ring, l2, memory };
        if launch + together.longest() > most_us {
            return f64::INFINITY;
        }
        let together = together.overlapped(self.norm);
        let [sums_of_tile, bytes_of_tile] = [bytes, problem.d.format.bits() / 8.0].map(|size| height * w_rows * size);
        let split_us = if parts > 1.0 { self.split_us + sums_of_tile * self.sum_us } else { 0.0 };
        // Only plain products of one matrix with an unsplit K overlap the loads of the next tile with the stores of the
        // last.
        let marches = parts == 1.0 && problem.batch_count() == 1 && problem.epilogue.is_linear();
        let restarts = if marches { 0.0 } else { (turns - 1.0) * self.restart_us };
        let share_us = if share > 1.0 { self.share_us } else { 0.0 };
        let group_us = self.group_us * (f64::from(tile.p) / 64.0 - 1.0);
        let busy = together + split_us + restarts + turns * bytes_of_tile * self.store_us;
        launch + share_us + group_us + busy.max(self.roofline * roofline_us(problem, device))
    }

    /// The estimate; infinite where a part of the estimate is above `most_us`.
    fn way_us(&self, case: &Case, way: &Way, most_us: f64) -> f64 {
        match has_all_rows(case.kernel) {
            true => self.few_rows_us(case, way, most_us),
            false => self.waves_us(case, way, most_us),
        }
    }
}

impl Family for Sm90SwapAb {
    fn configurations(&self, case: &Case) -> Vec<Config> {
        let mut configurations = Vec::new();
        each(case, |way| configurations.push(way.config(case.kernel)));
        configurations
    }

    fn choose(&self, case: &Case) -> Config {
        self.chosen_way(case).map_or(Config::default(), |way| way.config(case.kernel))
    }

    fn chosen(&self, case: &Case) -> (Config, f64) {
        let way = self.chosen_way(case);
        way.map_or((Config::default(), 0.0), |way| (way.config(case.kernel), self.way_us(case, &way, f64::INFINITY)))
    }

    /// Of a row of waves, the ways with little more work than the chosen way.
    fn rivals(&self, case: &Case, chosen: &Config, most_us: f64) -> Vec<(Config, f64)> {
        let most_work = (!has_all_rows(case.kernel)).then(|| work(&Way::of(case, chosen)) * 9 / 8);
        let mut rivals = Vec::new();
        each(case, |way| {
            if most_work.is_none_or(|most| work(&way) <= most) {
                let (config, us) = (way.config(case.kernel), self.way_us(case, &way, most_us));
                if us < most_us && config != *chosen {
                    rivals.push((config, us));
                }
            }
        });
        rivals
    }

    /// The parts of a split K lie elsewhere where K has other stages, and few rows alone have splits.
    fn sums(&self, _: &KernelDesc, config: &Config) -> Option<SumOrder> {
        (config.split == 1).then_some(SumOrder::Wgmma)
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        self.way_us(case, &Way::of(case, config), f64::INFINITY)
    }

    fn element_cost(&self, kernel: &KernelDesc) -> ElementCost {
        let [instruction, bias, residual, unaligned] = self.epilogue_ns;
        let unaligned = if has_all_rows(kernel) { self.few_unaligned_ns } else { unaligned };
        ElementCost { instruction, bias, residual, unaligned }
    }
}
