//! `csrc/sm90_narrow_grouped_gemm`: groups of rows times narrow weights, a matrix B each, by WGMMA with weights from registers.
//!
//! There is nothing to choose beside the kernel: a block takes tile after tile, each in the least width that holds its rows.

use super::fitted::fitted;
use super::narrow::{fault, BATCH, FOLDED, OF_ROWS};
use crate::config::Config;
use crate::cost::pipeline::stream_us;
use crate::cost::rows_of_group;
use crate::kernel::{Case, Family, KernelDesc, Rejection, SumOrder, INT};
use crate::problem::{Format, Problem};
use crate::workspace::partition::Footprint;

/// Groups, and groups with rows; csrc/sm90_narrow_grouped_gemm/shape.hpp has these numbers.
const MOST_GROUPS: usize = 4096;
const MOST_WITH_ROWS: usize = 480;
/// Widths that tiles are multiplied in: those of a kernel are 32 alone, or 64 and more up to its tile.
const WIDTHS: [usize; 4] = [32, 64, 128, 192];
/// Numbers of a row of A in bf16 are rounded up to so many, of two bytes each.
const PIECE: usize = 8;

fitted! {
    /// Lists of four numbers are of tiles multiplied in 32, 64, 128 and 192 columns.
    Sm90NarrowGroupedGemm {
        /// A batch of 64 numbers of K of a block with codes of 4 bits and factors of 128 numbers.
        batch_us: [f64; 4] = "us", 0.01 to 2.0;
        /// The time by kernel, over this: u4 and u8 and f8e4m3 in groups of 128; f8e4m3 and i8 with a factor for each row; u4 in groups of 32; MXFP4.
        kind: [f64; 7] = "", 0.3 to 3.0;
        /// The first products and the last stores of a tile.
        tile_us: [f64; 4] = "us", 0.0 to 20.0;
        /// The list of groups that each block makes, the first loads and the last stores.
        start_us: f64 = "us", 0.0 to 20.0;
        /// The share of the memory's rate.
        memory: f64 = "", 0.3 to 1.2;
        /// The same, of the kernel that rounds A.
        round: f64 = "", 0.1 to 1.2;
    }
}

/// The kernel's place in `kind`.
fn kind(kernel: &KernelDesc) -> usize {
    match (kernel.types.b, kernel.tile[2]) {
        (Format::U4, FOLDED) => 5,
        (Format::F4E2M1, _) => 6,
        (Format::U4, _) => 0,
        (Format::U8, _) => 1,
        (Format::I8, _) => 4,
        (_, OF_ROWS) => 3,
        _ => 2,
    }
}

/// Bytes of A in bf16, where A comes in f32.
fn bytes_of_rounded(problem: &Problem) -> u64 {
    let rows = match problem.groups {
        Some(groups) if problem.a.format == Format::F32 => groups.rows_of_a(problem.m),
        _ => 0,
    };
    (rows as u64).saturating_mul(problem.k.next_multiple_of(PIECE) as u64 * 2)
}

impl Family for Sm90NarrowGroupedGemm {
    fn supports(&self, kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        let Some(groups) = problem.groups else { return Ok(()) };
        if let Some(what) = problem.b.scale.and_then(|scale| fault(kernel, scale.format, scale.granularity[0])) {
            return Err(Rejection::Factors { operand: "B", what });
        }
        let [most, columns] = [0, 1].map(|i| kernel.tile[i] as usize);
        let entries = groups.count.min(problem.m);
        let tiles = (problem.m.div_ceil(most) + entries).saturating_mul(problem.n.div_ceil(columns));
        Rejection::check_counts([
            ("groups", groups.count, MOST_GROUPS),
            ("groups with rows", entries, MOST_WITH_ROWS),
            ("tiles", tiles, INT / 4),
        ])
    }

    /// All of A in bf16, in one piece.
    fn footprint(&self, _: &KernelDesc, problem: &Problem) -> Option<Footprint> {
        let Problem { m, n, .. } = *problem;
        let row = bytes_of_rounded(problem).div_ceil(m.max(1) as u64);
        (row > 0).then_some(Footprint { row, column: 0, element: 0, lines: [1, 1], step: [m, n] })
    }

    fn sums(&self, kernel: &KernelDesc, config: &Config) -> Option<SumOrder> {
        Some(SumOrder::Row { kernel: kernel.name, config: *config })
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let (kernel, problem, device) = (case.kernel, case.problem, case.device);
        let Some(groups) = problem.groups else { return f64::INFINITY };
        let [most, columns] = [0, 1].map(|i| kernel.tile[i] as usize);
        let rows = rows_of_group(&groups, problem.m);
        let along_m = rows.div_ceil(most);
        let least = if most == WIDTHS[0] { 0 } else { 1 };
        let fits = |width: &usize| *width >= rows.div_ceil(along_m);
        let width = WIDTHS[least..].iter().position(fits).map_or(WIDTHS.len() - 1, |place| least + place);
        let tiles = (groups.with_rows(problem.m) * along_m) as f64 * problem.n.div_ceil(columns) as f64;
        let busiest = (tiles / f64::from(device.sm_count)).max(1.0);
        // Groups differ in their rows: blocks do not end together.
        let rounds = if busiest < 4.0 { busiest.ceil() } else { busiest + 0.5 };
        let batch = self.batch_us[width] * self.kind[kind(kernel)];
        let busy = rounds * (problem.k.div_ceil(BATCH) as f64 * batch + self.tile_us[width]);
        let memory = stream_us(problem.bytes(), self.memory, device);
        let rounding = match bytes_of_rounded(problem) {
            0 => 0.0,
            // Four bytes of a number come, and two go.
            bytes => device.model.launch_us + stream_us(bytes as f64 * 3.0, self.round, device),
        };
        device.model.launch_us + self.start_us + rounding + busy.max(memory)
    }
}
