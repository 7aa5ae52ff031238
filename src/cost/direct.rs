//! What a launch of `sm90_bf16x6_direct.cu` is expected to take, which chooses the tiles, whether operands are exchanged and the parts
//! of K that should be through first.
//!
//! Beside what the kernel itself has, constants are fitted to 54 recordings on an H100 (2026-11-22): 16 to 2048 rows and batches of
//! attention, mean error 4 %, at most 19 %.

use super::{memory_us, roofline_us};
use crate::arch::DeviceInfo;
use crate::kernel::KernelDesc;
use crate::problem::{Layout, Problem};

/// The numbers of `choose` in sm90_bf16x6_direct.cu, microseconds: 32 of K of a tile, and what else it takes, where two warp groups
/// take turns along K, of the widths 16, 32 and 64; the same of tall tiles, and how much longer these take to start; what a cluster
/// of eight costs.
const STAGE_US: [f64; 3] = [0.223, 0.272, 0.441];
const TILE_US: [f64; 3] = [2.45, 2.78, 3.51];
const TALL_STAGE_US: f64 = 0.794;
const TALL_TILE_US: f64 = 1.13;
const TALL_START_US: f64 = 2.33;
const SPLIT_8_US: f64 = 0.38;
/// K below which tiles are tall, and large and small products have sums of their own; such tiles' numbers, by two recordings of
/// attention.
const MOST_APART: usize = 256;
const APART_STAGE_US: f64 = 0.955;
const APART_TILE_US: f64 = 0.39;

/// Launch, first loads and drain, and how much of that is in the numbers above; of the same for tall tiles.
const LAUNCH_US: (f64, f64) = (2.55, 2.45);
const TALL_LAUNCH_US: (f64, f64) = (2.35, TALL_START_US);
/// What memory takes of the time that a whole stream does, and how well it overlaps products: this norm of both times.
const MEMORY: f64 = 1.015;
const NORM: f64 = 4.3;

pub(super) fn us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    let (chosen_us, tall) = choose(kernel.layout == Layout::NT, problem, device.sm_count as usize);
    let (launch, counted) = if tall { TALL_LAUNCH_US } else { LAUNCH_US };
    let arithmetic = chosen_us - counted;
    let together = arithmetic.powf(NORM) + (MEMORY * memory_us(problem, device)).powf(NORM);
    (launch + together.powf(1.0 / NORM)).max(roofline_us(problem, device))
}

/// As the kernel chooses: the time by its numbers, and whether tiles are tall.
fn choose(nt: bool, problem: &Problem, sms: usize) -> (f64, bool) {
    let Problem { m, n, k, .. } = *problem;
    let stages = k.div_ceil(32);
    let rounds = |blocks: usize, at_a_time: usize| blocks.div_ceil(at_a_time.max(1)) as f64;
    let tiles = |p: usize, height: usize, q: usize, width: usize| {
        p.div_ceil(height) * q.div_ceil(width) * problem.batch_count()
    };
    let (stage_us, tile_us) =
        if k < MOST_APART { (APART_STAGE_US, APART_TILE_US) } else { (TALL_STAGE_US, TALL_TILE_US) };
    let tall = rounds(tiles(m, 128, n, 64), sms) * (stages as f64 * stage_us + tile_us) + TALL_START_US;
    if !nt || k < MOST_APART {
        return (tall, true);
    }
    let mut least = f64::INFINITY;
    for (p, q) in [(n, m), (m, n)] {
        for (i, width) in [16, 32, 64].into_iter().enumerate() {
            for parts in [1, 2, 4, 8].into_iter().filter(|parts| stages >= 2 * parts) {
                // Clusters of four and eight reach 120 and 112 of 132 multiprocessors.
                let at_a_time = match parts {
                    4 => sms * 10 / 11,
                    8 => sms * 28 / 33,
                    _ => sms,
                };
                let tile_us = stages.div_ceil(parts) as f64 * STAGE_US[i] + TILE_US[i];
                let meet = if parts == 8 { SPLIT_8_US } else { 0.0 };
                least = least.min(rounds(tiles(p, 64, q, width) * parts, at_a_time) * tile_us + meet);
            }
        }
    }
    (tall.min(least), tall <= least)
}
