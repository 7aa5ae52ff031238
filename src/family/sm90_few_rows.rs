//! `csrc/sm90_few_rows`: up to 128 rows in 16 bits, TMA and WGMMA with A and B swapped, and K split over a cluster. The columns of B are called
//! the rows of W. One tile has all rows of A: a row of the table has tiles of several widths, and the lowest that has room is taken.
//!
//! A configuration names the tile of D, the parts of K (`split`), and the stages of the ring, whose number decides how many blocks share a
//! multiprocessor. In a row for a B at odd addresses four warps copy B line by line in place of TMA.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::arithmetic_us;
use crate::cost::pipeline::{has_whole_lines, l2_us, l2_us_of_one, memory_us, odd_lines, Activities};
use crate::kernel::{Case, ElementCost, Family, KernelDesc, Math, SumOrder};
use crate::problem::{Layout, MAX_ALIGN};

const LEAST_STAGES: u32 = 3;
const MOST_STAGES: u32 = 16;
const BARRIERS_BYTES: u32 = 8 * (2 * MOST_STAGES + 1);

fitted! {
    Sm90FewRows {
        /// Launch, scheduling, the first loads and the drain, beside the card's overlapped launch.
        launch_us: f64 = "us", -2.5 to 3.0;
        /// The part of that time that a launch saves where the blocks of two launches find room beside each other.
        room_us: f64 = "us", 0.0 to 1.5;
        /// K in parts, and each doubling of the parts: the path through distributed shared memory.
        split_us: [f64; 2] = "us", -0.2 to 3.0;
        /// Latency of a stage from request to arrival, over the card's: beside memory's time where every multiprocessor loads, and where few do.
        latency: [f64; 2] = "", 0.1 to 3.0;
        /// The products of a stage, over wgmma's cycles.
        products: f64 = "", 0.3 to 2.0;
        /// A tile's time beside its stages.
        tile_us: f64 = "us", -0.5 to 3.0;
        /// The rate at which one multiprocessor loads, over L2's rate to a multiprocessor: by TMA, and where B lies at odd addresses and fewer
        /// than half of the multiprocessors load, behind the first stages; between half and all of them in proportion.
        pull: [f64; 2] = "", 0.2 to 3.0;
        /// L2's time for lines at odd multiples of 32 bytes, and of 16, over that at the full rate. Other bounds hold for whole lines.
        odd: [f64; 2] = "", 1.0 to 8.0;
        /// Memory time over the time of one pass.
        memory: f64 = "", 0.9 to 2.0;
        /// The time of loads where B lies at odd addresses, in nt and nn, over the time of TMA's loads.
        raw: [f64; 2] = "", 1.0 to 3.0;
        /// The norm by which memory and tiles overlap.
        norm: f64 = "", 1.0 to 16.0;
        /// The store of one of the rows that a tile has room for. A multiprocessor stores 3 bytes of 16-bit results a clock in this time;
        /// results in f32 are taken to need no more.
        row_us: f64 = "us", 0.0 to 0.5;
        /// The store of such a row while a second block of the multiprocessor stores, too.
        second_row_us: f64 = "us", 0.0 to 0.5;
        /// Epilogues, for each element of D: an activation's instruction, a bias before an activation, `beta * C`, unaligned rows.
        epilogue_ns: [f64; 4] = "ns", 0.0 to 10.0;
    }
}

/// Whether lines of B may start anywhere.
fn is_raw(kernel: &KernelDesc) -> bool {
    kernel.align < MAX_ALIGN
}

/// The rows of the lowest tile that has all rows of A.
fn lowest(case: &Case) -> u32 {
    let width = case.kernel.widths.iter().find(|width| case.problem.m <= **width as usize);
    width.copied().unwrap_or(case.kernel.tile[0])
}

/// Stages of a tile with so many rows of A that fit in shared memory beside the sums of the other parts of K, with `residents` blocks on a
/// multiprocessor.
fn most_stages(kernel: &KernelDesc, width: u32, split: u32, residents: u32) -> u32 {
    let [_, w_rows, depth] = kernel.tile;
    let fragments = w_rows / 16 * (width / 8);
    let inbox = if split > 1 { split * fragments.div_ceil(split) * 512 } else { 0 };
    // Between the lines of a B at odd addresses.
    let gaps = match kernel.layout {
        _ if !is_raw(kernel) => 0,
        Layout::NN => 16 * depth,
        _ => 16 * w_rows,
    };
    let room = (228 * 1024 / residents - 1024).saturating_sub(BARRIERS_BYTES + inbox);
    (room / ((w_rows + width) * depth * 2 + gaps)).min(MOST_STAGES)
}

/// Every way that the kernel can run the problem, except ways that would never be fast.
fn ways<'a>(case: &'a Case) -> impl Iterator<Item = Config> + 'a {
    let kernel = case.kernel;
    let [_, w_rows, depth] = kernel.tile;
    let (width, k_steps) = (lowest(case), case.problem.k.div_ceil(depth as usize));
    let splits = [1, 2, 4, 8].into_iter().filter(move |split| *split <= kernel.split && *split as usize <= k_steps);
    let way = move |split, residents| {
        let stages = most_stages(kernel, width, split, residents);
        Config { cluster: [1, 1], stages, swap_ab: true, ..Config::tile([width, w_rows], split) }
    };
    splits.flat_map(move |split| [way(split, 1), way(split, 2)]).filter(|config| config.stages >= LEAST_STAGES)
}

impl Sm90FewRows {
    /// The estimate; infinite where a part of the estimate is above `most_us`.
    fn us(&self, case: &Case, config: &Config, most_us: f64) -> f64 {
        let Case { kernel, problem, device, .. } = *case;
        let [_, w_rows, depth] = kernel.tile;
        let (width, parts) = (config.tile[0], config.split.max(1));
        let tiles = problem.m.div_ceil(width as usize) * problem.n.div_ceil(w_rows as usize);
        let blocks = (tiles * problem.batch_count() * parts as usize) as f64;
        let at_once = device.model.reached(device.sm_count as usize, parts as usize).max(1) as f64;
        let sms = f64::from(device.sm_count);
        let residents = if config.stages > most_stages(kernel, width, parts, 2) { 1.0 } else { 2.0 };
        let turns = (blocks / (residents * at_once)).ceil();
        let idle = (1.0 - blocks / sms).max(0.0);
        let steps = problem.k.div_ceil((parts * depth) as usize) as f64;
        let [full, empty] = self.latency;
        let latency = device.model.latency_us * (full + (empty - full) * idle);
        let [width, w_rows, depth] = [width, w_rows, depth].map(f64::from);
        // wgmma's cycles for 16 steps of K: the larger of its arithmetic and its shared-memory reads.
        let cycles = depth / 16.0 * (w_rows / 64.0 * (width / 2.0).max(16.0 + width / 4.0));
        let products = self.products * cycles / (device.model.clock_ghz * 1e3);
        let stages = turns * (steps * products.max(latency / f64::from(config.stages)) + self.tile_us);
        let bytes = (blocks / at_once).ceil() * w_rows * steps * depth * problem.b.format.bits() / 8.0;
        let [pull, of_later] = self.pull;
        let of_one = l2_us_of_one(bytes, pull, device);
        let (raw, loading) = if is_raw(kernel) {
            // The first stages of a block are all under way at once.
            let later = (1.0 - f64::from(config.stages) / steps).max(0.0) * (2.0 * idle).min(1.0);
            let raw = self.raw[usize::from(kernel.layout != Layout::NT)];
            (raw, (1.0 - later + later * pull / of_later) * of_one)
        } else if has_whole_lines(problem) {
            (1.0, of_one)
        } else {
            let of_all = blocks * (width + w_rows) * steps * depth * problem.b.format.bits() / 8.0;
            (1.0, of_one.max(l2_us(of_all, 1.0 / odd_lines(problem, self.odd), device)))
        };
        let ring = stages.max(loading + self.tile_us);
        let memory = self.memory * memory_us(problem, device);
        let loads = Activities { ring, memory, ..Activities::default() };
        // Clusters of the next launch find room all at once or not at all.
        let finds_room = residents * at_once >= 2.0 * blocks;
        let launch =
            device.model.overlapped_launch_us + self.launch_us - self.room_us * f64::from(u8::from(finds_room));
        if launch + raw * loads.longest() > most_us {
            return f64::INFINITY;
        }
        let loads = (raw * loads.overlapped(self.norm)).max(arithmetic_us(problem, Math::Native, device)); // of cards with slow tensor cores
        let [split_us, doubling_us] = self.split_us;
        let split_us = if parts > 1 { split_us + doubling_us * f64::from(parts.ilog2()) } else { 0.0 };
        // Loads of the next tile hide all stores but the last.
        let second = residents.min((blocks / sms).ceil()) - 1.0;
        let row_us = self.row_us + second * self.second_row_us;
        launch + loads + split_us + width * row_us
    }
}

impl Family for Sm90FewRows {
    fn configurations(&self, case: &Case) -> Vec<Config> {
        ways(case).collect()
    }

    fn choose(&self, case: &Case) -> Config {
        self.chosen(case).0
    }

    /// The least estimate.
    fn chosen(&self, case: &Case) -> (Config, f64) {
        ways(case).fold((Config::default(), f64::INFINITY), |(best, least), config| {
            let us = self.us(case, &config, least);
            if us < least {
                (config, us)
            } else {
                (best, least)
            }
        })
    }

    fn rivals(&self, case: &Case, chosen: &Config, most_us: f64) -> Vec<(Config, f64)> {
        let others = ways(case).filter(|config| config != chosen);
        others.map(|config| (config, self.us(case, &config, most_us))).filter(|(_, us)| *us < most_us).collect()
    }

    /// The parts of a split K lie elsewhere where K has other stages.
    fn sums(&self, _: &KernelDesc, config: &Config) -> Option<SumOrder> {
        (config.split == 1).then_some(SumOrder::Wgmma)
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        self.us(case, config, f64::INFINITY)
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        let [instruction, bias, residual, unaligned] = self.epilogue_ns;
        ElementCost { instruction, bias, residual, unaligned }
    }
}
