//! Kernels of fused multiply-adds, by FMA units or tensor cores: how sm90_sgemm.cu and sm90_dgemm.cu cut a product up, and
//! what that takes.

use super::{distinct, memory_us, overlapped, roofline_us};
use crate::arch::DeviceInfo;
use crate::kernel::KernelDesc;
use crate::problem::{Layout, Operand, Problem};
use crate::workspace::DEFAULT_BYTES;

/// Beside what tiles take, fitted to recordings of drafts, like all that follows.
const LAUNCH_US: f64 = 2.5;
/// Transposing: a launch that overlaps nothing, and what it reads and writes, GB/s.
const TRANSPOSE_US: f64 = 2.0;
const TRANSPOSE_GBPS: f64 = 2700.0;
/// Multiply-adds at the full clock, of those that a library sustains: of FMA units, of tensor cores in f64.
const FMA_PEAK: f64 = 66.8 / 52.0;
const F64_PEAK: f64 = 66.8 / 64.0;
/// Of the latter, what tiles of 128 and of 64 rows keep busy, and the K that their epilogues take the time of; the launch, with
/// the first tile's loads. Fitted to eight products of what ships: at most 2.1 % off.
const F64_TILES: [(f64, f64); 2] = [(0.965, 68.0), (0.965, 44.0)];
const F64_LAUNCH_US: f64 = 5.0;
/// K that a tile begins and ends in the time of, and that splitting K takes on top.
const EDGE_K: usize = 16;
const SPLIT_K: usize = 16;
/// What K is split by.
const UNIT: usize = 32;

/// A tile as the launch sees it; `sm90_sgemm.cu` has the same numbers.
struct Tile {
    rows: usize,
    columns: usize,
    /// Of the FMA units, that the whole kernel keeps busy where K is long.
    speed: f64,
    residents: usize,
    splits: bool,
}

const fn tile(rows: usize, columns: usize, speed: f64) -> Tile {
    Tile { rows, columns, speed, residents: 1, splits: false }
}

const IN_COLUMNS: [Tile; 1] = [tile(128, 256, 0.82)];
const IN_LINES: [Tile; 4] =
    [tile(128, 256, 0.79), tile(256, 128, 0.78), tile(128, 192, 0.75), Tile { residents: 2, ..tile(256, 64, 0.69) }];
const IN_PARTS: [Tile; 2] =
    [Tile { splits: true, ..tile(128, 128, 0.68) }, Tile { splits: true, ..tile(128, 96, 0.65) }];

pub(super) fn sgemm_us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    // How much faster the tiles of a row are than their speeds say, all alike, in recordings of what ships.
    let (tiles, faster): (&[Tile], f64) = match kernel.tile {
        [_, 256, _] => (&IN_COLUMNS, 1.02),
        [256, ..] => (&IN_LINES, 1.035),
        _ => (&IN_PARTS, 1.08),
    };
    let Problem { m, n, .. } = *problem;
    let exchanges = match kernel.layout {
        Layout::TT => kernel.tile[1] != 256,
        Layout::NT => kernel.tile[1] != 256 && m < n,
        _ => false,
    };
    let (m, n) = if exchanges { (n, m) } else { (m, n) };
    let sms = device.sm_count as usize;
    // Multiply-adds of the busiest multiprocessor, as if it did them at full speed.
    let work = tiles.iter().flat_map(|tile| (0..if tile.splits { 4 } else { 1 }).map(move |log2| (tile, log2)));
    let work = work.filter(|(_, log2)| *log2 == 0 || problem.k >= 64 << log2).map(|(tile, log2)| {
        let tiles = m.div_ceil(tile.rows) * n.div_ceil(tile.columns) * problem.batch_count();
        let reached = if log2 > 1 { sms * 10 / 11 } else { sms };
        let turns = tiles.div_ceil(((reached * tile.residents) >> log2).max(1)) * tile.residents;
        let k = problem.k.div_ceil(UNIT << log2) * UNIT + EDGE_K + if log2 > 0 { SPLIT_K } else { 0 };
        (turns * tile.rows * tile.columns) as f64 * k as f64 / tile.speed
    });
    let peak = device.rates.f32_tflops * FMA_PEAK * 1e6 / sms as f64; // FLOP per microsecond and multiprocessor
    let arithmetic = 2.0 * work.fold(f64::INFINITY, f64::min) / (faster * peak);
    let us = LAUNCH_US + transpose_us(kernel, problem) + overlapped(&[arithmetic, memory_us(problem, device)]);
    us.max(roofline_us(problem, device))
}

pub(super) fn dgemm_us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    let [rows, columns, depth] = kernel.tile.map(|x| x as usize);
    let (speed, edge) = F64_TILES[usize::from(rows == 64)];
    let sms = device.sm_count as usize;
    let tiles = problem.m.div_ceil(rows) * problem.n.div_ceil(columns) * problem.batch_count();
    let k = problem.k.next_multiple_of(depth) as f64 + edge;
    let peak = device.rates.f64_tflops * F64_PEAK * 1e6 / sms as f64;
    let arithmetic = 2.0 * (tiles.div_ceil(sms) * rows * columns) as f64 * k / (peak * speed);
    let us = F64_LAUNCH_US + overlapped(&[arithmetic, memory_us(problem, device)]);
    us.max(roofline_us(problem, device))
}

/// Copies into the workspace. Where that does not hold both, a piece has half of it for each, and both are copied for
/// every piece of the other one.
fn transpose_us(kernel: &KernelDesc, problem: &Problem) -> f64 {
    let Problem { m, n, k, .. } = *problem;
    let bytes = |operand: &Operand, lines: usize| 4.0 * distinct(problem, operand) * (lines * k) as f64;
    let [of_a, of_b] = kernel.transposes(problem);
    let a = if of_a { bytes(&problem.a, m) } else { 0.0 };
    let b = if of_b { bytes(&problem.b, n) } else { 0.0 };
    if !of_a && !of_b {
        return 0.0;
    }
    let half = DEFAULT_BYTES as f64 / 2.0;
    let pieces = |bytes: f64| if a + b > 2.0 * half { (bytes / half).ceil().max(1.0) } else { 1.0 };
    TRANSPOSE_US + 2.0 * (a * pieces(b) + b * pieces(a)) / (TRANSPOSE_GBPS * 1e3)
}
