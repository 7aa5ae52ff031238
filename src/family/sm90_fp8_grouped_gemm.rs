//! `csrc/sm90_fp8_grouped_gemm`: groups of rows of fp8 times fp8, a matrix B each, TMA and WGMMA. The columns of B are called the rows of W.
//!
//! There is nothing to choose beside the kernel: a block takes tile after tile, each in the least width that holds its rows.

use super::fitted::fitted;
use super::fp8::{self, Sums};
use crate::config::Config;
use crate::cost::pipeline::{l2_us, stream_us, Activities};
use crate::kernel::{Case, Family, KernelDesc, Rejection, SumOrder, INT};
use crate::problem::{Groups, Problem};

/// Groups, groups with rows, and bytes of A; csrc/sm90_fp8_grouped_gemm/shape.hpp has these numbers.
const MOST_GROUPS: usize = 4096;
const MOST_WITH_ROWS: usize = 512;
const MOST_BYTES_OF_A: usize = 1 << 32;
/// Rows of groups for which tiles are counted, each as likely as the others: the expected rows, and these standard deviations more. Tokens choose
/// their experts by chance, so that the rows of a group vary by the square root.
const DEVIATIONS: [f64; 4] = [-1.15, -0.32, 0.32, 1.15];

fitted! {
    Sm90Fp8GroupedGemm {
        /// 128 rows of W from shared memory, over 128 numbers of K.
        stage_us: f64 = "us", 0.01 to 2.0;
        /// The same times a row of A.
        column_us: f64 = "us", 0.0001 to 0.05;
        /// The same with factors of blocks, over that without.
        blocks: f64 = "", 0.8 to 2.0;
        /// The first products of a tile.
        tile_us: f64 = "us", 0.0 to 20.0;
        /// The last stores of a tile, for each of its rows of A and four bytes of a number of D.
        store_us: f64 = "us", 0.0 to 0.1;
        /// The list of groups that each block makes, the first loads and the last stores.
        start_us: f64 = "us", 0.0 to 20.0;
        /// The share of L2's rate to all multiprocessors.
        l2: f64 = "", 0.2 to 2.0;
        /// The share of the memory's rate.
        memory: f64 = "", 0.3 to 1.2;
        /// The norm by which activities overlap.
        norm: f64 = "", 1.0 to 16.0;
    }
}

/// The tiles of groups of the expected number of rows.
struct Tiles {
    all: f64,
    /// Rows of A of a tile, and these rounded up to widths of instructions; means.
    height: f64,
    width: f64,
}

impl Tiles {
    fn of(kernel: &KernelDesc, problem: &Problem, groups: &Groups) -> Self {
        let [most, columns] = [0, 1].map(|i| kernel.tile[i] as usize);
        let expected = groups.expected_rows(problem.m);
        let [mut tiles, mut height, mut width] = [0.0; 3];
        for deviations in DEVIATIONS {
            let rows = (expected + deviations * expected.sqrt()).ceil().max(1.0) as usize;
            let count = rows.div_ceil(most);
            let own = rows.div_ceil(count).next_multiple_of(8);
            let widest = kernel.widths.iter().map(|width| *width as usize).find(|width| *width >= own).unwrap_or(most);
            tiles += count as f64;
            height += rows as f64;
            width += (count * widest) as f64;
        }
        let of_groups = groups.with_rows(problem.m) * problem.n.div_ceil(columns);
        let share = 1.0 / DEVIATIONS.len() as f64;
        Self { all: of_groups as f64 * tiles * share, height: height / tiles, width: width / tiles }
    }
}

impl Family for Sm90Fp8GroupedGemm {
    fn supports(&self, kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        let Some(groups) = problem.groups else { return Ok(()) };
        fp8::supports(kernel, problem)?;
        let [most, columns] = [0, 1].map(|i| kernel.tile[i] as usize);
        let (entries, rows_of_a) = (groups.count.min(problem.m), groups.rows_of_a(problem.m));
        let tiles = (problem.m.div_ceil(most) + entries).saturating_mul(problem.n.div_ceil(columns));
        let stride = if rows_of_a > 1 { usize::try_from(problem.a.row_stride).unwrap_or(usize::MAX) } else { 0 };
        Rejection::check_counts([
            ("groups", groups.count, MOST_GROUPS),
            ("groups with rows", entries, MOST_WITH_ROWS),
            ("tiles", tiles, INT / 4),
            ("bytes of A", rows_of_a.saturating_mul(stride), MOST_BYTES_OF_A),
        ])
    }

    /// Sums, and the factors that multiply them, have the order of the first K to the last in every tile.
    fn sums(&self, kernel: &KernelDesc, config: &Config) -> Option<SumOrder> {
        Some(SumOrder::Row { kernel: kernel.name, config: *config })
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let (kernel, problem, device) = (case.kernel, case.problem, case.device);
        let Some(groups) = problem.groups else { return f64::INFINITY };
        let tiles = Tiles::of(kernel, problem, &groups);
        let [_, columns, depth] = kernel.tile.map(f64::from);
        let stages = problem.k.div_ceil(kernel.tile[2] as usize) as f64;
        let factors = if fp8::sums(kernel, problem) == Sums::Blocks { self.blocks } else { 1.0 };
        let products = stages * factors * (self.stage_us + self.column_us * tiles.width);
        let stores = self.store_us * tiles.height * problem.d.format.bits() / 32.0;
        let blocks = f64::from(device.sm_count).max(1.0);
        let busiest = (tiles.all / blocks).max(1.0);
        // Groups differ in their rows: blocks do not end together.
        let rounds = if busiest < 4.0 { busiest.ceil() } else { busiest + 0.5 };
        let of_stage = (columns + tiles.height) * depth;
        let activities = Activities {
            products: rounds * (products + stores + self.tile_us),
            l2: l2_us(tiles.all * stages * of_stage, self.l2, device),
            memory: stream_us(problem.bytes(), self.memory, device),
            ..Activities::default()
        };
        device.model.overlapped_launch_us + self.start_us + activities.overlapped(self.norm)
    }
}
