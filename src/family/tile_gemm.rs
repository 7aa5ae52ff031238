//! `csrc/tile_gemm`: cuTile C++.

use crate::config::Config;
use crate::cost::tiles::{EpilogueTime, Tiles};
use crate::cost::LAUNCH_US;
use crate::kernel::{Case, ElementCost, Family, KernelDesc, Rejection};
use crate::problem::Problem;

/// An epilogue takes 3500 cycles in recordings. cuTile masks every load of a tile that extends past D.
const TILES: Tiles = Tiles { shares_tile: true, efficiency: 1.055, epilogue: EpilogueTime::After(2.2), cut_off: 0.6 };

pub(crate) struct TileGemm;

impl Family for TileGemm {
    /// Other families support a C whose rows overlap.
    fn supports(&self, _: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        match problem.epilogue.c.is_some_and(|c| c.row_stride <= 0) {
            true => Err(Rejection::Overlap { operand: "C" }),
            false => Ok(()),
        }
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        LAUNCH_US + TILES.us(case)
    }

    /// The activation's time is a prediction. `beta * C` takes 13 us of 2048 x 4096 x 4096 in bf16.
    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost { instruction: 0.02, residual: 0.2, ..ElementCost::default() }
    }
}
