//! `csrc/sm90_gemm`: CUTLASS 3, TMA and WGMMA.

use crate::config::Config;
use crate::cost::tiles::{EpilogueTime, Tiles};
use crate::cost::OVERLAPPED_LAUNCH_US;
use crate::kernel::{Case, ElementCost, Family, KernelDesc};

/// An epilogue of the cooperative schedule, 3500 cycles in recordings, microseconds.
const EPILOGUE_US: f64 = 2.2;
/// The time of a ping-pong tile beside its products, microseconds for each column. With K of 64 and 128 this time is
/// the limit (two recordings of 128 x 192, which agree within 10 %).
const PINGPONG_COLUMN_US: f64 = 0.0225;
/// Throughput of a multiprocessor between two epilogues, relative to its share of the sustained peak. At the clock that
/// power allows, tensor cores do more than a whole 8192^3 shows. With ping-pong they do less, because the epilogues'
/// time is included.
const EFFICIENCY: f64 = 1.075;
const PINGPONG_EFFICIENCY: f64 = 0.95;
/// In long products power sets the clock, and a smaller tile moves more bytes for each product: 128 x 256 took 1 to 2 %
/// longer than 256 x 256 from three waves on. With this efficiency, 16 estimates are 1 % too short to 3 % too long.
const LONG_EFFICIENCY: f64 = 1.05;

pub(crate) struct Sm90Gemm;

impl Family for Sm90Gemm {
    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let [tile_m, tile_n, _] = case.kernel.tile;
        let (efficiency, epilogue) = match case.kernel.schedule {
            "pingpong" => (PINGPONG_EFFICIENCY, EpilogueTime::Beside(PINGPONG_COLUMN_US * f64::from(tile_n))),
            _ if Tiles::waves(case, false) >= 3.0 && tile_m * tile_n < 40_000 => {
                (LONG_EFFICIENCY, EpilogueTime::After(EPILOGUE_US))
            }
            _ => (EFFICIENCY, EpilogueTime::After(EPILOGUE_US)),
        };
        OVERLAPPED_LAUNCH_US + Tiles { shares_tile: false, efficiency, epilogue, cut_off: 0.0 }.us(case)
    }

    /// The activation was measured in 16384 x 3072 x 768 of f16; `beta * C` takes 3 us of 2048 x 4096 x 4096 in bf16.
    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost { instruction: 0.009, residual: 0.05, ..ElementCost::default() }
    }
}
