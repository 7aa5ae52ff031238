//! `csrc/gguf_grouped_gemv`: groups of rows times the weights of a GGUF file, a matrix B each, eight rows at a time.
//!
//! There is nothing to choose beside the kernel: a block takes item after item, whatever the groups are.

use super::fitted::fitted;
use super::gguf::{self, SPAN};
use crate::config::Config;
use crate::cost::pipeline::stream_us;
use crate::cost::rows_of_group;
use crate::kernel::{Case, Family, KernelDesc, Rejection, SumOrder};
use crate::problem::Problem;

/// Rows of A and rows of W that a block computes at a time.
const TILE: [usize; 2] = [8, 16];
/// Groups with rows; csrc/gguf_grouped_gemv/device.hpp has the same number.
const MOST_WITH_ROWS: usize = 511;

fitted! {
    GgufGroupedGemv {
        /// 16 rows of W times up to eight rows of A, for each 4096 numbers of K, on a multiprocessor, by format: q4_0, q4_1, q5_0, q5_1, q8_0, q2k, q3k, q4k,
        /// q5k, q6k, mxfp4, iq4_nl, iq4_xs.
        unit_us: [f64; 13] = "us", 0.1 to 10.0;
        /// The list of groups that each block makes.
        list_us: f64 = "us", 0.0 to 10.0;
        /// The activations, the first loads and the last stores of an item.
        item_us: f64 = "us", 0.0 to 8.0;
        /// The share of the memory's rate.
        memory: f64 = "", 0.3 to 1.2;
    }
}

impl Family for GgufGroupedGemv {
    fn supports(&self, _: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        let Some(groups) = problem.groups else { return Ok(()) };
        gguf::supports_groups(problem, &groups, TILE, MOST_WITH_ROWS)
    }

    fn sums(&self, kernel: &KernelDesc, config: &Config) -> Option<SumOrder> {
        Some(SumOrder::Row { kernel: kernel.name, config: *config })
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let Some(groups) = problem.groups else { return f64::INFINITY };
        let rows = rows_of_group(&groups, problem.m);
        let tiles = (groups.with_rows(problem.m) * rows.div_ceil(TILE[0])) as f64;
        let depth = problem.k.div_ceil(SPAN) as f64 / 16.0;
        let units = tiles * problem.n.div_ceil(TILE[1]) as f64 / f64::from(device.sm_count);
        let busy = units.max(1.0) * depth * self.unit_us[gguf::place(problem.b.format)];
        let memory = stream_us(problem.bytes(), self.memory, device);
        device.model.launch_us + self.list_us + self.item_us + busy.max(memory)
    }
}
