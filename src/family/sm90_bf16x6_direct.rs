//! `csrc/sm90_bf16x6_direct`: f32 by six products of bf16 parts for few rows and a shallow K, with no operand prepared
//! beforehand.
//!
//! The constants outside `us_of` are fitted to 54 recordings on an H100 (2026-11-22): 16 to 2048 rows and batches of
//! attention, mean error 4 %, at most 19 %.

use crate::config::Config;
use crate::cost::{memory_us, roofline_us};
use crate::kernel::{Case, ElementCost, Family, KernelDesc};
use crate::problem::{Layout, Problem};

/// Microseconds, fitted to 525 recordings on an H100 (regret of the choice 0.14 %). `STAGE_US` and `TILE_US`: 32 steps
/// of K of a tile, and the rest of the tile's time, where two warp groups alternate along K, for widths of 16, 32
/// and 64. `TALL_...`: the same of tall tiles, and their additional start time. `SPLIT_8_US`: the cost of a cluster of
/// eight.
const STAGE_US: [f64; 3] = [0.223, 0.272, 0.441];
const TILE_US: [f64; 3] = [2.45, 2.78, 3.51];
const TALL_STAGE_US: f64 = 0.794;
const TALL_TILE_US: f64 = 1.13;
const TALL_START_US: f64 = 2.33;
const SPLIT_8_US: f64 = 0.38;
/// The K below which tiles are tall, and large and small products have separate sums; the stage and tile times of such
/// tiles, from two recordings of attention.
const MOST_APART: usize = 256;
const APART_STAGE_US: f64 = 0.955;
const APART_TILE_US: f64 = 0.39;

/// Launch, first loads and drain, and the share of this time that the numbers above contain; then the same for tall
/// tiles.
const LAUNCH_US: (f64, f64) = (2.55, 2.45);
const TALL_LAUNCH_US: (f64, f64) = (2.35, TALL_START_US);
/// Memory time relative to a plain stream of the bytes, and the norm that overlaps memory and products.
const MEMORY: f64 = 1.015;
const NORM: f64 = 4.3;

const WIDTHS: [u32; 3] = [16, 32, 64];
const TALL: Config = Config { swap_ab: false, ..Config::tile([128, 64], 1) };

pub(crate) struct Sm90Bf16x6Direct;

fn rounds(blocks: usize, at_a_time: usize) -> f64 {
    blocks.div_ceil(at_a_time.max(1)) as f64
}

/// Clusters of four and eight reach 120 and 112 of an H100's 132 multiprocessors.
fn reached(split: u32, sms: usize) -> usize {
    match split {
        4 => sms * 10 / 11,
        8 => sms * 28 / 33,
        _ => sms,
    }
}

fn is_tall(config: &Config) -> bool {
    config.tile[0] == 128
}

/// The time by the numbers of the choice. `apart`: large and small products have separate sums.
fn us_of(case: &Case, config: &Config, apart: bool) -> f64 {
    let Problem { m, n, k, .. } = *case.problem;
    let sms = case.device.sm_count as usize;
    let tiles = m.div_ceil(config.tile[0] as usize) * n.div_ceil(config.tile[1] as usize) * case.problem.batch_count();
    let stages = k.div_ceil(32);
    if is_tall(config) {
        let (stage_us, tile_us) = if apart { (APART_STAGE_US, APART_TILE_US) } else { (TALL_STAGE_US, TALL_TILE_US) };
        return rounds(tiles, sms) * (stages as f64 * stage_us + tile_us) + TALL_START_US;
    }
    let width = if config.swap_ab { config.tile[0] } else { config.tile[1] };
    let kind = WIDTHS.iter().position(|known| *known == width).unwrap_or(2);
    let tile_us = stages.div_ceil(config.split as usize) as f64 * STAGE_US[kind] + TILE_US[kind];
    let meet = if config.split == 8 { SPLIT_8_US } else { 0.0 };
    rounds(tiles * config.split as usize, reached(config.split, sms)) * tile_us + meet
}

/// Tall tiles, and every tile with alternating warp groups that the kernel can run the problem with.
/// csrc/sm90_bf16x6_direct/sm90_bf16x6_direct.cu has the same list.
fn legal(case: &Case) -> impl Iterator<Item = Config> {
    let k = case.problem.k;
    // For a smaller K, errors exceed SGEMM's unless large and small products have separate sums. Tall tiles have
    // separate sums.
    let takes_turns = case.kernel.layout == Layout::NT && k >= MOST_APART;
    let sides = WIDTHS.map(|width| (true, [width, 64])).into_iter().chain(WIDTHS.map(|width| (false, [64, width])));
    let all =
        sides.flat_map(|(swap_ab, tile)| [1, 2, 4, 8].map(|split| Config { swap_ab, ..Config::tile(tile, split) }));
    [TALL].into_iter().chain(all.filter(move |config| takes_turns && k.div_ceil(32) >= 2 * config.split as usize))
}

impl Family for Sm90Bf16x6Direct {
    fn configurations(&self, case: &Case) -> Vec<Config> {
        legal(case).collect()
    }

    fn choose(&self, case: &Case) -> Config {
        let timed = legal(case).map(|config| (config, us_of(case, &config, false)));
        timed.min_by(|x, y| x.1.total_cmp(&y.1)).map_or(TALL, |(config, _)| config)
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let (launch, counted) = if is_tall(config) { TALL_LAUNCH_US } else { LAUNCH_US };
        let arithmetic = us_of(case, config, problem.k < MOST_APART) - counted;
        let together = arithmetic.powf(NORM) + (MEMORY * memory_us(problem, device)).powf(NORM);
        (launch + together.powf(1.0 / NORM)).max(roofline_us(problem, device))
    }

    /// 128 x 249 x 249 in f32 take 80 us, where the aligned product takes 29.
    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost { instruction: 0.009, bias: 0.35, residual: 0.0, unaligned: 0.84 }
    }
}
