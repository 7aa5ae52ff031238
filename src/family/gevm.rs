//! `csrc/gevm`: a few rows with the rows of B contiguous, on the CUDA cores.
//!
//! A configuration names the rows that an instance is compiled for and the columns of a block (`tile`), the blocks of a cluster that
//! split K (`split`), and the warps of a block.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::pipeline::l2_us_of_one;
use crate::cost::{memory_us, overlapped};
use crate::kernel::{Case, Family};

/// Rows of A that the kernel is compiled for.
const ROWS: [u32; 3] = [1, 2, 4];
const SPLITS: [u32; 4] = [1, 2, 4, 8];
/// Warps of a block where each multiprocessor has one, and where two smaller blocks share a multiprocessor.
const WARPS: u32 = 16;
const WARPS_OF_MANY: u32 = 8;
/// Warps of a block whose threads go through K with columns of their own: for a short K and many columns.
const WARPS_OF_WIDE: u32 = 4;
/// Such blocks of a multiprocessor.
const WIDE_BLOCKS: f64 = 6.0;
/// Columns from which on such blocks are tried.
const LEAST_WIDE: usize = 2048;
/// Turns of small blocks whose launches cost nothing beside their loads.
const FREE_TURNS: f64 = 4.0;

fitted! {
    Gevm {
        /// The launch, beside the card's overlapped launch.
        launch_us: f64 = "us", -1.7 to 3.0;
        /// The rate at which a block with one row of A loads, over L2's rate to a multiprocessor.
        load: f64 = "", 0.1 to 1.2;
        /// The loss of this rate with each further row of A in 16 bits.
        row: f64 = "", 0.0 to 3.0;
        /// The least time of a small block of one matrix, beside its loads.
        block_us: f64 = "us", 0.0 to 4.0;
        /// A thread with columns of its own: the time of the rows of B that it has under way at a time.
        step_us: f64 = "us", 0.1 to 4.0;
        /// The factor on memory time there.
        wide_memory: f64 = "", 1.0 to 2.0;
    }
}

fn is_wide(case: &Case) -> bool {
    case.problem.n >= LEAST_WIDE
}

fn tiles(case: &Case) -> usize {
    case.problem.n.div_ceil(case.kernel.tile[1] as usize) * case.problem.batch_count()
}

fn config(case: &Case, split: u32, warps: u32) -> Config {
    let rows = ROWS.into_iter().find(|rows| case.problem.m <= *rows as usize).unwrap_or(4);
    Config { tile: [rows, case.kernel.tile[1]], split, warps, ..Config::default() }
}

/// The blocks that may split K: there are clusters from Hopper on.
fn splits(case: &Case) -> impl Iterator<Item = u32> {
    let clusters = case.kernel.arch.capability >= 90;
    SPLITS.into_iter().filter(move |split| clusters || *split == 1)
}

/// The K of one group: each warp of a block has a group of rows of B. A stage of the row is two groups.
fn block_k(case: &Case) -> usize {
    (WARPS * case.kernel.tile[2] / 2) as usize
}

impl Family for Gevm {
    fn configurations(&self, case: &Case) -> Vec<Config> {
        let deep = splits(case).filter(|split| *split == 1 || case.problem.k > block_k(case) * *split as usize / 2);
        let wide = is_wide(case).then(|| config(case, 1, WARPS_OF_WIDE));
        deep.map(|split| config(case, split, WARPS)).chain([config(case, 1, WARPS_OF_MANY)]).chain(wide).collect()
    }

    /// With more blocks than multiprocessors, small blocks process several matrices one after the other. Otherwise two
    /// blocks split K if there are multiprocessors for both. Larger splits, which reach only some of the
    /// multiprocessors, pay as long as they occupy at most half. Every part of K has a group of rows for each warp at
    /// least.
    fn choose(&self, case: &Case) -> Config {
        let (tiles, sms) = (tiles(case), case.device.sm_count as usize);
        if tiles > sms {
            let [many, wide] = [WARPS_OF_MANY, WARPS_OF_WIDE].map(|warps| config(case, 1, warps));
            let takes_wide = is_wide(case) && self.estimate(case, &wide) < self.estimate(case, &many);
            return if takes_wide { wide } else { many };
        }
        let pays = |split: u32| tiles * split as usize <= if split > 2 { sms / 2 } else { sms };
        let is_deep = |split: u32| case.problem.k > block_k(case) * split as usize / 2;
        let split = splits(case).skip(1).take_while(|split| pays(*split) && is_deep(*split)).last();
        config(case, split.unwrap_or(1), WARPS)
    }

    /// Memory time, or with few blocks the load time of the busiest multiprocessor; of many small blocks their launches, too.
    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let tile_n = f64::from(case.kernel.tile[1]);
        let (sms, bytes) = (f64::from(device.sm_count), problem.b.format.bits() / 8.0);
        let launch_us = device.model.overlapped_launch_us + self.launch_us;
        if config.warps == WARPS_OF_WIDE {
            let rows = if problem.m > 2 { 4 } else { 8 };
            let columns = (WARPS_OF_WIDE * 32) as f64 * 16.0 / bytes;
            let blocks = (problem.n as f64 / columns).ceil() * problem.batch_count() as f64;
            let waves = (blocks / (WIDE_BLOCKS * sms)).ceil();
            let steps = problem.k.div_ceil(rows) as f64;
            let memory = self.wide_memory * memory_us(problem, device);
            return launch_us + overlapped(&[memory, waves * steps * self.step_us]);
        }
        let split = f64::from(config.split);
        let further = problem.m.min(4) as f64 - 1.0;
        let share = self.load / (1.0 + self.row * further * 2.0 / bytes);
        let turns = (tiles(case) as f64 * split / sms).ceil();
        let load = l2_us_of_one(turns * problem.k as f64 / split * tile_n * bytes, share, device);
        let residents = if config.warps == WARPS_OF_MANY { 2.0 } else { 1.0 };
        let of_blocks = match problem.batch_count() {
            1 => self.block_us * (turns / residents - FREE_TURNS).max(0.0),
            _ => 0.0,
        };
        launch_us + overlapped(&[memory_us(problem, device), load + of_blocks])
    }
}
