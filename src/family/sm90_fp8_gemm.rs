//! `csrc/sm90_fp8_gemm`: rows of 8 bits by weights of 8 bits, TMA and WGMMA, in tiles of 128 rows. The columns of B are called the rows of W. A row of the
//! table has tiles of several widths.
//!
//! A configuration names the tile of D, which may be lower than the width that it runs with, so that tiles are even; the parts of K (`split`), where the
//! blocks of all tiles find room at once; and the stages of the ring, which are as many as fit.

use super::fitted::fitted;
use super::fp8::{self, Sums};
use crate::config::Config;
use crate::cost::pipeline::{l2_us, memory_us, ring_us, Activities};
use crate::cost::roofline_us;
use crate::kernel::{Case, ElementCost, Family, KernelDesc, Rejection, SumOrder};
use crate::problem::Problem;

/// The widest tile that two blocks share K of.
const MOST_SPLIT: u32 = 128;

fitted! {
    Sm90Fp8Gemm {
        /// Launch, the first loads and the drain, beside the card's overlapped launch.
        launch_us: f64 = "us", -1.7 to 5.0;
        /// The share of the tensor cores' rate at the full clock that the products of a tile reach: of whole sums, of sums in f32, and with factors of blocks.
        rate: [f64; 3] = "", 0.2 to 1.0;
        /// The same of tiles of 64 and of 128 columns, over the others'.
        narrow: [f64; 2] = "", 0.3 to 1.3;
        /// Latency of a stage from request to arrival, over the card's.
        latency: f64 = "", 0.1 to 3.0;
        /// A tile's time beside its products, for each of its columns.
        column_us: f64 = "us", 0.0 to 0.05;
        /// A second part of K: the path through distributed shared memory, for each column.
        split_us: f64 = "us", 0.0 to 0.05;
        /// The share of L2's rate to all multiprocessors.
        l2: f64 = "", 0.2 to 2.0;
        /// Memory time over the time of one pass.
        memory: f64 = "", 0.9 to 2.0;
        /// The norm by which activities overlap.
        norm: f64 = "", 1.0 to 16.0;
        /// Epilogues, for each element of D: an activation's instruction, a bias before an activation, `beta * C`, unaligned rows.
        epilogue_ns: [f64; 4] = "ns", 0.0 to 10.0;
    }
}

/// Columns of a tile of this width are a multiple of it: where blocks of factors begin in a tile is known to the kernel.
fn unit(width: u32, sums: Sums) -> u32 {
    match width {
        _ if sums != Sums::Blocks => 8,
        128 | 256 => 128,
        width if width > 128 => 32,
        _ => 16,
    }
}

/// Stages of a tile that fit in shared memory. `Fp8Gemm` of csrc/sm90_fp8_gemm/device.hpp has the same numbers.
fn stages(kernel: &KernelDesc, width: u32, sums: Sums) -> u32 {
    let [tile_m, _, depth] = kernel.tile;
    let stage = (tile_m + width) * depth;
    let of_patches = if width == 224 { 6144 } else { 4096 };
    let patches = 8 * if kernel.types.d.bytes(1) == 2 { of_patches } else { 512 };
    let (in_stage, in_tile) = match sums {
        Sums::Blocks => ((4 * (tile_m + (width + 126) / 128 + 1)).next_multiple_of(16), 0),
        _ => (0, 2 * 4 * (64 + width)),
    };
    ((227 * 1024 - patches - in_tile - 8) / (stage + in_stage + 16)).min(8)
}

/// The width of the narrowest tile that has room for so many columns.
fn width_of(kernel: &KernelDesc, columns: u32) -> u32 {
    kernel.widths.iter().copied().find(|width| columns <= *width).unwrap_or(kernel.tile[1])
}

/// Every way that the kernel can run the problem, except ways that would never be fast: whole tiles, and tiles that are even in one wave.
fn ways(case: &Case) -> Vec<Config> {
    let Case { kernel, problem, device, .. } = *case;
    let (sums, sms) = (fp8::sums(kernel, problem), device.sm_count as usize);
    let m_tiles = problem.m.div_ceil(kernel.tile[0] as usize);
    let mut ways: Vec<Config> = Vec::new();
    for (&width, split) in kernel.widths.iter().flat_map(|width| [(width, 1), (width, kernel.split)]) {
        let of_wave = sms / (m_tiles * split as usize);
        let least = if of_wave == 0 { usize::MAX } else { problem.n.div_ceil(of_wave) };
        let even = least.checked_next_multiple_of(unit(width, sums) as usize).and_then(|even| u32::try_from(even).ok());
        for columns in [Some(width), even].into_iter().flatten() {
            let blocks = m_tiles * problem.n.div_ceil(columns as usize) * split as usize;
            let may_split = width <= MOST_SPLIT && problem.k > kernel.tile[2] as usize && blocks <= sms;
            let config = Config {
                cluster: [1, 1],
                stages: stages(kernel, width, sums),
                ..Config::tile([kernel.tile[0], columns], split)
            };
            let has_width = columns <= width && width_of(kernel, columns) == width;
            if has_width && (split == 1 || may_split) && !ways.contains(&config) {
                ways.push(config);
            }
        }
    }
    ways
}

impl Family for Sm90Fp8Gemm {
    fn supports(&self, kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        fp8::supports(kernel, problem)
    }

    fn configurations(&self, case: &Case) -> Vec<Config> {
        ways(case)
    }

    fn choose(&self, case: &Case) -> Config {
        super::fastest(self, case, ways(case))
    }

    /// Sums, and the factors that multiply them, have the order of the first K to the last in every tile; no card has shown that tiles of other widths give the same bits.
    fn sums(&self, kernel: &KernelDesc, config: &Config) -> Option<SumOrder> {
        (config.split == 1).then_some(SumOrder::Row { kernel: kernel.name, config: *config })
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let Case { kernel, problem, device, .. } = *case;
        let sums = fp8::sums(kernel, problem);
        let ([rows, columns], parts) = (config.tile.map(|side| side.max(1)), config.split.max(1));
        let width = width_of(kernel, columns);
        let m_tiles = problem.m.div_ceil(rows as usize);
        let tiles = m_tiles * problem.n.div_ceil(columns as usize);
        let blocks = (tiles * parts as usize) as f64;
        let turns = (blocks / f64::from(device.sm_count)).ceil();
        let k = problem.k.next_multiple_of(kernel.tile[2] as usize) as f64 / f64::from(parts);
        // 4096 multiplications of 8 bits a cycle.
        let cycles = f64::from(rows * width) * k / 4096.0;
        let [narrowest, narrow] = self.narrow;
        let of_width = match width {
            ..=64 => narrowest,
            65..=128 => narrow,
            _ => 1.0,
        };
        let rate = self.rate[sums as usize] * of_width;
        let products = turns * cycles / (rate * device.model.clock_ghz * 1e3);
        let heights = problem.m as f64 / m_tiles as f64;
        let l2 = l2_us(blocks * (heights + f64::from(columns)) * k, self.l2, device);
        let memory = self.memory * memory_us(problem, device);
        let steps = k / f64::from(kernel.tile[2]);
        let ring = ring_us(turns * steps, f64::from(config.stages.max(1)), self.latency, device);
        let together = Activities { products, ring, l2, memory }.overlapped(self.norm);
        let split_us = if parts > 1 { self.split_us * f64::from(width) } else { 0.0 };
        let busy = together + split_us + turns * f64::from(columns) * self.column_us;
        device.model.overlapped_launch_us + self.launch_us + busy.max(roofline_us(problem, device))
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost::of(self.epilogue_ns)
    }
}
