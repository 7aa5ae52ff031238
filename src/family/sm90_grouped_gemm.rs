//! `csrc/sm90_grouped_gemm`: groups of rows with a matrix B each, TMA and WGMMA.
//!
//! A configuration has the tile, the blocks that share a tile of B, and the stages of the ring.

use super::fitted::fitted;
use super::ENTRY_BYTES;
use crate::config::Config;
use crate::cost::pipeline::{stream_us, Activities};
use crate::cost::{peak_tflops, roofline_us};
use crate::kernel::{Case, Family, KernelDesc, Rejection, SumOrder, INT};
use crate::problem::{Groups, Problem};

/// csrc/sm90_grouped_gemm/shape.hpp has the same numbers.
const SHARED_BYTES: usize = 227 * 1024;
const MOST_STAGES: usize = 16;
/// A coordinate of TMA, as csrc/sm90_grouped_gemm/sm90_grouped_gemm.cu checks.
const MOST_GROUPS: usize = 65_535;
const BARRIERS_BYTES: usize = 16 * (MOST_STAGES + 2);
/// A row of a tile has a place in D and a factor, for two tiles.
const PLACE_BYTES: usize = 2 * 2 * 4;
/// Tiles of a group along M from which blocks share B. Without sharing, the blocks of a group drift apart, and each reads B from memory.
const TILES_TO_SHARE: usize = 2;

/// Rows of A in a tile of 256 rows of B whose block has two warp groups that load; with more rows the block has one.
const MOST_WITH_TWO_LOADERS: u32 = 176;

/// Rows of groups for which tiles are counted, each as likely as the others: the expected rows, and these standard deviations more. Tokens choose
/// their experts by chance, so that the rows of a group vary by the square root.
const DEVIATIONS: [f64; 4] = [-1.15, -0.32, 0.32, 1.15];

fitted! {
    Sm90GroupedGemm {
        /// The launch, beside the card's overlapped launch.
        launch_us: f64 = "us", -1.7 to 5.0;
        /// The list of groups that each block makes.
        list_us: f64 = "us", 0.0 to 10.0;
        /// Throughput between two epilogues, relative to the sustained rate: tiles of 256 rows of B, of 128 rows, and of 256 rows of B and more
        /// than 176 rows of A.
        efficiency: [f64; 3] = "", 0.1 to 1.3;
        /// The epilogue of a tile, and the first loads: the same tiles.
        tile_us: [f64; 3] = "us", 0.0 to 20.0;
        /// The share of the memory's rate: the same tiles.
        memory: [f64; 3] = "", 0.3 to 1.2;
        /// The norm by which activities overlap.
        norm: f64 = "", 1.0 to 16.0;
    }
}

/// The place of a kernel's tile in the fitted numbers.
fn place(kernel: &KernelDesc) -> usize {
    match kernel.tile {
        [_, 128, _] => 1,
        [most, ..] if most > MOST_WITH_TWO_LOADERS => 2,
        _ => 0,
    }
}

/// The tiles that groups of the expected number of rows have.
struct Tiles {
    /// Along M, of a group of the expected rows.
    along_m: usize,
    /// Rows of A in the tiles of a group, rounded up to the widths of instructions; the mean of the groups.
    rows: f64,
    all: f64,
}

impl Tiles {
    fn of(kernel: &KernelDesc, problem: &Problem, groups: &Groups) -> Self {
        let [most, columns] = [0, 1].map(|i| kernel.tile[i] as usize);
        let expected = groups.expected_rows(problem.m);
        let along_m = |rows: f64| (rows.ceil().max(1.0) as usize).div_ceil(most);
        let (mut tiles, mut width) = (0.0, 0.0);
        for deviations in DEVIATIONS {
            let rows = (expected + deviations * expected.sqrt()).ceil().max(1.0);
            let count = along_m(rows);
            let height = (rows as usize).div_ceil(count).next_multiple_of(8);
            // A narrow instruction reads as much of B from shared memory as a wide one.
            let widest = kernel
                .widths
                .iter()
                .map(|width| *width as usize)
                .find(|width| *width >= height)
                .unwrap_or(most)
                .max(64);
            tiles += count as f64;
            width += (count * widest) as f64;
        }
        let groups = groups.with_rows(problem.m) * problem.n.div_ceil(columns);
        let share = 1.0 / DEVIATIONS.len() as f64;
        Self { along_m: along_m(expected), rows: width / tiles, all: groups as f64 * tiles * share }
    }
}

/// The stages that shared memory holds beside the list of units.
fn stages(kernel: &KernelDesc, problem: &Problem, groups: &Groups) -> usize {
    let [most, columns] = [0, 1].map(|i| kernel.tile[i] as usize);
    let list = (groups.count.min(problem.m) + 1) * ENTRY_BYTES;
    let fixed = BARRIERS_BYTES + PLACE_BYTES * most + list;
    (SHARED_BYTES.saturating_sub(fixed) / ((most + columns) * 128)).min(MOST_STAGES)
}

impl Family for Sm90GroupedGemm {
    fn supports(&self, kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        let Some(groups) = problem.groups else { return Ok(()) };
        let [most, columns] = [0, 1].map(|i| kernel.tile[i] as usize);
        let (entries, stage) = (groups.count.min(problem.m), (most + columns) * 128);
        // While rows of D leave a stage for each warp group of 128 columns, one stage has operands.
        let least_stages = columns / 128 + 1;
        let free = SHARED_BYTES - BARRIERS_BYTES - PLACE_BYTES * most - least_stages * stage;
        // The first row of each group passes through the ring.
        let through = (stages(kernel, problem, &groups) * stage / 4).saturating_sub(1);
        let tiles = (problem.m.div_ceil(most) + entries).saturating_mul(problem.n.div_ceil(columns));
        Rejection::check_counts([
            ("groups with rows", entries, free / ENTRY_BYTES - 1),
            ("groups", groups.count, through.min(MOST_GROUPS)),
            ("tiles", tiles, INT / 4),
        ])
    }

    fn configurations(&self, case: &Case) -> Vec<Config> {
        let (kernel, problem) = (case.kernel, case.problem);
        let Some(groups) = problem.groups else { return Vec::new() };
        let [most, columns, _] = kernel.tile;
        let stages = stages(kernel, problem, &groups) as u32;
        let of = |share: u32| Config {
            tile: [most, columns],
            cluster: [share, 1],
            split: 1,
            stages,
            swap_ab: true,
            ..Config::default()
        };
        (1..=kernel.cluster[0].min(case.device.sm_count)).map(of).collect()
    }

    fn choose(&self, case: &Case) -> Config {
        let shares = case
            .problem
            .groups
            .is_some_and(|groups| Tiles::of(case.kernel, case.problem, &groups).along_m >= TILES_TO_SHARE);
        let configurations = self.configurations(case);
        let shared = configurations.get(usize::from(shares)).or(configurations.first());
        shared.copied().unwrap_or_default()
    }

    fn sums(&self, _: &KernelDesc, _: &Config) -> Option<SumOrder> {
        Some(SumOrder::Wgmma)
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let Some(groups) = problem.groups else { return f64::INFINITY };
        let tiles = Tiles::of(case.kernel, problem, &groups);
        let place = place(case.kernel);
        let rate = peak_tflops(problem.a.format, case.kernel.math, device) * 1e6 / f64::from(device.sm_count);
        let columns = f64::from(case.kernel.tile[1]);
        let tile =
            2.0 * columns * tiles.rows * problem.k as f64 / (rate * self.efficiency[place]) + self.tile_us[place];
        let busiest = (tiles.all / f64::from(device.sm_count / config.cluster[0] * config.cluster[0])).max(1.0);
        // Groups differ in their rows: blocks do not end together.
        let rounds = if busiest < 4.0 { busiest.ceil() } else { busiest + 0.5 };
        let activities = Activities {
            products: rounds * tile,
            memory: stream_us(problem.bytes(), self.memory[place], device),
            ..Activities::default()
        };
        let start = device.model.overlapped_launch_us + self.launch_us + self.list_us;
        (start + activities.overlapped(self.norm)).max(roofline_us(problem, device))
    }
}
