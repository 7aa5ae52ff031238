//! `csrc/sm90_dgemm`: f64 on tensor cores, TMA.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::pipeline::f64_per_us;
use crate::cost::{memory_us, overlapped, roofline_us};
use crate::kernel::{Case, ElementCost, Family, KernelDesc, SumOrder};

fitted! {
    Sm90Dgemm {
        /// The launch with the first tile's loads, beside the card's overlapped launch.
        launch_us: f64 = "us", -1.7 to 10.0;
        /// The share of the rate at the full clock that tiles of 128 and of 64 rows reach.
        efficiency: [f64; 2] = "", 0.3 to 1.0;
        /// The epilogues' time.
        edge_k: [f64; 2] = "steps of K", 0.0 to 300.0;
        /// Epilogues, for each element of D: an activation's instruction, a bias before an activation, `beta * C`, unaligned rows.
        epilogue_ns: [f64; 4] = "ns", 0.0 to 10.0;
    }
}

impl Family for Sm90Dgemm {
    fn sums(&self, _: &KernelDesc, _: &Config) -> Option<SumOrder> {
        Some(SumOrder::Chain)
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let [rows, columns, depth] = case.kernel.tile.map(|x| x as usize);
        let kind = usize::from(rows == 64);
        let sms = device.sm_count as usize;
        let tiles = problem.m.div_ceil(rows) * problem.n.div_ceil(columns) * problem.batch_count();
        let k = problem.k.next_multiple_of(depth) as f64 + self.edge_k[kind];
        let peak = f64_per_us(device) / sms as f64;
        let arithmetic = 2.0 * (tiles.div_ceil(sms) * rows * columns) as f64 * k / (peak * self.efficiency[kind]);
        let us =
            device.model.overlapped_launch_us + self.launch_us + overlapped(&[arithmetic, memory_us(problem, device)]);
        us.max(roofline_us(problem, device))
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost::of(self.epilogue_ns)
    }
}
