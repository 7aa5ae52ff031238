//! `csrc/sm90_bf16x6`: f32 by six products of bf16 parts, TMA and WGMMA, with planes of B prepared in a kernel before.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::pipeline::{l2_us, stream_us};
use crate::cost::{arithmetic_us, distinct, memory_us, overlapped};
use crate::kernel::{Case, ElementCost, Family, KernelDesc, Limits, SumOrder};
use crate::problem::{Layout, Problem};
use crate::workspace::partition::Footprint;

fitted! {
    Sm90Bf16x6 {
        /// The launches, beside the card's overlapped launch.
        launch_us: f64 = "us", -1.7 to 5.0;
        /// The share of L2's rate at which operands are prepared; the planes stay in L2.
        prepare: f64 = "", 0.05 to 1.0;
        /// A k-block of a tile of 128 and of 64 columns.
        block_us: [f64; 2] = "us", 0.1 to 3.0;
        /// The epilogue of such a tile.
        tile_us: [f64; 2] = "us", 0.0 to 10.0;
        /// The factor of the summation method: K below 128, 2048 and 8192, and longer.
        sums: [f64; 4] = "", 1.0 to 4.0;
        /// Epilogues, for each element of D: an activation's instruction, a bias before an activation, `beta * C`, unaligned rows.
        epilogue_ns: [f64; 4] = "ns", 0.0 to 10.0;
    }
}

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

    fn sums(&self, _: &KernelDesc, _: &Config) -> Option<SumOrder> {
        Some(SumOrder::WgmmaBf16x6)
    }

    /// Planes of B, a copy of A where K is not contiguous in A, and waves of tiles.
    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let (kernel, problem, device) = (case.kernel, case.problem, case.device);
        let [tile_m, tile_n, tile_k] = kernel.tile.map(|x| x as usize);
        let pair = kernel.cluster[0] as usize;
        let Problem { m, n, k, .. } = *problem;
        let b_elements = distinct(problem, &problem.b) * (n * k) as f64;
        let a_bytes = if copies_a(kernel) { 8.0 * distinct(problem, &problem.a) * (m * k) as f64 } else { 0.0 };
        let prepare = l2_us(10.0 * b_elements + a_bytes, self.prepare, device);

        let clusters = m.div_ceil(tile_m * pair) * n.div_ceil(tile_n) * problem.batch_count();
        let turns = clusters.div_ceil((device.sm_count as usize / pair).max(1)) as f64;
        let kind = usize::from(tile_n == 64);
        let (block, epilogue) = (self.block_us[kind], self.tile_us[kind]);
        // The factor of the summation method that the kernel uses for this K.
        let sums = match k {
            0..128 => self.sums[0],
            128..2048 => self.sums[1],
            2048..8192 => self.sums[2],
            _ => self.sums[3],
        };
        let arithmetic = turns * (k.div_ceil(tile_k) as f64 * block * sums + epilogue);
        // The product reads planes instead of B.
        let memory = memory_us(problem, device) + stream_us(2.0 * b_elements, 1.0, device);
        let us = device.model.overlapped_launch_us + self.launch_us + prepare + overlapped(&[arithmetic, memory]);
        us.max(arithmetic_us(problem, kernel.math, device))
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost::of(self.epilogue_ns)
    }
}
