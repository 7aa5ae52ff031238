//! `csrc/sm90_gguf_grouped_gemm`: groups of rows times the weights of a GGUF file, a matrix B each, by WGMMA with weights from registers.
//!
//! There is nothing to choose beside the kernel: a block takes tile after tile, each in the least width that holds its rows.

use super::fitted::fitted;
use super::gguf::{self, SPAN};
use crate::config::Config;
use crate::cost::pipeline::stream_us;
use crate::cost::rows_of_group;
use crate::kernel::{Case, Family, KernelDesc, Rejection, SumOrder};
use crate::problem::Problem;
use crate::workspace::partition::Footprint;

/// Rows of A that a block computes at a time, at most: csrc/sm90_gguf_grouped_gemm has the same numbers, as the following ones. A multiprocessor has two blocks
/// of the first kernel, and one of the second.
const TILES: [usize; 2] = [64, 192];
const RESIDENTS: [f64; 2] = [2.0, 1.0];
/// Rows that tiles of the second kernel are multiplied with.
const WIDTHS: [usize; 3] = [64, 128, 192];
/// Groups with rows.
const MOST_WITH_ROWS: usize = 480;
/// Elements of D from row to row: bytes are a number of 32 bits.
const MOST_STRIDE: usize = (u32::MAX / 4) as usize;
/// Rows of the product whose activations the workspace holds at least; csrc/sm90_gguf_grouped_gemm/sm90_gguf_grouped_gemm.cu has the same number.
const LEAST_ROWS: usize = 1024;
/// Bytes of an activation in the workspace, and of the factor of a row.
const PREPARED: usize = 2;
const FACTOR: usize = 4;

fitted! {
    Sm90GgufGroupedGemm {
        /// A span of K of a tile, 256 numbers, in q4k: of the kernel with 64 rows, two tiles at a time, and of the other kernel by the width of the tile: 64, 128 and 192 rows of A.
        span_us: [f64; 4] = "us", 0.1 to 20.0;
        /// Its time by format, over this: q4_0, q4_1, q5_0, q5_1, q8_0, q2k, q3k, q4k, q5k, q6k, mxfp4, iq4_nl, iq4_xs.
        format: [f64; 13] = "", 0.5 to 2.0;
        /// The first loads and the last stores of a tile, as `span_us`.
        tile_us: [f64; 4] = "us", 0.0 to 20.0;
        /// The kernel that prepares the activations, beside their bytes, and the list of groups that each block makes.
        start_us: f64 = "us", 0.0 to 12.0;
        /// The share of the memory's rate.
        memory: f64 = "", 0.3 to 1.2;
        /// The same, of the kernel that prepares the activations.
        prepare: f64 = "", 0.1 to 1.2;
    }
}

/// Bytes of the prepared activations of so many rows of the product.
fn bytes(problem: &Problem, rows: usize) -> u64 {
    (rows as u64).saturating_mul((problem.k.next_multiple_of(64) * PREPARED + FACTOR) as u64)
}

impl Family for Sm90GgufGroupedGemm {
    fn supports(&self, kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        let Some(groups) = problem.groups else { return Ok(()) };
        let [rows, columns, _] = kernel.tile.map(|side| side as usize);
        let stride = usize::try_from(problem.d.row_stride).unwrap_or(usize::MAX);
        Rejection::check_counts([("elements from row to row of D", stride, MOST_STRIDE)])?;
        gguf::supports_groups(problem, &groups, [rows, columns], MOST_WITH_ROWS)
    }

    /// The activations of some rows, in one piece: the kernel itself goes through all rows, as many at a time as the workspace holds.
    fn footprint(&self, _: &KernelDesc, problem: &Problem) -> Option<Footprint> {
        let Problem { m, n, .. } = *problem;
        let row = bytes(problem, m.min(LEAST_ROWS)).div_ceil(m.max(1) as u64);
        Some(Footprint { row, column: 0, element: 0, lines: [1, 1], step: [m, n] })
    }

    fn sums(&self, kernel: &KernelDesc, config: &Config) -> Option<SumOrder> {
        Some(SumOrder::Row { kernel: kernel.name, config: *config })
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let Some(groups) = problem.groups else { return f64::INFINITY };
        let [tile_m, tile_n, _] = case.kernel.tile.map(|side| side as usize);
        let rows = rows_of_group(&groups, problem.m);
        let along_m = rows.div_ceil(tile_m);
        let which = TILES.iter().position(|tile| *tile >= tile_m).unwrap_or(TILES.len() - 1);
        let width = WIDTHS.iter().position(|width| *width >= rows.div_ceil(along_m)).unwrap_or(WIDTHS.len() - 1);
        let place = if which == 0 { 0 } else { 1 + width };
        let tiles = (groups.with_rows(problem.m) * along_m * problem.n.div_ceil(tile_n)) as f64;
        let busiest = (tiles / (RESIDENTS[which] * f64::from(device.sm_count))).max(1.0);
        // Groups differ in their rows: blocks do not end together.
        let rounds = if busiest < 4.0 { busiest.ceil() } else { busiest + 0.5 };
        let span = self.span_us[place] * self.format[gguf::place(problem.b.format)];
        let busy = rounds * (problem.k.div_ceil(SPAN) as f64 * span + self.tile_us[place]);
        let prepared = stream_us(bytes(problem, problem.m) as f64 * 2.0, self.prepare, device);
        let launches = 2.0 * bytes(problem, problem.m).div_ceil(case.workspace.max(1)) as f64 * device.model.launch_us;
        let memory = stream_us(problem.bytes(), self.memory, device);
        launches + self.start_us + prepared + busy.max(memory)
    }
}
