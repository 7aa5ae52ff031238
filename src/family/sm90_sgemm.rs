//! `csrc/sm90_sgemm`: f32 by fused multiply-adds, TMA. A row of the table has several tiles, and one of the tiles names
//! the row.
//!
//! The kernel's operands are P and Q. P is read in lines along K or in columns, Q in columns. P is A, or B where A and
//! B are swapped. Sides of a tile are the sides of P and Q in this file, and of A and B in a configuration.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::pipeline::{f32_per_us, l2_us};
use crate::cost::{distinct, memory_us, overlapped, roofline_us};
use crate::kernel::{Case, ElementCost, Family, KernelDesc, Limits, SumOrder, INT};
use crate::problem::{Layout, Operand, Problem};
use crate::workspace::partition::Footprint;
use crate::workspace::DEFAULT_BYTES;

/// Time of a tile's beginning and end, in steps of K, and the additional time of a split of K.
const EDGE_K: usize = 16;
const SPLIT_K: usize = 16;
/// Parts of K are multiples of this unit.
const UNIT: usize = 32;

/// A tile that the kernel is compiled for.
struct Tile {
    p: usize,
    q: usize,
    /// Utilisation of the FMA units by the whole kernel where K is long, in per cent.
    speed: usize,
    residents: usize,
    splits: bool,
}

const fn tile(p: usize, q: usize, speed: usize) -> Tile {
    Tile { p, q, speed, residents: 1, splits: false }
}

/// Rows of the table: both operands in columns; P in lines; K split.
const IN_COLUMNS: [Tile; 1] = [tile(128, 256, 82)];
const IN_LINES: [Tile; 4] =
    [tile(128, 256, 79), tile(256, 128, 78), tile(128, 192, 75), Tile { residents: 2, ..tile(256, 64, 69) }];
const IN_PARTS: [Tile; 2] = [Tile { splits: true, ..tile(128, 128, 68) }, Tile { splits: true, ..tile(128, 96, 65) }];

/// The tiles of a row, and the row's place in `faster`.
fn tiles(kernel: &KernelDesc) -> (&'static [Tile], usize) {
    match kernel.tile {
        [_, 256, _] => (&IN_COLUMNS, 0),
        [256, ..] => (&IN_LINES, 1),
        _ => (&IN_PARTS, 2),
    }
}

/// Whether B is P.
fn swaps(kernel: &KernelDesc, problem: &Problem) -> bool {
    match kernel.layout {
        Layout::TT => kernel.tile[1] != 256,
        Layout::NT => kernel.tile[1] != 256 && problem.m < problem.n,
        _ => false,
    }
}

/// Whether A and B are transposed into the workspace: every operand contiguous along K where the tile is 128 x 256,
/// otherwise one operand of nt.
fn transposes(kernel: &KernelDesc, problem: &Problem) -> [bool; 2] {
    match kernel.layout {
        layout if kernel.tile[1] == 256 => {
            [matches!(layout, Layout::NN | Layout::NT), matches!(layout, Layout::NT | Layout::TT)]
        }
        Layout::NT => [swaps(kernel, problem), !swaps(kernel, problem)],
        _ => [false, false],
    }
}

/// Predicted cycles of the busiest multiprocessor, in units common to all tiles.
fn cycles(case: &Case, tile: &Tile, split: usize) -> usize {
    let Problem { m, n, k, .. } = *case.problem;
    let (p, q) = if swaps(case.kernel, case.problem) { (n, m) } else { (m, n) };
    let sms = case.device.sm_count as usize;
    let tiles = p.div_ceil(tile.p) * q.div_ceil(tile.q) * case.problem.batch_count();
    // Clusters of eight count with the reach of clusters of four, although their reach is smaller.
    let reached = case.device.model.reached(sms, split.min(4));
    let turns = tiles.div_ceil((reached * tile.residents / split).max(1)) * tile.residents;
    let k = k.div_ceil(UNIT * split) * UNIT + EDGE_K + if split > 1 { SPLIT_K } else { 0 };
    (turns * tile.p * tile.q).saturating_mul(k) / tile.speed
}

/// Every tile and number of parts of K that the kernel can run the problem with; csrc/sm90_sgemm/sm90_sgemm.cu has the
/// same list.
fn legal<'a>(case: &Case<'a>) -> impl Iterator<Item = (&'static Tile, usize)> + 'a {
    let k = case.problem.k;
    let splits = move |tile: &Tile, split: usize| split == 1 || (tile.splits && k >= 2 * UNIT * split);
    let all = tiles(case.kernel).0.iter().flat_map(|tile| [1, 2, 4, 8].map(|split| (tile, split)));
    all.filter(move |(tile, split)| splits(tile, *split))
}

fn config(case: &Case, tile: &Tile, split: usize) -> Config {
    let swap_ab = swaps(case.kernel, case.problem);
    let sides = if swap_ab { [tile.q, tile.p] } else { [tile.p, tile.q] };
    Config { swap_ab, ..Config::tile(sides.map(|side| side as u32), split as u32) }
}

fitted! {
    Sm90Sgemm {
        /// The launch, beside the card's overlapped launch, on top of the tiles' time.
        launch_us: f64 = "us", -1.7 to 5.0;
        /// Transposing: a launch that overlaps no other kernel.
        transpose_us: f64 = "us", 0.0 to 8.0;
        /// Transposing: the share of L2's rate; the copy stays in L2.
        transpose: f64 = "", 0.05 to 1.0;
        /// The factor on the utilisations of the tiles, for both operands in columns, P in lines, and K split.
        faster: [f64; 3] = "", 0.7 to 1.4;
        /// Steps of K that a tile takes longer than by the numbers of the choice, for the same three.
        edge_k: [f64; 3] = "steps of K", -20.0 to 200.0;
        /// Epilogues, for each element of D: an activation's instruction, a bias before an activation, `beta * C`, unaligned rows.
        epilogue_ns: [f64; 4] = "ns", 0.0 to 10.0;
    }
}

impl Family for Sm90Sgemm {
    /// An operand that is transposed beforehand is read element by element.
    fn limits(&self, kernel: &KernelDesc, problem: &Problem) -> Limits {
        let [a, b] = transposes(kernel, problem);
        let by_tma = [!a, !b, false, false];
        let smallest = match kernel.tile {
            [_, 256, _] => [128, 256],
            [256, ..] => [64, 64],
            _ => [96, 96],
        };
        Limits { aligned: by_tma, tma: by_tma, ..kernel.limits.tiles_of_batch(smallest, INT / 4) }
    }

    /// A transposed copy, with K as the outer dimension, has lines in multiples of 32.
    fn footprint(&self, kernel: &KernelDesc, problem: &Problem) -> Option<Footprint> {
        let bytes = transposes(kernel, problem).map(|transposed| if transposed { 4 } else { 0 });
        let piece = [0, 1].map(|i| (kernel.tile[i] * kernel.cluster[i]) as usize);
        Footprint::new(problem, bytes, [32, 32], piece)
    }

    fn configurations(&self, case: &Case) -> Vec<Config> {
        legal(case).map(|(tile, split)| config(case, tile, split)).collect()
    }

    fn choose(&self, case: &Case) -> Config {
        self.chosen(case).0
    }

    /// The least estimate.
    fn chosen(&self, case: &Case) -> (Config, f64) {
        let configs = legal(case).map(|(tile, split)| config(case, tile, split));
        let timed = configs.map(|config| (config, self.estimate(case, &config)));
        timed.min_by(|x, y| x.1.total_cmp(&y.1)).unwrap_or((Config::default(), f64::INFINITY))
    }

    /// A block of a row for few tiles has K in two parts, whatever `split` is.
    fn sums(&self, kernel: &KernelDesc, config: &Config) -> Option<SumOrder> {
        match tiles(kernel).1 {
            2 => Some(SumOrder::Row { kernel: kernel.name, config: Config::tile([0, 0], config.split) }),
            _ => Some(SumOrder::Chain),
        }
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let (kernel, problem, device) = (case.kernel, case.problem, case.device);
        let [rows, columns] = config.tile.map(|side| side as usize);
        let (p, q) = if config.swap_ab { (columns, rows) } else { (rows, columns) };
        let (tiles, faster) = tiles(kernel);
        let Some(tile) = tiles.iter().find(|tile| (tile.p, tile.q) == (p, q)) else { return f64::INFINITY };
        // `speed` is in per cent.
        let split = config.split.max(1) as usize;
        let edge = self.edge_k[faster] / (problem.k.div_ceil(split) + EDGE_K) as f64;
        let work = 100.0 * cycles(case, tile, split) as f64 * (1.0 + edge);
        let sms = f64::from(device.sm_count);
        let peak = f32_per_us(device) / sms;
        let arithmetic = 2.0 * work / (self.faster[faster] * peak);
        let launch = device.model.overlapped_launch_us + self.launch_us;
        let us = launch + self.transpose_us(case) + overlapped(&[arithmetic, memory_us(problem, device)]);
        us.max(roofline_us(problem, device))
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost::of(self.epilogue_ns)
    }
}

impl Sm90Sgemm {
    /// Time of the copies into the workspace. Where the workspace does not hold both operands, a piece has half of the
    /// workspace for each operand, and each operand is copied again for every piece of the other operand.
    fn transpose_us(&self, case: &Case) -> f64 {
        let (kernel, problem) = (case.kernel, case.problem);
        let Problem { m, n, k, .. } = *problem;
        let bytes = |operand: &Operand, lines: usize| 4.0 * distinct(problem, operand) * (lines * k) as f64;
        let [of_a, of_b] = transposes(kernel, problem);
        let a = if of_a { bytes(&problem.a, m) } else { 0.0 };
        let b = if of_b { bytes(&problem.b, n) } else { 0.0 };
        if !of_a && !of_b {
            return 0.0;
        }
        let half = DEFAULT_BYTES as f64 / 2.0;
        let pieces = |bytes: f64| if a + b > 2.0 * half { (bytes / half).ceil().max(1.0) } else { 1.0 };
        self.transpose_us + l2_us(2.0 * (a * pieces(b) + b * pieces(a)), self.transpose, case.device)
    }
}
