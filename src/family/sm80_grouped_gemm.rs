//! `csrc/sm80_grouped_gemm`: groups of rows with a matrix B each, `mma.sync`.
//!
//! There is nothing to choose beside the kernel: a block takes tile after tile, whatever their heights.

use super::fitted::fitted;
use super::ENTRY_BYTES;
use crate::config::Config;
use crate::cost::pipeline::{l2_us, stream_us, Activities};
use crate::cost::{peak_tflops, roofline_us, rows_of_group};
use crate::kernel::{Case, Family, KernelDesc, Rejection, SumOrder, INT};
use crate::problem::{Groups, Problem};

/// Shared memory of a block, on every card from Ampere on; csrc/sm80_grouped_gemm/shape.hpp has the same number.
const SHARED_BYTES: usize = 99 * 1024;
/// Rows of a fragment of `mma.sync`.
const FRAGMENT: usize = 16;

fitted! {
    /// Lists of three numbers are of tiles of 128, 64 and 16 rows.
    Sm80GroupedGemm {
        /// The list of groups that each block makes.
        list_us: f64 = "us", 0.0 to 10.0;
        /// Throughput between two epilogues, relative to the sustained rate.
        efficiency: [f64; 3] = "", 0.05 to 1.3;
        /// The rate of `mma.sync` over that of the newer instructions: on Hopper, and on data-centre Blackwell.
        newer: [f64; 2] = "", 0.1 to 1.0;
        /// The epilogue of a tile.
        tile_us: [f64; 3] = "us", 0.0 to 20.0;
        /// The share of what L2 gives.
        l2: f64 = "", 0.1 to 1.2;
        /// The share of the memory's rate.
        memory: [f64; 3] = "", 0.3 to 1.2;
        /// The norm by which activities overlap.
        norm: f64 = "", 1.0 to 16.0;
    }
}

/// The tiles that groups of the expected number of rows have.
struct Tiles {
    /// Rows of A in a tile, on average, where each height is rounded up to whole steps.
    rows: f64,
    all: f64,
}

/// Rows by which the heights of tiles differ: the warps of a tile of 128 rows lie two by two, those of other tiles along N.
fn step(kernel: &KernelDesc) -> usize {
    FRAGMENT * if kernel.tile[0] > 64 { 2 } else { 1 }
}

impl Tiles {
    fn of(kernel: &KernelDesc, problem: &Problem, groups: &Groups) -> Self {
        let [most, columns] = [0, 1].map(|i| kernel.tile[i] as usize);
        let rows = rows_of_group(groups, problem.m);
        let along_m = rows.div_ceil(most);
        let all = (groups.with_rows(problem.m) * along_m).saturating_mul(problem.n.div_ceil(columns));
        Self { rows: rows.next_multiple_of(step(kernel)) as f64 / along_m as f64, all: all as f64 }
    }
}

fn ring_bytes(kernel: &KernelDesc) -> usize {
    let [most, columns, depth] = kernel.tile.map(|x| x as usize);
    kernel.stages as usize * (most + columns) * depth * 2
}

/// The kernel's place in lists of three fitted numbers.
fn place(kernel: &KernelDesc) -> usize {
    match kernel.tile[0] {
        128.. => 0,
        64.. => 1,
        _ => 2,
    }
}

impl Family for Sm80GroupedGemm {
    fn supports(&self, kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        let Some(groups) = problem.groups else { return Ok(()) };
        let [most, columns] = [0, 1].map(|i| kernel.tile[i] as usize);
        let (entries, ring) = (groups.count.min(problem.m), ring_bytes(kernel));
        let tiles = (problem.m.div_ceil(most) + entries).saturating_mul(problem.n.div_ceil(columns));
        Rejection::check_counts([
            ("groups with rows", entries, (SHARED_BYTES - ring) / ENTRY_BYTES - 1),
            // The first row of each group passes through the ring.
            ("groups", groups.count, ring / 4 - 1),
            ("tiles", tiles, INT / 4),
        ])
    }

    fn shared_bytes(&self, _: &KernelDesc) -> u32 {
        SHARED_BYTES as u32
    }

    fn sums(&self, _: &KernelDesc, _: &Config) -> Option<SumOrder> {
        Some(SumOrder::MmaInOrder)
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let (kernel, problem, device) = (case.kernel, case.problem, case.device);
        let Some(groups) = problem.groups else { return f64::INFINITY };
        let (tiles, place) = (Tiles::of(kernel, problem, &groups), place(kernel));
        let newer = match device.capability / 10 {
            9 => self.newer[0],
            10 | 11 => self.newer[1],
            _ => 1.0,
        };
        let sms = f64::from(device.sm_count);
        let rate = peak_tflops(problem.a.format, kernel.math, device) * 1e6 / sms * newer * self.efficiency[place];
        let [most, columns] = [0, 1].map(|i| f64::from(kernel.tile[i]));
        let k = problem.k as f64;
        // With few rows, reads of B from shared memory take longer than products.
        let tile = 2.0 * tiles.rows.max(most / 2.0) * columns * k / rate + self.tile_us[place];
        let busiest = (tiles.all / sms).max(1.0);
        // Groups differ in their rows: blocks do not end together.
        let rounds = if busiest < 4.0 { busiest.ceil() } else { busiest + 0.5 };
        let loaded = tiles.all * (tiles.rows + columns) * k * 2.0;
        let activities = Activities {
            products: rounds * tile,
            l2: l2_us(loaded, self.l2, device),
            memory: stream_us(problem.bytes(), self.memory[place], device),
            ..Activities::default()
        };
        let start = device.model.launch_us + self.list_us;
        (start + activities.overlapped(self.norm)).max(roofline_us(problem, device))
    }
}
