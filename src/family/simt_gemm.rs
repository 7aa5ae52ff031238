//! `csrc/simt_gemm`: CuTe, f32 on the FMA units.

use crate::config::Config;
use crate::cost::tiles::{self, EpilogueTime};
use crate::cost::LAUNCH_US;
use crate::kernel::{Case, Family, KernelDesc, Limits, Tiles};
use crate::problem::Problem;

/// The epilogue time of a tile, where nothing hides the epilogue, microseconds: fits nine products with K from 64 to
/// 4096 within 8 %.
const TILES: tiles::Tiles =
    tiles::Tiles { shares_tile: false, efficiency: 0.90, epilogue: EpilogueTime::After(5.0), cut_off: 0.0 };

pub(crate) struct SimtGemm;

impl Family for SimtGemm {
    /// A product that is added to its own result is limited to one launch, because a later launch may fail.
    fn limits(&self, kernel: &KernelDesc, problem: &Problem) -> Limits {
        let of_batch = problem.epilogue.in_place;
        Limits { tiles: kernel.limits.tiles.map(|tiles| Tiles { of_batch, ..tiles }), ..kernel.limits }
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        LAUNCH_US + TILES.us(case)
    }
}
