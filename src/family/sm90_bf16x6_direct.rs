//! `csrc/sm90_bf16x6_direct`: f32 by six products of bf16 parts for few rows and a shallow K, with no operand prepared
//! beforehand.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::pipeline::Activities;
use crate::cost::{arithmetic_us, memory_us};
use crate::kernel::{Case, ElementCost, Family, KernelDesc, SumOrder};
use crate::problem::{Layout, Problem};

/// The K below which tiles are tall, and large and small products have separate sums.
const MOST_APART: usize = 256;

const WIDTHS: [u32; 3] = [16, 32, 64];
const TALL: Config = Config { swap_ab: false, ..Config::tile([128, 64], 1) };

fitted! {
    Sm90Bf16x6Direct {
        /// 32 steps of K of a tile where two warp groups alternate along K, for widths of 16, 32 and 64.
        stage_us: [f64; 3] = "us", 0.05 to 2.0;
        /// The rest of the tile's time.
        tile_us: [f64; 3] = "us", 0.0 to 10.0;
        /// 32 steps of K of a tall tile; and where large and small products have separate sums.
        tall_stage_us: [f64; 2] = "us", 0.1 to 3.0;
        /// The rest of these tiles' time.
        tall_tile_us: [f64; 2] = "us", 0.0 to 10.0;
        /// The start of tall tiles, once.
        tall_start_us: f64 = "us", 0.0 to 10.0;
        /// A cluster of eight.
        split_8_us: f64 = "us", 0.0 to 3.0;
        /// Launch, first loads and drain, beside the card's overlapped launch; of tall tiles.
        launch_us: [f64; 2] = "us", -1.7 to 5.0;
        /// The share of the launch that the times of tiles contain.
        counted_us: f64 = "us", 0.0 to 5.0;
        /// Memory time over the time of one pass.
        memory: f64 = "", 1.0 to 2.0;
        /// The norm by which memory and products overlap.
        norm: f64 = "", 1.5 to 16.0;
        /// Epilogues, for each element of D: an activation's instruction, a bias before an activation, `beta * C`, unaligned rows.
        epilogue_ns: [f64; 4] = "ns", 0.0 to 10.0;
    }
}

fn rounds(blocks: usize, at_a_time: usize) -> f64 {
    blocks.div_ceil(at_a_time.max(1)) as f64
}

fn is_tall(config: &Config) -> bool {
    config.tile[0] == 128
}

impl Sm90Bf16x6Direct {
    /// The time by the numbers of the choice. `apart`: large and small products have separate sums.
    fn us_of(&self, case: &Case, config: &Config, apart: bool) -> f64 {
        let Problem { m, n, k, .. } = *case.problem;
        let sms = case.device.sm_count as usize;
        let split = config.split as usize;
        let [rows, columns] = config.tile.map(|side| side as usize);
        let tiles = m.div_ceil(rows) * n.div_ceil(columns) * case.problem.batch_count();
        let stages = k.div_ceil(32);
        if is_tall(config) {
            let (stage_us, tile_us) = (self.tall_stage_us[usize::from(apart)], self.tall_tile_us[usize::from(apart)]);
            return rounds(tiles, sms) * (stages as f64 * stage_us + tile_us) + self.tall_start_us;
        }
        let width = if config.swap_ab { config.tile[0] } else { config.tile[1] };
        let kind = WIDTHS.iter().position(|known| *known == width).unwrap_or(2);
        let tile_us = stages.div_ceil(split) as f64 * self.stage_us[kind] + self.tile_us[kind];
        let meet = if split == 8 { self.split_8_us } else { 0.0 };
        rounds(tiles * split, case.device.model.reached(sms, split)) * tile_us + meet
    }
}

/// Stages of the ring of tiles that are not tall: the least, and as many as shared memory holds for widths up to 32. With a tile to each
/// block, more stages take 1 to 2 % longer. Otherwise more stages hide the time between tiles.
const STAGES: [u32; 2] = [6, 12];

/// Tall tiles, and every tile with alternating warp groups that the kernel can run the problem with.
/// csrc/sm90_bf16x6_direct/sm90_bf16x6_direct.cu has the same list.
fn legal(case: &Case) -> impl Iterator<Item = Config> {
    let (problem, sms) = (*case.problem, case.device.sm_count as usize);
    // For a smaller K, errors exceed SGEMM's unless large and small products have separate sums. Tall tiles have
    // separate sums.
    let takes_turns = case.kernel.layout == Layout::NT && problem.k >= MOST_APART;
    let sides = WIDTHS.map(|width| (true, [width, 64])).into_iter().chain(WIDTHS.map(|width| (false, [64, width])));
    let all = sides.flat_map(move |(swap_ab, tile)| {
        [1, 2, 4, 8].map(|split| {
            let tiles = problem.m.div_ceil(tile[0] as usize) * problem.n.div_ceil(tile[1] as usize);
            let has_room = tile[0] * tile[1] < 64 * 64;
            let stages = STAGES[usize::from(has_room && tiles * problem.batch_count() * split as usize > sms)];
            Config { swap_ab, stages, ..Config::tile(tile, split) }
        })
    });
    let splits = move |config: &Config| problem.k.div_ceil(32) >= 2 * config.split as usize;
    [TALL].into_iter().chain(all.filter(move |config| takes_turns && splits(config)))
}

impl Family for Sm90Bf16x6Direct {
    fn configurations(&self, case: &Case) -> Vec<Config> {
        legal(case).collect()
    }

    /// Groups that take turns have every other stage each. Which operand has which parts of a product depends on `swap_ab`.
    fn sums(&self, kernel: &KernelDesc, config: &Config) -> Option<SumOrder> {
        let tile = if is_tall(config) { config.tile } else { [0, 0] };
        Some(SumOrder::Row { kernel: kernel.name, config: Config { tile, stages: 0, ..*config } })
    }

    fn choose(&self, case: &Case) -> Config {
        let timed = legal(case).map(|config| (config, self.us_of(case, &config, false)));
        timed.min_by(|x, y| x.1.total_cmp(&y.1)).map_or(TALL, |(config, _)| config)
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let [plain, tall] = self.launch_us.map(|us| device.model.overlapped_launch_us + us);
        let (launch, counted) = if is_tall(config) { (tall, self.tall_start_us) } else { (plain, self.counted_us) };
        let products = self.us_of(case, config, problem.k < MOST_APART) - counted;
        let memory = self.memory * memory_us(problem, device);
        (launch + Activities { products, memory, ..Activities::default() }.overlapped(self.norm)).max(arithmetic_us(
            problem,
            case.kernel.math,
            device,
        ))
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost::of(self.epilogue_ns)
    }
}
