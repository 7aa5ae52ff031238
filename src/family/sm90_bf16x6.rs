//! `csrc/sm90_bf16x6`: f32 by six products of bf16 parts, TMA and WGMMA, with planes of B prepared in a kernel before.

use crate::config::Config;
use crate::cost::{distinct, memory_us, overlapped, roofline_us};
use crate::kernel::{Case, ElementCost, Family, KernelDesc, Limits};
use crate::partition::Footprint;
use crate::problem::{Layout, Problem};

/// Fitted to recordings of the kernel's drafts: launches; bandwidth of the operands' preparation, GB/s; a k-block and
/// an epilogue of a tile of 128 and of 64 columns.
const LAUNCH_US: f64 = 1.2;
const PREPARE_GBPS: f64 = 2900.0;
const TILE_US: [(f64, f64); 2] = [(0.963, 1.3), (0.585, 0.8)];

pub(crate) struct Sm90Bf16x6;

/// Whether A is copied and transposed, because the rows of A are not contiguous.
fn copies_a(kernel: &KernelDesc) -> bool {
    matches!(kernel.layout, Layout::TN | Layout::TT)
}

impl Family for Sm90Bf16x6 {
    /// An operand that is converted beforehand is read element by element.
    fn limits(&self, kernel: &KernelDesc, _: &Problem) -> Limits {
        let only_a = [!copies_a(kernel), false, false, false];
        Limits { aligned: only_a, tma: only_a, ..kernel.limits }
    }

    /// Three bf16 planes of B; A as f32, transposed, where the rows of A are not contiguous. Rows of planes of a
    /// row-major B are multiples of 16 bytes.
    fn footprint(&self, kernel: &KernelDesc, problem: &Problem) -> Option<Footprint> {
        let piece = [0, 1].map(|i| (kernel.tile[i] * kernel.cluster[i]) as usize);
        Footprint::new(problem, [if copies_a(kernel) { 4 } else { 0 }, 6], [1, 8], piece)
    }

    /// Planes of B, a copy of A where K is not contiguous in A, and waves of tiles.
    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let (kernel, problem, device) = (case.kernel, case.problem, case.device);
        let [tile_m, tile_n, tile_k] = kernel.tile.map(|x| x as usize);
        let pair = kernel.cluster[0] as usize;
        let Problem { m, n, k, .. } = *problem;
        let b_elements = distinct(problem, &problem.b) * (n * k) as f64;
        let a_bytes = if copies_a(kernel) { 8.0 * distinct(problem, &problem.a) * (m * k) as f64 } else { 0.0 };
        let prepare = (10.0 * b_elements + a_bytes) / (PREPARE_GBPS * 1e3);

        let clusters = m.div_ceil(tile_m * pair) * n.div_ceil(tile_n) * problem.batch_count();
        let turns = clusters.div_ceil((device.sm_count as usize / pair).max(1)) as f64;
        let (block, epilogue) = TILE_US[usize::from(tile_n == 64)];
        // The factor of the summation method that the kernel uses for this K.
        let sums = match k {
            0..128 => 2.0,
            128..2048 => 1.17,
            2048..8192 => 1.08,
            _ => 1.045,
        };
        let arithmetic = turns * (k.div_ceil(tile_k) as f64 * block * sums + epilogue);
        // The product reads planes instead of B.
        let memory = memory_us(problem, device) + 2.0 * b_elements / (device.rates.hbm_gbps * 1e3);
        let us = LAUNCH_US + prepare + overlapped(&[arithmetic, memory]);
        us.max(roofline_us(problem, device))
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost { instruction: 0.009, bias: 0.35, residual: 0.0, unaligned: 0.84 }
    }
}
