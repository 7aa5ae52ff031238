//! `csrc/narrow_grouped_gemm`: groups of rows with a matrix B each, in fp8 or MXFP4, by `mma.sync` with weights from registers.
//!
//! There is nothing to choose beside the kernel: a block takes tile after tile, whatever the groups are.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::pipeline::{l2_us, stream_us, Activities};
use crate::cost::{peak_tflops, rows_of_group};
use crate::kernel::{Case, Family, KernelDesc, Rejection, SumOrder, INT};
use crate::problem::{Format, Problem, Scale};

/// Groups, and groups with rows; csrc/narrow_grouped_gemm/device.hpp has the same numbers.
const MOST_GROUPS: usize = 2048;
const MOST_WITH_ROWS: usize = 1023;
/// Rows of A of an instruction.
const FRAGMENT: usize = 8;
/// Numbers of K of a step, which share a factor of fp8.
const STEP: u32 = 64;
/// Numbers of MXFP4 that share a power of two.
const GROUP: u32 = 32;

fitted! {
    /// Lists of two numbers are of tiles of 8 and of 64 rows.
    NarrowGroupedGemm {
        /// The list of groups that each block makes.
        list_us: f64 = "us", 0.0 to 10.0;
        /// Throughput of tensor cores, relative to the sustained rate.
        efficiency: [f64; 2] = "", 0.02 to 1.3;
        /// Codes that a multiprocessor makes numbers of in a clock: fp8, and MXFP4.
        codes: [f64; 2] = "1/clock", 1.0 to 512.0;
        /// The share of what L2 gives.
        l2: f64 = "", 0.1 to 1.2;
        /// The share of the memory's rate.
        memory: [f64; 2] = "", 0.3 to 1.2;
        /// The norm by which activities overlap.
        norm: f64 = "", 1.0 to 16.0;
    }
}

/// The kernel's place in lists of two fitted numbers.
fn place(kernel: &KernelDesc) -> usize {
    usize::from(kernel.tile[0] as usize > FRAGMENT)
}

/// What is wrong with the factors.
fn fault(b: Format, scale: Option<Scale>) -> Option<&'static str> {
    let shared = scale.map_or(u32::MAX, |scale| scale.granularity[0]);
    match (b, scale) {
        (Format::F4E2M1, Some(scale)) if scale.format != Format::F8E8M0 => Some("are not in f8e8m0"),
        (Format::F4E2M1, Some(_)) if shared == GROUP || shared == u32::MAX => None,
        (Format::F4E2M1, _) => Some("are not of 32 numbers of K"),
        _ if shared == u32::MAX || shared.is_multiple_of(STEP) => None,
        _ => Some("are of parts of K that are no multiples of 64"),
    }
}

impl Family for NarrowGroupedGemm {
    fn supports(&self, kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        let Some(groups) = problem.groups else { return Ok(()) };
        let b = kernel.types.b;
        let unit = if b == Format::F4E2M1 { GROUP } else { 16 };
        if !problem.k.is_multiple_of(unit as usize) {
            return Err(Rejection::RowLength { dimension: "K", have: problem.k, multiple: unit });
        }
        // One power of two for all of K is that of its 32 numbers.
        let is_long = b == Format::F4E2M1 && problem.k > GROUP as usize;
        let of_all = problem.b.scale.is_some_and(|scale| scale.granularity[0] == u32::MAX);
        let fault = if is_long && of_all { Some("are not of 32 numbers of K") } else { fault(b, problem.b.scale) };
        if let Some(what) = fault {
            return Err(Rejection::Factors { operand: "B", what });
        }
        let [most, columns] = [0, 1].map(|i| kernel.tile[i] as usize);
        let entries = groups.count.min(problem.m);
        let tiles = (problem.m.div_ceil(most) + entries).saturating_mul(problem.n.div_ceil(columns));
        Rejection::check_counts([
            ("groups", groups.count, MOST_GROUPS),
            ("groups with rows", entries, MOST_WITH_ROWS),
            ("tiles", tiles, INT / 4),
        ])
    }

    fn sums(&self, kernel: &KernelDesc, config: &Config) -> Option<SumOrder> {
        Some(SumOrder::Row { kernel: kernel.name, config: *config })
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let (kernel, problem, device) = (case.kernel, case.problem, case.device);
        let Some(groups) = problem.groups else { return f64::INFINITY };
        let (place, rows) = (place(kernel), rows_of_group(&groups, problem.m));
        let [most, columns] = [0, 1].map(|i| kernel.tile[i] as usize);
        let along_m = (groups.with_rows(problem.m) * rows.div_ceil(most)) as f64;
        let tiles = along_m * problem.n.div_ceil(columns) as f64;
        let (sms, k) = (f64::from(device.sm_count), problem.k as f64);
        // Two blocks of a multiprocessor; the last tiles leave some of them idle.
        let idle = (tiles / (2.0 * sms)).ceil() * 2.0 * sms / tiles.max(1.0);
        let codes = tiles * columns as f64 * k;
        let per_clock = self.codes[usize::from(kernel.types.b == Format::F4E2M1)];
        let in_tile = rows.div_ceil(rows.div_ceil(most)).next_multiple_of(FRAGMENT) as f64;
        let rate = peak_tflops(problem.a.format, kernel.math, device) * 1e6 * self.efficiency[place];
        let of_x = tiles * in_tile * k * 2.0;
        let activities = Activities {
            products: idle * (2.0 * codes * in_tile / rate + codes / (per_clock * sms * device.model.clock_ghz * 1e3)),
            l2: l2_us(codes * problem.b.format.bits() / 8.0 + of_x, self.l2, device),
            memory: stream_us(problem.bytes(), self.memory[place], device),
            ..Activities::default()
        };
        device.model.launch_us + self.list_us + activities.overlapped(self.norm)
    }
}
