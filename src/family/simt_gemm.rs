//! `csrc/simt_gemm`: CuTe, f32 on the FMA units.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::tiles::{self, EpilogueTime, Loads};
use crate::kernel::{Case, Family, KernelDesc, Limits, SumOrder, Tiles};
use crate::problem::Problem;

fitted! {
    SimtGemm {
        /// Throughput of a multiprocessor between two epilogues, relative to its share of the sustained rate.
        efficiency: f64 = "", 0.3 to 1.3;
        /// The epilogue of a tile, where nothing hides the epilogue.
        epilogue_us: f64 = "us", 0.0 to 20.0;
        /// Shares of L2's rate to all multiprocessors, and to one multiprocessor that has a single tile.
        l2: [f64; 2] = "", 0.2 to 1.2;
        /// Memory time over the time of one pass.
        memory: f64 = "", 1.0 to 2.0;
    }
}

impl Family for SimtGemm {
    /// A product that is added to its own result is limited to one launch, because a later launch may fail.
    fn limits(&self, kernel: &KernelDesc, problem: &Problem) -> Limits {
        let of_batch = problem.epilogue.in_place;
        Limits { tiles: kernel.limits.tiles.map(|tiles| Tiles { of_batch, ..tiles }), ..kernel.limits }
    }

    fn sums(&self, _: &KernelDesc, _: &Config) -> Option<SumOrder> {
        Some(SumOrder::Chains64)
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let tiles = tiles::Tiles {
            shares_tile: false,
            efficiency: self.efficiency,
            epilogue: EpilogueTime::After(self.epilogue_us),
            cut_off: 0.0,
            loads: Loads { l2: self.l2[0], single: self.l2[1], memory: self.memory },
        };
        case.device.model.launch_us + tiles.us(case)
    }
}
