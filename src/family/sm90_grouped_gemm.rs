//! `csrc/sm90_grouped_gemm`: groups of rows with a matrix B each, TMA and WGMMA.
//!
//! A configuration has the tile, the blocks that share a tile of B, and the stages of the ring.

use crate::config::Config;
use crate::cost::pipeline::{stream_us, Activities};
use crate::cost::{peak_tflops, roofline_us};
use crate::kernel::fitted::fitted;
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
/// A group that has rows has an entry in the list of units (csrc/common/unit_list.hpp).
const ENTRY_BYTES: usize = 16;
/// Tiles of a group along M from which blocks share B. Without sharing, the blocks of a group drift apart, and each reads B from memory.
const TILES_TO_SHARE: usize = 2;

/// Standard deviations above the expected rows of a group for which tiles are counted.
const SPREAD: f64 = 0.5;

fitted! {
    Sm90GroupedGemm {
        /// The launch, beside the card's overlapped launch.
        launch_us: f64 = "us", -1.7 to 5.0;
        /// The list of groups that each block makes.
        list_us: f64 = "us", 0.0 to 10.0;
        /// Throughput between two epilogues, relative to the sustained rate: tiles of 256 rows of B, and of 128.
        efficiency: [f64; 2] = "", 0.1 to 1.3;
        /// The epilogue of a tile, and the first loads: tiles of 256 rows of B, and of 128.
        tile_us: [f64; 2] = "us", 0.0 to 20.0;
        /// The share of the memory's rate: tiles of 256 rows of B, and of 128.
        memory: [f64; 2] = "", 0.3 to 1.2;
        /// The norm by which activities overlap.
        norm: f64 = "", 1.0 to 16.0;
    }
}

/// The tiles that groups of the expected number of rows have.
struct Tiles {
    /// Along M, of a group.
    along_m: usize,
    /// Rows of A in a tile, rounded up to the width of an instruction.
    width: usize,
    all: usize,
}

impl Tiles {
    fn of(kernel: &KernelDesc, problem: &Problem, groups: &Groups) -> Self {
        let [most, columns] = [0, 1].map(|i| kernel.tile[i] as usize);
        let expected = groups.expected_rows(problem.m);
        // Tokens choose their experts by chance: the rows of a group vary by the square root.
        let rows = (expected + SPREAD * expected.sqrt()).ceil().max(1.0) as usize;
        let along_m = rows.div_ceil(most);
        let height = rows.div_ceil(along_m).next_multiple_of(8);
        let width = kernel.widths.iter().map(|width| *width as usize).find(|width| *width >= height).unwrap_or(most);
        let all = groups.with_rows(problem.m) * along_m * problem.n.div_ceil(columns);
        Self { along_m, width, all }
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
        let counts = [
            ("groups with rows", entries, free / ENTRY_BYTES - 1),
            ("groups", groups.count, through.min(MOST_GROUPS)),
            ("tiles", tiles, INT / 4),
        ];
        match counts.into_iter().find(|(_, have, most)| have > most) {
            Some((what, have, most)) => Err(Rejection::TooMany { what, have, most }),
            None => Ok(()),
        }
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
        let small = usize::from(case.kernel.tile[1] == 128);
        let rate = peak_tflops(problem.a.format, case.kernel.math, device) * 1e6 / f64::from(device.sm_count);
        let columns = f64::from(case.kernel.tile[1]);
        // A narrow instruction reads as much of B from shared memory as a wide one.
        let width = tiles.width.max(64) as f64;
        let tile = 2.0 * columns * width * problem.k as f64 / (rate * self.efficiency[small]) + self.tile_us[small];
        let busiest = (tiles.all as f64 / f64::from(device.sm_count / config.cluster[0] * config.cluster[0])).max(1.0);
        // Groups differ in their rows: blocks do not end together.
        let rounds = if busiest < 4.0 { busiest.ceil() } else { busiest + 0.5 };
        let activities = Activities {
            products: rounds * tile,
            memory: stream_us(problem.bytes(), self.memory[small], device),
            ..Activities::default()
        };
        let start = device.model.overlapped_launch_us + self.launch_us + self.list_us;
        (start + activities.overlapped(self.norm)).max(roofline_us(problem, device))
    }
}
