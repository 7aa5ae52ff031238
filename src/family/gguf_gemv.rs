//! `csrc/gguf_gemv`: up to 8 rows times the weights of a GGUF file.

use crate::config::Config;
use crate::cost::memory_us;
use crate::kernel::fitted::fitted;
use crate::kernel::{Case, Family, KernelDesc, Rejection};
use crate::partition::Footprint;
use crate::problem::Problem;
use crate::workspace;

/// Rows of A and rows of W that a block computes, and numbers of K that a block loads at a time.
const TILE: [u32; 2] = [8, 128];
const SPAN: usize = 256;
/// The most bytes of the workspace for a number of A: two columns of bytes and their scales, for at least 4 rows, in spans.
const PREPARED: u64 = 12;
/// The activations begin at a multiple of this number of bytes.
const PLACE: u64 = 128;
/// The largest stride of B, in elements: 16 rows of W span less than 2^32 bytes. csrc/common/gguf_ring.hpp has the same number.
const MOST_STRIDE: u64 = 1 << 27;

fitted! {
    GgufGemv {
        /// Blocks that share a multiprocessor.
        residents: f64 = "", 1.0 to 4.0;
        /// A span of all blocks of a multiprocessor.
        span_us: f64 = "us", 0.1 to 10.0;
        /// The time of a block that has a multiprocessor for itself, over the time of blocks that share one.
        alone: f64 = "", 0.3 to 1.0;
        /// The time with more than four rows, over the time with four.
        eight: f64 = "", 1.0 to 2.0;
        /// The kernel that prepares the activations.
        prepare_us: f64 = "us", 0.0 to 8.0;
        /// The first loads and the last stores of a wave of blocks.
        wave_us: f64 = "us", 0.0 to 6.0;
        /// The kernel that adds parts.
        add_us: f64 = "us", 0.0 to 8.0;
        /// The share of the memory's rate.
        memory: f64 = "", 0.3 to 1.2;
    }
}

/// The sums of parts, and the activations behind them.
fn bytes(problem: &Problem, split: u32) -> u64 {
    let numbers = (problem.m.next_multiple_of(4) as u64).saturating_mul(problem.k.next_multiple_of(64) as u64);
    let parts = workspace::parts_bytes(split.into(), problem);
    parts.saturating_add(PLACE).saturating_add(PREPARED.saturating_mul(numbers))
}

/// The configurations to consider: parts of K in powers of two, with a span or more each, whose sums fit into the workspace.
fn configurations(case: &Case) -> Vec<Config> {
    let spans = case.problem.k.div_ceil(SPAN).max(1);
    let fits = |split: &u32| *split == 1 || (*split as usize <= spans && bytes(case.problem, *split) <= case.workspace);
    (0..8).map(|log2| 1 << log2).filter(fits).map(|split| Config::tile(TILE, split)).collect()
}

impl Family for GgufGemv {
    fn supports(&self, _: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        match problem.b.col_stride {
            have if have.unsigned_abs() > MOST_STRIDE => {
                Err(Rejection::Stride { operand: "B", have, most: MOST_STRIDE })
            }
            _ => Ok(()),
        }
    }

    fn footprint(&self, _: &KernelDesc, problem: &Problem) -> Option<Footprint> {
        Footprint::new(problem, [PREPARED, 0], [4, 1], [TILE[0] as usize, TILE[1] as usize])
    }

    fn scratch_bytes(&self, problem: &Problem, config: &Config) -> u64 {
        if config.split > 1 {
            bytes(problem, config.split)
        } else {
            0
        }
    }

    fn configurations(&self, case: &Case) -> Vec<Config> {
        configurations(case)
    }

    fn choose(&self, case: &Case) -> Config {
        let best =
            configurations(case).into_iter().min_by(|x, y| self.estimate(case, x).total_cmp(&self.estimate(case, y)));
        best.unwrap_or_else(|| Config::tile(TILE, 1))
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let split = config.split.max(1) as usize;
        let blocks = case.problem.n.div_ceil(TILE[1] as usize).saturating_mul(split) as f64;
        let waves = (blocks / (self.residents * case.device.sm_count as f64)).ceil();
        let spans = case.problem.k.div_ceil(SPAN).div_ceil(split) as f64;
        let alone = if blocks <= f64::from(case.device.sm_count) { self.alone } else { 1.0 };
        let rows = if case.problem.m > 4 { self.eight } else { 1.0 };
        let busy = waves * (alone * rows * spans * self.span_us + self.wave_us);
        let add = if split > 1 { self.add_us } else { 0.0 };
        let start = case.device.model.launch_us + self.prepare_us;
        start + busy.max(memory_us(case.problem, case.device) / self.memory) + add
    }
}
