//! `csrc/sm90_gated`: gated products in 16 bits, TMA and WGMMA, with gates and the numbers that they multiply in one tile. The columns of B
//! are called the rows of W.
//!
//! A configuration names the tile, of which half of the columns are gates, and the blocks that share W (`cluster`). There is one block to a
//! multiprocessor, with as many stages of the ring as fit in shared memory.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::pipeline::{l2_us, memory_us, odd_lines, ring_us, stream_us, Activities};
use crate::kernel::{Case, ElementCost, Family, KernelDesc, SumOrder};

const MOST_STAGES: u32 = 16;
const BARRIERS_BYTES: u32 = 16 * MOST_STAGES;

fitted! {
    Sm90Gated {
        /// Launch, the first loads and the drain, beside the card's overlapped launch.
        launch_us: f64 = "us", -1.7 to 4.0;
        /// Additional time where two blocks share loads: each block waits for the other.
        share_us: f64 = "us", 0.0 to 4.0;
        /// Latency of a stage from request to arrival, over the card's: with few stages in flight the latency limits a block.
        latency: f64 = "", 0.3 to 3.0;
        /// The share of L2's rate to all multiprocessors, multicast counted once.
        l2: f64 = "", 0.2 to 1.2;
        /// The time of loads of lines at odd multiples of 32 bytes, and of 16, over that of other lines.
        odd: [f64; 2] = "", 1.0 to 3.0;
        /// The clock of the tensor cores, over the card's: in one wave of tiles, and in several, which last long enough for the power limit.
        clock: [f64; 2] = "", 0.5 to 1.0;
        /// The clock's gain from idle multiprocessors, whose power the others use.
        idle_gain: f64 = "", 0.0 to 1.0;
        /// The gate of a tile, for each element of D: what no products of another warp group hide.
        gate_us: f64 = "us", 0.0 to 0.001;
        /// Additional memory time where multiprocessors are idle.
        uneven: f64 = "", 0.0 to 3.0;
        /// Each further cluster that reads the same part of W, as a fraction of the memory time of W.
        reread: f64 = "", 0.0 to 1.0;
        /// The norm by which activities overlap.
        norm: f64 = "", 1.5 to 16.0;
        /// Epilogues, for each element of D: an activation's instruction, a bias before an activation, `beta * C`, unaligned rows.
        epilogue_ns: [f64; 4] = "ns", 0.0 to 10.0;
    }
}

fn stages([rows, width, depth]: [u32; 3]) -> u32 {
    ((227 * 1024 - BARRIERS_BYTES) / ((rows + width) * depth * 2)).min(MOST_STAGES)
}

fn config(kernel: &KernelDesc, share: u32) -> Config {
    let [rows, width, _] = kernel.tile;
    Config { cluster: [share, 1], stages: stages(kernel.tile), ..Config::tile([rows, width], 1) }
}

impl Family for Sm90Gated {
    fn configurations(&self, case: &Case) -> Vec<Config> {
        // A second tile of A outside of D would only wait.
        let most = if case.problem.m > case.kernel.tile[0] as usize { case.kernel.cluster[0] } else { 1 };
        (1..=most).map(|share| config(case.kernel, share)).collect()
    }

    fn choose(&self, case: &Case) -> Config {
        self.chosen(case).0
    }

    fn chosen(&self, case: &Case) -> (Config, f64) {
        let timed = self.configurations(case).into_iter().map(|config| (config, self.estimate(case, &config)));
        timed.min_by(|x, y| x.1.total_cmp(&y.1)).unwrap_or_default()
    }

    fn sums(&self, _: &KernelDesc, _: &Config) -> Option<SumOrder> {
        Some(SumOrder::Wgmma)
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let [rows, width, depth] = case.kernel.tile;
        let share = config.cluster[0].max(1) as usize;
        let m_tiles = problem.m.div_ceil(rows as usize).next_multiple_of(share);
        let blocks = m_tiles * problem.columns_of_d().div_ceil(width as usize / 2);
        let at_once = device.model.reached(device.sm_count as usize, share).max(1);
        let turns = blocks.div_ceil(at_once);
        let several = usize::from(turns > 1);
        let height = problem.m.div_ceil(m_tiles) as f64;
        let (turns, blocks, sharing) = (turns as f64, blocks as f64, share as f64);
        let [rows, width, depth] = [rows, width, depth].map(f64::from);
        let k = problem.k as f64;
        let idle = 1.0 - blocks / (turns * at_once as f64);
        let bytes = problem.b.format.bits() / 8.0;
        let odd = odd_lines(problem, self.odd);
        // wgmma's cycles for 16 steps of K: the larger of its arithmetic and its shared-memory reads.
        let cycles = rows / 64.0 * (width / 2.0).max(16.0 + width / 4.0);
        let clocks_per_us = self.clock[several] * device.model.clock_ghz * 1e3;
        let products = turns * cycles * k / 16.0 / clocks_per_us * (1.0 - self.idle_gain * idle);
        let w_us = stream_us((problem.n * problem.k) as f64 * bytes, 1.0, device);
        let reread = self.reread * w_us * (m_tiles as f64 / sharing - 1.0);
        let together = Activities {
            products: products + turns * height * width / 2.0 * self.gate_us,
            ring: odd * ring_us(turns * (k / depth).ceil(), config.stages.into(), self.latency, device),
            l2: odd * l2_us(blocks * (height + width / sharing) * k * bytes, self.l2, device),
            memory: memory_us(problem, device) * (1.0 + self.uneven * idle) + reread,
        };
        let share_us = if share > 1 { self.share_us } else { 0.0 };
        device.model.overlapped_launch_us + self.launch_us + share_us + together.overlapped(self.norm)
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost::of(self.epilogue_ns)
    }
}
