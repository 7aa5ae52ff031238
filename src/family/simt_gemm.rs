//! `csrc/simt_gemm`: CuTe, f32 on the FMA units.

use crate::config::Config;
use crate::cost::tiles::{EpilogueTime, Tiles};
use crate::cost::LAUNCH_US;
use crate::kernel::{Case, Family, KernelDesc, Limits, INT};
use crate::problem::Problem;

/// What a tile's epilogue takes where nothing hides it, microseconds: fits nine products with K from 64 to 4096 within 8 %.
const TILES: Tiles = Tiles { shares_tile: false, efficiency: 0.90, epilogue: EpilogueTime::After(5.0), cut_off: 0.0 };

pub(crate) struct SimtGemm;

impl Family for SimtGemm {
    fn limits(&self, kernel: &KernelDesc, problem: &Problem) -> Limits {
        let tile = [kernel.tile[0], kernel.tile[1]].map(|side| side as usize);
        let limits = Limits { k: INT, any_strides: true, aligned: [true, true, false, false], ..Limits::NONE };
        match problem.epilogue.in_place {
            // A product that is added to its own result takes one launch: a later one may fail.
            true => limits.tiles_of_batch(tile, INT),
            false => limits.tiles_of_matrix(tile, INT),
        }
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        LAUNCH_US + TILES.us(case)
    }
}
