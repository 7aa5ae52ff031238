//! `csrc/sm90_wave`: some 65 to 800 rows in 16 bits in one wave of tiles, TMA and WGMMA with A and B swapped or W shared. The columns of B are
//! called the rows of W. A row of the table has tiles of several widths.
//!
//! A configuration names a tile of D, the blocks that share W (`cluster`), the parts of K (`split`), and whether W is on wgmma's M side
//! (`swap_ab`). There is one block to a multiprocessor, with as many stages of the ring as fit in shared memory.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::pipeline::{l2_us, memory_us, odd_lines, ring_us, room, stream_us, Activities};
use crate::cost::roofline_us;
use crate::kernel::{Case, ElementCost, Family, KernelDesc, SumOrder};

const LEAST_STAGES: u32 = 3;
const MOST_STAGES: u32 = 16;
const BARRIERS_BYTES: u32 = 8 * (2 * MOST_STAGES + 1);
/// The least K for shared loads: with a smaller K, the blocks of a cluster wait for each other longer than sharing
/// saves (5 to 12 % up to 1536).
const SHARED_K: usize = 2048;

fitted! {
    Sm90Wave {
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
    }
}

/// Whether W is on wgmma's M side: the widths of the row are rows of A then.
fn swaps_ab(kernel: &KernelDesc) -> bool {
    kernel.widths.last() == Some(&kernel.tile[0])
}

/// A way to run a problem.
#[derive(Debug, Clone, Copy)]
struct Way {
    /// Rows and columns of D's tiles.
    sides: [u32; 2],
    /// wgmma's sides: `p` rows of the M side, and the width.
    p: u32,
    width: u32,
    /// K of a stage.
    depth: u32,
    /// Blocks that share W.
    share: usize,
    split: usize,
    stages: u32,
    /// Tiles along M, in whole clusters.
    m_tiles: usize,
    blocks: usize,
    /// Blocks that run at the same time, one on a multiprocessor.
    at_once: usize,
}

impl Way {
    fn of(case: &Case, width: u32, share: usize, split: usize) -> Self {
        let Case { kernel, problem, device, .. } = *case;
        let [tile_m, tile_n, tile_k] = kernel.tile;
        let (p, sides) = if swaps_ab(kernel) { (tile_n, [width, tile_n]) } else { (tile_m, [tile_m, width]) };
        let stages = |depth: u32, split: u32| {
            let inbox = if split > 1 { p / 16 * (width / 8).div_ceil(2) * 512 } else { 0 };
            // A large inbox takes the place of the ring.
            let inbox = if inbox > 20_000 { 0 } else { inbox };
            ((227 * 1024 - BARRIERS_BYTES - inbox) / ((p + width) * depth * 2)).min(MOST_STAGES)
        };
        let depth = if stages(tile_k, kernel.split) >= 5 { tile_k } else { 64 };
        let m_tiles = problem.m.div_ceil(sides[0] as usize).next_multiple_of(share);
        let blocks = m_tiles * problem.n.div_ceil(sides[1] as usize) * problem.batch_count() * split;
        let at_once = device.model.reached(device.sm_count as usize, share * split).max(1);
        Self { sides, p, width, depth, share, split, stages: stages(depth, split as u32), m_tiles, blocks, at_once }
    }

    fn of_config(case: &Case, config: &Config) -> Self {
        let width = config.tile[usize::from(!swaps_ab(case.kernel))];
        let [share, split] = [config.cluster[0], config.split].map(|count| count.max(1) as usize);
        Self { stages: config.stages, ..Self::of(case, width, share, split) }
    }

    fn config(&self, kernel: &KernelDesc) -> Config {
        Config {
            cluster: [self.share as u32, 1],
            stages: self.stages,
            swap_ab: swaps_ab(kernel),
            ..Config::tile(self.sides, self.split as u32)
        }
    }

    /// Whether K is long enough for so many parts, and the parts are worth their sum.
    fn can_split(&self, case: &Case) -> bool {
        // The reduction of a split K costs one or two microseconds; tiles that share W save that time by other means.
        let least_k = if case.kernel.cluster[0] > 1 { 8192 } else { 4 * self.depth as usize };
        // Nothing hides a second wave of reductions.
        self.split == 1 || (case.problem.k >= least_k && self.blocks <= self.at_once)
    }

    /// The work of the busiest multiprocessor, which processes its tiles in sequence: the work of a tile is its width plus a constant.
    fn work(&self) -> usize {
        self.blocks.div_ceil(self.at_once) * (self.width as usize + 32) * 2 / self.split
    }
}

/// Every way that the kernel can run the problem, except ways that would never be fast.
fn ways(case: &Case) -> Vec<Way> {
    let (kernel, problem) = (case.kernel, case.problem);
    let most_share = if problem.k < SHARED_K { 1 } else { kernel.cluster[0] as usize };
    let mut ways = Vec::new();
    for width in kernel.widths {
        for share in (1..=most_share).rev() {
            // Whole clusters only: where A is on the N side, one more tile makes all tiles lower; otherwise the
            // additional tile is idle.
            if swaps_ab(kernel) || problem.m.div_ceil(kernel.tile[0] as usize) % share == 0 {
                let splits = (1..=kernel.split as usize).map(|split| Way::of(case, *width, share, split));
                ways.extend(splits.filter(|way| way.can_split(case) && way.stages >= LEAST_STAGES));
            }
        }
    }
    ways
}

/// The way of the least work.
fn choose_waves(case: &Case) -> Option<Way> {
    ways(case).into_iter().min_by_key(Way::work)
}

impl Sm90Wave {
    /// The estimate; infinite where a part of the estimate is above `most_us`.
    fn us(&self, case: &Case, way: &Way, most_us: f64) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let bytes = problem.b.format.bits() / 8.0;
        let Way { m_tiles, blocks, at_once, share, split, stages, .. } = *way;
        let turns = blocks.div_ceil(at_once);
        let height = problem.m.div_ceil(m_tiles) as f64;
        let several = usize::from(turns > 1);
        let (turns, blocks, share, parts) = (turns as f64, blocks as f64, share as f64, split as f64);
        let [w_rows, depth, p, width] = [way.sides[1], way.depth, way.p, way.width].map(f64::from);
        let k = problem.k as f64 / parts;
        let idle = 1.0 - blocks / (turns * at_once as f64);
        let latency = self.latency * (1.0 - self.idle_latency * idle);
        let odd = odd_lines(problem, self.odd);
        let ring = odd * ring_us(turns * (k / depth).ceil(), stages.into(), latency, device);
        let l2 = odd * l2_us(blocks * (height + w_rows / share) * k * bytes, self.l2, device);
        let clocks_per_us = self.clock[several] * device.model.clock_ghz * 1e3;
        // wgmma's cycles for 16 steps of K: the larger of its arithmetic and its shared-memory reads.
        let cycles = p / 64.0 * (width / 2.0).max(16.0 + width / 4.0);
        let products = turns * cycles * k / 16.0 / clocks_per_us * (1.0 - self.idle_gain * idle);
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
        let group_us = self.group_us * (p / 64.0 - 1.0);
        let busy = together + split_us + restarts + turns * bytes_of_tile * self.store_us;
        launch + share_us + group_us + busy.max(self.roofline * roofline_us(problem, device))
    }
}

impl Family for Sm90Wave {
    fn configurations(&self, case: &Case) -> Vec<Config> {
        ways(case).iter().map(|way| way.config(case.kernel)).collect()
    }

    fn choose(&self, case: &Case) -> Config {
        choose_waves(case).map_or(Config::default(), |way| way.config(case.kernel))
    }

    fn chosen(&self, case: &Case) -> (Config, f64) {
        let way = choose_waves(case);
        way.map_or((Config::default(), 0.0), |way| (way.config(case.kernel), self.us(case, &way, f64::INFINITY)))
    }

    /// The ways with little more work than the chosen way.
    fn rivals(&self, case: &Case, chosen: &Config, most_us: f64) -> Vec<(Config, f64)> {
        let most_work = Way::of_config(case, chosen).work() * 9 / 8;
        let near = ways(case).into_iter().filter(|way| way.work() <= most_work);
        let timed = near.map(|way| (way.config(case.kernel), self.us(case, &way, most_us)));
        timed.filter(|(config, us)| *us < most_us && config != chosen).collect()
    }

    fn sums(&self, _: &KernelDesc, config: &Config) -> Option<SumOrder> {
        (config.split == 1).then_some(SumOrder::Wgmma)
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        self.us(case, &Way::of_config(case, config), f64::INFINITY)
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        let [instruction, bias, residual, unaligned] = self.epilogue_ns;
        ElementCost { instruction, bias, residual, unaligned }
    }
}
