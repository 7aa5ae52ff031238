//! `csrc/split_k`: any strides, any alignment and any dtype, with K split over the card.

use super::fitted::fitted;
use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::cost::pipeline::l2_us;
use crate::cost::{arithmetic_us, memory_us, overlap_by};
use crate::kernel::{Case, Family, Math};
use crate::problem::{Format, Problem};
use crate::workspace;

/// Threads of a block, and of a multiprocessor.
const THREADS: u64 = 256;
const SM_THREADS: u64 = 2048;
/// The least K of a part that justifies a block.
const LEAST_K: u64 = 16;

/// A tile that the kernel has.
struct Tile {
    size: [u64; 2],
    /// Steps of K in a round of loads.
    depth: u64,
    /// Blocks that share a multiprocessor.
    residents: u64,
    /// The tile's place in the family's lists.
    place: usize,
}

const fn tile(size: [u64; 2], depth: u64, residents: u64, place: usize) -> Tile {
    Tile { size, depth, residents, place }
}

/// Tiles of up to 4 x 4, for every dtype.
const DOTS: [Tile; 4] = [
    tile([1, 1], 8 * THREADS, 6, 0),
    tile([1, 4], 4 * THREADS, 5, 1),
    tile([4, 1], 4 * THREADS, 5, 2),
    tile([4, 4], 4 * THREADS, 2, 3),
];
/// Tiles through shared memory, in f32 and f64.
const SIMT: [Tile; 7] = [
    tile([4, 64], 32, 2, 4),
    tile([64, 4], 32, 2, 5),
    tile([16, 16], 64, 2, 6),
    tile([16, 64], 32, 2, 7),
    tile([64, 16], 32, 2, 8),
    tile([32, 32], 32, 2, 9),
    tile([64, 64], 16, 2, 10),
];
/// Tiles in 16 bits.
const MMA: [Tile; 5] = [
    tile([16, 16], 128, 3, 11),
    tile([16, 64], 64, 3, 12),
    tile([64, 16], 64, 3, 13),
    tile([32, 32], 64, 3, 14),
    tile([64, 64], 32, 3, 15),
];

impl Tile {
    /// Whether threads multiply directly from global memory.
    fn is_dot(&self) -> bool {
        self.size[0] * self.size[1] <= 16
    }

    fn tiles(&self, problem: &Problem) -> u64 {
        let [along_m, along_n] =
            [(problem.m, self.size[0]), (problem.n, self.size[1])].map(|(x, t)| (x as u64).div_ceil(t));
        along_m.saturating_mul(along_n).saturating_mul(problem.batch_count() as u64)
    }

    /// Lines that a warp touches with one load of each row of A and each column of B.
    fn lines(&self, problem: &Problem) -> f64 {
        let bytes = problem.a.format.bits() / 8.0;
        let of = |stride: i64| (stride.unsigned_abs() as f64 * bytes * 32.0 / 128.0).clamp(1.0, 32.0);
        self.size[0] as f64 * of(problem.a.col_stride) + self.size[1] as f64 * of(problem.b.row_stride)
    }
}

/// The tiles to consider.
fn tiles(problem: &Problem, sms: u64) -> impl Iterator<Item = &'static Tile> {
    let large: &[Tile] = if problem.a.format.bytes(1) == 2 { &MMA } else { &SIMT };
    let (last, others) = large.split_last().expect("there are tiles");
    // Where the largest tiles fill the card several times over, no other tile is considered.
    let few = last.tiles(problem) < 4 * sms;
    DOTS.iter().chain(others).filter(move |_| few).chain([last])
}

/// Calls `visit` with every considered tile and number of parts whose sums fit into the workspace.
fn each(case: &Case, mut visit: impl FnMut(&'static Tile, u64)) {
    let sms = u64::from(case.device.sm_count).max(1);
    let most = (case.problem.k as u64 / LEAST_K).clamp(1, 1024);
    for tile in tiles(case.problem, sms) {
        // As many blocks as multiprocessors, and twice and three times that number.
        let even = sms / tile.tiles(case.problem).max(1);
        let mut before = 0;
        for split in [1, even, 2 * even, 3 * even].map(|split| split.clamp(1, most)) {
            if split > before && workspace::parts_bytes(split, case.problem) <= case.workspace {
                visit(tile, split);
            }
            before = before.max(split);
        }
    }
}

impl Tile {
    fn config(&self, split: u64) -> Config {
        Config::tile(self.size.map(|side| side as u32), split as u32)
    }
}

fitted! {
    SplitK {
        /// The launch, the first loads and the last stores, beside the card's launch.
        launch_us: f64 = "us", -3.7 to 3.0;
        /// Memory time over the time of one pass.
        memory: f64 = "", 1.0 to 4.0;
        /// The norm by which activities overlap.
        norm: f64 = "", 1.0 to 16.0;
        /// An L1 request for each line of 128 bytes that the lanes of a warp touch.
        line_clocks: f64 = "clocks", 0.1 to 8.0;
        /// The kernel that adds parts: its launch.
        add_us: f64 = "us", 0.0 to 8.0;
        /// The same: each round of loads.
        add_round_us: f64 = "us", 0.0 to 8.0;
        /// The same: each further wave of threads.
        add_wave_us: f64 = "us", 0.0 to 2.0;
        /// Parts, which the product writes and the addition reads: the share of L2's rate.
        parts: f64 = "", 0.02 to 1.0;
        /// A round of loads that nothing hides, for each tile.
        round_us: [f64; 16] = "us", 0.0 to 4.0;
        /// Each further wave of blocks, for tiles of up to 4 x 4 and for larger ones.
        wave_us: [f64; 2] = "us", 0.0 to 6.0;
        /// The store of an element of a tile beyond 16 x 16, by the busiest multiprocessor.
        store_ns: f64 = "ns", 0.0 to 5.0;
        /// One multiplication of a block with its share of other instructions, for each tile.
        product_clocks: [f64; 16] = "clocks", 0.001 to 2.0;
        /// The factor on a multiplication's time in f64.
        double: f64 = "", 1.0 to 4.0;
    }
}

impl SplitK {
    /// The estimate; infinite where a part of the estimate is above `most_us`.
    fn us(&self, tile: &Tile, split: u64, problem: &Problem, device: &DeviceInfo, most_us: f64) -> f64 {
        let sms = u64::from(device.sm_count).max(1);
        let k = (problem.k as u64).div_ceil(split);
        let rounds = k.div_ceil(tile.depth);
        // Tiles through shared memory multiply whole chunks.
        let k = if tile.is_dot() { k } else { rounds.saturating_mul(tile.depth) };
        let busiest = tile.tiles(problem).saturating_mul(split).div_ceil(sms) as f64;
        let waves = (busiest / tile.residents as f64).ceil();
        let double = if problem.a.format == Format::F64 { self.double } else { 1.0 };
        let clocks_per_us = device.model.clock_ghz * 1e3;
        let product_us = self.product_clocks[tile.place] * double / clocks_per_us;
        let products = busiest * (tile.size[0] * tile.size[1]) as f64 * k as f64 * product_us;
        let products = products.max(arithmetic_us(problem, Math::Native, device)); // of cards with little f64
        let latency = waves * rounds as f64 * self.round_us[tile.place];
        let line_us = self.line_clocks / clocks_per_us;
        let lines = if tile.is_dot() { busiest * k as f64 / 32.0 * tile.lines(problem) * line_us } else { 0.0 };
        let memory = self.memory * memory_us(problem, device);
        let launch = device.model.launch_us + self.launch_us;
        if launch + products.max(latency).max(lines).max(memory) > most_us {
            return f64::INFINITY;
        }
        let add_us = self.adding_us(split, problem, device);
        let elements = (tile.size[0] * tile.size[1]).saturating_sub(256) as f64;
        let stores = 1e-3 * self.store_ns * busiest * elements;
        let more = stores + (waves - 1.0) * self.wave_us[usize::from(!tile.is_dot())];
        launch + overlap_by(self.norm, &[products, latency, lines, memory]) + more + add_us
    }

    /// Time to add the parts, with the kernel's distribution of threads.
    fn adding_us(&self, split: u64, problem: &Problem, device: &DeviceInfo) -> f64 {
        if split == 1 {
            return 0.0;
        }
        let (count, sms) = (workspace::outputs(problem), u64::from(device.sm_count).max(1));
        let room = sms * SM_THREADS / count.max(1);
        let lanes = [32, 8].into_iter().find(|&lanes| split >= lanes && room >= lanes).unwrap_or(1);
        let rounds = split.div_ceil(lanes).div_ceil(8) as f64;
        let waves = (count * lanes / (sms * SM_THREADS)) as f64;
        let parts = l2_us(2.0 * workspace::parts_bytes(split, problem) as f64, self.parts, device);
        self.add_us + rounds * self.add_round_us + waves * self.add_wave_us + parts
    }
}

impl Family for SplitK {
    fn scratch_bytes(&self, problem: &Problem, config: &Config) -> u64 {
        workspace::parts_bytes(config.split.into(), problem)
    }

    fn configurations(&self, case: &Case) -> Vec<Config> {
        let mut configurations = Vec::new();
        each(case, |tile, split| configurations.push(tile.config(split)));
        configurations
    }

    /// The fastest configuration by the estimate.
    fn choose(&self, case: &Case) -> Config {
        let mut best = (Config::default(), f64::INFINITY);
        each(case, |tile, split| {
            let us = self.us(tile, split, case.problem, case.device, best.1);
            if us < best.1 {
                best = (tile.config(split), us);
            }
        });
        best.0
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let large: &[Tile] = if case.problem.a.format.bytes(1) == 2 { &MMA } else { &SIMT };
        let tile = DOTS.iter().chain(large).find(|tile| tile.size.map(|side| side as u32) == config.tile);
        tile.map_or(f64::INFINITY, |tile| {
            self.us(tile, config.split.max(1).into(), case.problem, case.device, f64::INFINITY)
        })
    }

    /// The error of estimates is 19 %.
    fn lead(&self) -> f64 {
        0.95
    }
}
