//! `csrc/tile_gemm`: cuTile C++.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::tiles::{EpilogueTime, Loads, Tiles};
use crate::kernel::{Case, ElementCost, Family, KernelDesc, Rejection, SumOrder};
use crate::problem::Problem;

fitted! {
    TileGemm {
        /// Throughput of a multiprocessor between two epilogues, relative to its share of the sustained rate.
        efficiency: f64 = "", 0.3 to 1.3;
        /// The epilogue of a tile.
        tile_us: f64 = "us", 0.0 to 10.0;
        /// Masked loads of a tile that extends past D, as a share of a tile's time.
        cut_off: f64 = "", 0.0 to 3.0;
        /// Shares of L2's rate to all multiprocessors, and to one multiprocessor that has a single tile.
        l2: [f64; 2] = "", 0.2 to 1.2;
        /// Memory time over the time of one pass.
        memory: f64 = "", 1.0 to 2.0;
        /// Epilogues, for each element of D: an activation's instruction, a bias before an activation, `beta * C`, unaligned rows.
        epilogue_ns: [f64; 4] = "ns", 0.0 to 10.0;
    }
}

impl Family for TileGemm {
    /// Other families support a C whose rows overlap.
    fn supports(&self, _: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        match problem.epilogue.c.is_some_and(|c| c.row_stride <= 0) {
            true => Err(Rejection::Overlap { operand: "C" }),
            false => Ok(()),
        }
    }

    fn sums(&self, kernel: &KernelDesc, config: &Config) -> Option<SumOrder> {
        Some(SumOrder::Row { kernel: kernel.name, config: *config })
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let tiles = Tiles {
            shares_tile: true,
            efficiency: self.efficiency,
            epilogue: EpilogueTime::After(self.tile_us),
            cut_off: self.cut_off,
            loads: Loads { l2: self.l2[0], single: self.l2[1], memory: self.memory },
        };
        case.device.model.launch_us + tiles.us(case)
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost::of(self.epilogue_ns)
    }
}
