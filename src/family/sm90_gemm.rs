//! `csrc/sm90_gemm`: CUTLASS 3, TMA and WGMMA.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::pipeline::odd_lines;
use crate::cost::tiles::{EpilogueTime, Loads, Tiles};
use crate::kernel::{Case, ElementCost, Family, KernelDesc, SumOrder};

fitted! {
    Sm90Gemm {
        /// Launch, the first loads and the drain, beside the card's overlapped launch.
        launch_us: f64 = "us", -1.7 to 4.0;
        /// Throughput of a multiprocessor between two epilogues, relative to its share of the sustained rate: the cooperative schedule,
        /// which runs at the clock that power allows; ping-pong, with the epilogues' time; and small tiles in long products, which move
        /// more bytes for each product while power sets the clock.
        efficiency: [f64; 3] = "", 0.5 to 1.3;
        /// The epilogue of a tile of the cooperative schedule, in 16 bits; in f32 twice as long.
        tile_us: f64 = "us", 0.0 to 10.0;
        /// The time of a ping-pong tile beside its products, for each column, in 16 bits.
        column_us: f64 = "us", 0.0 to 0.1;
        /// The share of the last epilogue of ping-pong tiles that nothing hides.
        last: f64 = "", 0.0 to 1.0;
        /// Shares of L2's rate to all multiprocessors, and to one multiprocessor that has a single tile.
        l2: [f64; 2] = "", 0.2 to 1.2;
        /// The time of loads from L2 of lines at odd multiples of 32 bytes, and of 16, over that of other lines.
        odd: [f64; 2] = "", 1.0 to 3.0;
        /// Memory time over the time of one pass.
        memory: f64 = "", 1.0 to 2.0;
        /// Epilogues, for each element of D: an activation's instruction, a bias before an activation, `beta * C`, unaligned rows.
        epilogue_ns: [f64; 4] = "ns", 0.0 to 10.0;
    }
}

impl Family for Sm90Gemm {
    fn sums(&self, _: &KernelDesc, _: &Config) -> Option<SumOrder> {
        Some(SumOrder::Wgmma)
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let [tile_m, tile_n, _] = case.kernel.tile;
        let [cooperative, pingpong, long] = self.efficiency;
        let stores = case.problem.d.format.bits() / 16.0;
        let after = EpilogueTime::After(self.tile_us * stores);
        let (efficiency, epilogue) = match case.kernel.schedule {
            "pingpong" => (pingpong, EpilogueTime::Beside(self.column_us * stores * f64::from(tile_n), self.last)),
            _ if Tiles::waves(case, false) >= 3.0 && tile_m * tile_n < 40_000 => (long, after),
            _ => (cooperative, after),
        };
        let odd = odd_lines(case.problem, self.odd);
        let tiles = Tiles {
            shares_tile: false,
            efficiency,
            epilogue,
            cut_off: 0.0,
            loads: Loads { l2: self.l2[0] / odd, single: self.l2[1] / odd, memory: self.memory },
        };
        case.device.model.overlapped_launch_us + self.launch_us + tiles.us(case)
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost::of(self.epilogue_ns)
    }
}
