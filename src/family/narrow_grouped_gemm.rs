//! `csrc/narrow_grouped_gemm`: groups of rows times narrow weights, a matrix B each, by `mma.sync`. The columns of B are called the rows of W.
//!
//! There is nothing to choose beside the kernel: a block takes item after item, whatever the groups are.

use super::fitted::fitted;
use super::{bytes_of_block, ENTRY_BYTES};
use crate::config::Config;
use crate::cost::pipeline::{overlap_by, stream_us};
use crate::cost::rows_of_group;
use crate::kernel::{Case, Family, KernelDesc, Rejection, SumOrder, INT};
use crate::problem::{Format, Problem, Scale};

/// Groups, and groups with rows; csrc/narrow_grouped_gemm/shape.hpp has these numbers and those below.
const MOST_GROUPS: usize = 2000;
const MOST_WITH_ROWS: usize = 1023;
/// Numbers of K that share a factor at least.
const UNIT: u32 = 32;
/// Rows of A of an instruction, rows of W of a warp, warps of a block, and slots of a warp's ring.
const FRAGMENT: usize = 8;
const ROWS_OF_WARP: usize = 16;
const WARPS: usize = 8;
const STAGES: usize = 3;
/// Bytes of a row of W in a slot of a warp's ring.
const SLOT_BYTES: usize = 128;
/// Numbers of K of a row of A in shared memory, of many rows.
const CHUNK: usize = 128;

fitted! {
    /// Lists of two numbers are of tiles of 8 and of 32 rows, lists of three of 8 bits, u4 and f4e2m1.
    NarrowGroupedGemm {
        /// The list of groups that each block makes, the first loads and the last stores.
        start_us: [f64; 2] = "us", 0.0 to 20.0;
        /// 16 rows of W times up to eight rows of A, for each 4096 numbers of K, on a multiprocessor.
        unit_us: [f64; 3] = "us", 0.05 to 10.0;
        /// 128 rows of W as numbers of 16 bits, for each 4096 numbers of K, on a multiprocessor.
        codes_us: [f64; 3] = "us", 0.1 to 50.0;
        /// These times eight rows of A.
        fragment_us: f64 = "us", 0.1 to 20.0;
        /// The share of the memory's rate.
        memory: [f64; 2] = "", 0.3 to 1.2;
        /// The norm by which activities overlap.
        norm: f64 = "", 1.0 to 16.0;
    }
}

/// Whether the warps of a block share K of few rows.
fn is_of_few(kernel: &KernelDesc) -> bool {
    kernel.tile[0] as usize == FRAGMENT
}

fn bits(kernel: &KernelDesc) -> usize {
    kernel.types.b.bits() as usize
}

/// Shared memory of a block: rings, rows of A and their powers, factors and zeros, sums, the rows of two tiles, and the list of groups.
fn shared_bytes(kernel: &KernelDesc, k: usize, entries: usize) -> usize {
    let (most, of_slot) = (kernel.tile[0] as usize, SLOT_BYTES * 8 / bits(kernel));
    let slots = k.div_ceil(of_slot);
    let zeros = if kernel.types.b.has_zero() { 2 } else { 1 };
    let beside = of_slot / UNIT as usize * ROWS_OF_WARP * 4 * zeros;
    let sums = |columns: usize| most * (columns + 4) * 4;
    let of_warp = STAGES * ROWS_OF_WARP * SLOT_BYTES + beside;
    let rest = 2 * most * 8 + (entries + 1) * ENTRY_BYTES;
    if is_of_few(kernel) {
        let of_x = slots.saturating_mul(most * (of_slot * 2 + 4));
        return WARPS * (of_warp + 2 * sums(ROWS_OF_WARP)) + of_x + rest;
    }
    let of_x = (2 * most * CHUNK * 2).max(sums(ROWS_OF_WARP * WARPS)) + 2 * most * 4;
    WARPS * of_warp + of_x + rest
}

/// What is wrong with the factors.
fn fault(scale: Option<Scale>) -> Option<&'static str> {
    let scale = scale.filter(|scale| scale.granularity[0] != u32::MAX)?;
    match scale.granularity[0].is_multiple_of(UNIT) {
        false => Some("are of parts of K that are no multiples of 32"),
        true if (0..=i64::from(i32::MAX)).contains(&scale.row_stride) => None,
        true => Some("lie 2^31 apart along K, or backwards"),
    }
}

/// The place of B's format in lists of three fitted numbers.
fn kind(kernel: &KernelDesc) -> usize {
    match kernel.types.b {
        Format::U4 => 1,
        Format::F4E2M1 => 2,
        _ => 0,
    }
}

impl Family for NarrowGroupedGemm {
    fn supports(&self, kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        let Some(groups) = problem.groups else { return Ok(()) };
        if let Some(what) = fault(problem.b.scale) {
            return Err(Rejection::Factors { operand: "B", what });
        }
        let [most, columns] = [0, 1].map(|i| kernel.tile[i] as usize);
        let entries = groups.count.min(problem.m);
        let tiles = (problem.m.div_ceil(most) + entries).saturating_mul(problem.n.div_ceil(columns));
        Rejection::check_counts([
            ("groups", groups.count, MOST_GROUPS),
            ("groups with rows", entries, MOST_WITH_ROWS),
            ("tiles", tiles, INT / 4),
        ])?;
        let [need, have] = [shared_bytes(kernel, problem.k, entries), bytes_of_block(kernel)];
        if need > have {
            let [need, have] = [need, have].map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
            return Err(Rejection::SharedMemory { need, have });
        }
        Ok(())
    }

    fn shared_bytes(&self, kernel: &KernelDesc) -> u32 {
        bytes_of_block(kernel) as u32
    }

    /// M decides how many warps share K of few rows.
    fn sums(&self, kernel: &KernelDesc, config: &Config) -> Option<SumOrder> {
        (!is_of_few(kernel)).then_some(SumOrder::Row { kernel: kernel.name, config: *config })
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let (kernel, problem, device) = (case.kernel, case.problem, case.device);
        let Some(groups) = problem.groups else { return f64::INFINITY };
        let [most, columns] = [0, 1].map(|i| kernel.tile[i] as usize);
        let rows = rows_of_group(&groups, problem.m);
        let along_m = rows.div_ceil(most);
        let tiles = (groups.with_rows(problem.m) * along_m) as f64 * problem.n.div_ceil(columns) as f64;
        let (sms, depth) = (f64::from(device.sm_count), problem.k as f64 / 4096.0);
        let (place, kind) = (usize::from(!is_of_few(kernel)), kind(kernel));
        let of_tile = if is_of_few(kernel) {
            self.unit_us[kind]
        } else {
            self.codes_us[kind] + self.fragment_us * rows.div_ceil(along_m).div_ceil(FRAGMENT) as f64
        };
        // The last tiles of many rows leave some multiprocessors idle.
        let busiest =
            if is_of_few(kernel) || tiles > 8.0 * sms { (tiles / sms).max(1.0) } else { (tiles / sms).ceil() };
        let busy = busiest * depth * of_tile;
        let memory = stream_us(problem.bytes(), self.memory[place], device);
        device.model.launch_us + self.start_us[place] + overlap_by(self.norm, &[busy, memory])
    }
}
