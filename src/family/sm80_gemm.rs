//! `csrc/sm80_gemm`: CuTe, tensor cores by `mma.sync`.

use super::fitted::fitted;
use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::cost::pipeline::{l2_us, stream_us, Activities};
use crate::cost::{arithmetic_us, memory_us, peak_tflops};
use crate::kernel::{Case, ElementCost, Family, KernelDesc, Math, SumOrder};
use crate::problem::{Format, Layout, Problem};
use crate::workspace;

/// The least blocks of K in a part.
const LEAST_BLOCKS: u64 = 4;
/// The most parts of K.
const MOST_PARTS: u64 = 16;
/// Bytes between the lines of a block that is contiguous along M or N, beside the line, of TF32.
const PADDING: u32 = 32;
/// The K below which f32 by parts has separate sums of large and small products (csrc/sm80_gemm/parts.hpp).
const MOST_APART: usize = 256;

fitted! {
    Sm80Gemm {
        /// Throughput of a multiprocessor that is full of blocks, relative to its share of the sustained rate: blocks of eight warps, and
        /// of four.
        efficiency: [f64; 2] = "", 0.3 to 1.3;
        /// The same for copies of 4 bytes, and through registers.
        unaligned: [f64; 2] = "", 0.05 to 1.3;
        /// The same for f32 by six products of parts: tiles of 128 x 64, of 64 x 64, and of 64 x 64 with separate sums of large and small products.
        parts: [f64; 3] = "", 0.05 to 1.3;
        /// The same for f64: blocks of eight warps, and of four.
        double: [f64; 2] = "", 0.05 to 1.3;
        /// The share of this throughput that a multiprocessor with a single block of four warps has.
        alone: f64 = "", 0.3 to 1.0;
        /// The rate of `mma.sync` over that of the newer instructions, except in f64: on Hopper, and on data-centre Blackwell.
        newer: [f64; 2] = "", 0.1 to 1.0;
        /// First loads, and the epilogue of 128 x 128 results.
        tile_us: [f64; 2] = "us", 0.0 to 20.0;
        /// The share of what L2 gives.
        l2: f64 = "", 0.1 to 1.2;
        /// Memory time over that of one pass.
        memory: f64 = "", 1.0 to 3.0;
        /// The norm by which activities overlap.
        norm: f64 = "", 1.0 to 16.0;
        /// The kernel that adds parts of K: its launch.
        add_us: f64 = "us", 0.0 to 8.0;
        /// Epilogues, for each element of D: an activation's instruction, a bias before an activation, `beta * C`, unaligned rows.
        epilogue_ns: [f64; 4] = "ns", 0.0 to 10.0;
    }
}

/// The work of a kernel's grid.
struct Grid {
    tiles: u64,
    /// Blocks of K.
    depth: u64,
}

impl Grid {
    fn of(kernel: &KernelDesc, problem: &Problem) -> Self {
        let [m, n, k] = kernel.tile.map(u64::from);
        let [along_m, along_n] = [(problem.m, m), (problem.n, n)].map(|(extent, tile)| (extent as u64).div_ceil(tile));
        let tiles = along_m.saturating_mul(along_n).saturating_mul(problem.batch_count() as u64);
        Self { tiles, depth: (problem.k as u64).div_ceil(k) }
    }

    /// Blocks of K in a part, where none of `parts` parts is empty.
    fn part(&self, parts: u64) -> Option<u64> {
        let part = self.depth.div_ceil(parts);
        (self.depth.div_ceil(part) == parts).then_some(part)
    }
}

/// Shared memory of a block: the ring, or the rows of D that pass through its place.
fn shared_bytes(kernel: &KernelDesc) -> u32 {
    let [m, n, k] = kernel.tile;
    let [bytes, sum_bytes] = [kernel.types.a, kernel.types.acc].map(|format| format.bytes(1) as u32);
    let has_padding = kernel.math == Math::Tf32;
    let operand = |mn: u32, along_k: bool| (mn * bytes + if along_k || !has_padding { 0 } else { PADDING }) * k;
    let (a_along_k, b_along_k) =
        (matches!(kernel.layout, Layout::NN | Layout::NT), matches!(kernel.layout, Layout::NT | Layout::TT));
    let ring = kernel.stages * (operand(m, a_along_k) + operand(n, b_along_k));
    let rows = |of_m: u32| of_m * (n + 8) * sum_bytes;
    let mut of_m = m;
    while of_m >= 64 && rows(of_m) > ring {
        of_m /= 2;
    }
    ring.max(rows(of_m))
}

impl Sm80Gemm {
    fn us(&self, kernel: &KernelDesc, parts: u64, problem: &Problem, device: &DeviceInfo) -> f64 {
        let grid = Grid::of(kernel, problem);
        let sms = f64::from(device.sm_count);
        let [tile_m, tile_n, tile_k] = kernel.tile.map(f64::from);
        let part = grid.part(parts).unwrap_or(grid.depth) as f64 * tile_k;
        let blocks = (grid.tiles * parts) as f64;

        // Blocks that share a multiprocessor hide each other's waits.
        let room = f64::from(device.model.shared_bytes / shared_bytes(kernel))
            .clamp(1.0, if kernel.warps == 8 { 1.0 } else { 2.0 });
        let few_warps = usize::from(kernel.warps < 8);
        let full = match (problem.a.format, kernel.math, kernel.align) {
            (Format::F64, ..) => self.double[few_warps],
            (_, Math::Bf16x6, _) if kernel.tile[0] * kernel.tile[1] > 64 * 64 => self.parts[0],
            (_, Math::Bf16x6, _) => self.parts[if problem.k < MOST_APART { 2 } else { 1 }],
            (Format::F16 | Format::BF16, _, 4) => self.unaligned[0],
            (.., 2) => self.unaligned[1],
            _ => self.efficiency[few_warps],
        };
        let busiest = (blocks / sms).ceil();
        let single = kernel.warps == 4 && (busiest < 2.0 || room < 2.0);
        let newer = match device.capability / 10 {
            _ if problem.a.format == Format::F64 => 1.0,
            9 => self.newer[0],
            10 | 11 => self.newer[1],
            _ => 1.0,
        };
        let alone = if single { self.alone } else { 1.0 };
        let rate = peak_tflops(problem.a.format, kernel.math, device) * 1e6 / sms * newer * full * alone;
        let products = busiest * 2.0 * tile_m * tile_n * part / rate;
        let tiles = (busiest / room).ceil() * (self.tile_us[0] + self.tile_us[1] * tile_m * tile_n / 16384.0);

        let bytes = problem.a.format.bits() / 8.0;
        let activities = Activities {
            products: products + tiles,
            ring: 0.0,
            l2: l2_us(blocks * (tile_m + tile_n) * part * bytes, self.l2, device),
            memory: self.memory * memory_us(problem, device),
        };
        let us = activities.overlapped(self.norm).max(arithmetic_us(problem, kernel.math, device));
        let add = if parts > 1 {
            self.add_us + stream_us(2.0 * workspace::parts_bytes(parts, problem) as f64, 1.0, device)
        } else {
            0.0
        };
        device.model.launch_us + us + add
    }
}

/// The considered numbers of parts of K.
fn parts<'a>(case: &'a Case) -> impl Iterator<Item = u64> + 'a {
    let grid = Grid::of(case.kernel, case.problem);
    let room = u64::from(case.device.sm_count) * 2 / grid.tiles.max(1);
    let most = room.min(MOST_PARTS).min(grid.depth / LEAST_BLOCKS).max(1);
    let fits = move |parts: &u64| workspace::parts_bytes(*parts, case.problem) <= case.workspace;
    (1..=most).filter(move |parts| grid.part(*parts).is_some()).filter(fits)
}

fn config(parts: u64) -> Config {
    Config { split: parts as u32, ..Config::default() }
}

impl Family for Sm80Gemm {
    fn scratch_bytes(&self, problem: &Problem, config: &Config) -> u64 {
        workspace::parts_bytes(config.split.into(), problem)
    }

    fn shared_bytes(&self, kernel: &KernelDesc) -> u32 {
        shared_bytes(kernel)
    }

    fn configurations(&self, case: &Case) -> Vec<Config> {
        parts(case).map(config).collect()
    }

    /// The fastest configuration by the estimate.
    fn choose(&self, case: &Case) -> Config {
        let us = |parts: u64| self.us(case.kernel, parts, case.problem, case.device);
        let timed = parts(case).map(|parts| (parts, us(parts)));
        config(timed.min_by(|x, y| x.1.total_cmp(&y.1)).map_or(1, |(parts, _)| parts))
    }

    /// The number of rows decides which numbers of parts are considered.
    fn sums(&self, kernel: &KernelDesc, config: &Config) -> Option<SumOrder> {
        let order = match kernel.math {
            Math::Bf16x6 => SumOrder::Row { kernel: kernel.name, config: Config::default() },
            _ => SumOrder::Mma { block: kernel.tile[2] },
        };
        (config.split == 1).then_some(order)
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        self.us(case.kernel, config.split.max(1).into(), case.problem, case.device)
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost::of(self.epilogue_ns)
    }
}
