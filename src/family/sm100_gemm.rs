//! `csrc/sm100_gemm`: data-centre Blackwell, TMA and `tcgen05.mma`.
//!
//! No card has run these kernels. The estimates are made of data sheets and of rates that others have published.

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::tiles::{EpilogueTime, Loads, Tiles};
use crate::kernel::{Case, ElementCost, Family, KernelDesc, SumOrder};

/// Shared memory of a block, and the part of barriers: csrc/sm100_gemm/config.hpp has the same numbers.
const SHARED_BYTES: u32 = 227 * 1024;
const REST_BYTES: u32 = 1024;
/// Parts of D on their way: four warps, 32 rows, 64 columns, in f32.
const PARTS_BYTES: u32 = 4 * 32 * 64 * 4;

fitted! {
    Sm100Gemm {
        /// The launch, the first loads and the drain, beside the card's overlapped launch.
        launch_us: f64 = "us", -1.7 to 5.0;
        /// Throughput between two epilogues, relative to the sustained rate: the rungs from `naive` to `two_ctas`.
        rungs: [f64; 4] = "", 0.05 to 1.3;
        /// The same of persistent blocks: pairs of blocks, and single blocks, whose products shared memory feeds less well.
        efficiency: [f64; 2] = "", 0.2 to 1.3;
        /// The epilogue, for each column of a tile in 16 bits; in f32 twice as long.
        column_us: f64 = "us", 0.0 to 0.1;
        /// Shares of L2's rate to all multiprocessors, and to one multiprocessor that has a single tile.
        l2: [f64; 2] = "", 0.1 to 1.2;
        /// Memory time over the time of one pass.
        memory: f64 = "", 1.0 to 2.0;
        /// Epilogues, for each element of D: an activation's instruction, a bias before an activation, `beta * C`, unaligned rows.
        epilogue_ns: [f64; 4] = "ns", 0.0 to 10.0;
    }
}

impl Family for Sm100Gemm {
    fn shared_bytes(&self, kernel: &KernelDesc) -> u32 {
        let [m, n, _] = kernel.tile;
        let stage = (m + n) / kernel.cluster[0] * 128;
        let parts = if ["naive", "prefetch"].contains(&kernel.schedule) { 0 } else { PARTS_BYTES };
        let stages = if kernel.stages > 0 { kernel.stages } else { (SHARED_BYTES - REST_BYTES - parts) / stage };
        stages * stage + parts + REST_BYTES
    }

    /// The tensor cores add up 32 bytes of K at a time, from the first K to the last. No card has shown that all tiles give the same bits.
    fn sums(&self, kernel: &KernelDesc, config: &Config) -> Option<SumOrder> {
        Some(SumOrder::Row { kernel: kernel.name, config: *config })
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let kernel = case.kernel;
        let columns = f64::from(kernel.tile[1]) * case.problem.d.format.bits() / 16.0;
        let epilogue_us = self.column_us * columns;
        let [naive, prefetch, subtiles, two_ctas] = self.rungs;
        let [pairs, single] = self.efficiency;
        let (efficiency, epilogue) = match kernel.schedule {
            "naive" => (naive, EpilogueTime::After(epilogue_us)),
            "prefetch" => (prefetch, EpilogueTime::After(epilogue_us)),
            "subtiles" => (subtiles, EpilogueTime::After(epilogue_us)),
            "two_ctas" => (two_ctas, EpilogueTime::After(epilogue_us)),
            _ if kernel.cluster[0] > 1 => (pairs, EpilogueTime::Under(epilogue_us)),
            _ => (single, EpilogueTime::Under(epilogue_us)),
        };
        let tiles = Tiles {
            shares_tile: true,
            efficiency,
            epilogue,
            cut_off: 0.0,
            loads: Loads { l2: self.l2[0], single: self.l2[1], memory: self.memory },
        };
        case.device.model.overlapped_launch_us + self.launch_us + tiles.us(case)
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost::of(self.epilogue_ns)
    }

    /// No record shows how exact the estimates are.
    fn lead(&self) -> f64 {
        0.95
    }
}
