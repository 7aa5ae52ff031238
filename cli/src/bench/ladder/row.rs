//! A row of the ladder.

use crate::Result;
use serde::{Deserialize, Serialize};

/// Largest |d - reference| over the root mean square that f32 sums of 4096 products explain. Tensor cores truncate, so
/// the tolerance is far more than f32 needs. The tolerance is far less than the error of a missing step of 16 along K.
const TOLERANCE: f64 = 1e-3;

/// One rung at one size: `size` rows, columns and products per sum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub size: usize,
    pub rung: String,
    /// The idea that the rung adds to the rung before.
    pub why: String,
    /// M, N, K of the block that is computed from operands loaded once. `None` for cuBLAS, whose tile is unknown.
    pub tile: Option<[u32; 3]>,
    /// The least time by the ceilings.
    pub roof_us: f64,
    /// Time with operands in DRAM. `None` for CPU loops.
    pub cold_us: Option<f64>,
    /// Time with one copy of the operands, which stays in the L2 cache where the copy fits.
    pub hot_us: f64,
    /// Largest difference to the reference over the reference's root mean square.
    pub err: f64,
    /// The number of rows of D that a CPU loop computed; the time is scaled up.
    pub cpu_rows: Option<usize>,
}

impl Row {
    pub fn flops(&self) -> f64 {
        2.0 * (self.size as f64).powi(3)
    }

    pub fn tflops(&self, us: f64) -> f64 {
        self.flops() / us / 1e6
    }

    /// FLOP per byte of f16 operands that a block loads.
    pub fn intensity(&self) -> Option<f64> {
        let [m, n, _] = self.tile?.map(f64::from);
        Some(m * n / (m + n))
    }
}

/// Refuses a rung with a larger error than sums in f32 have.
pub fn within_tolerance(name: &str, size: usize, err: f64) -> Result {
    if err <= TOLERANCE {
        return Ok(());
    }
    Err(format!("{name} is wrong at {size}^3: it is off by {err:.1e} of the result's mean, {TOLERANCE:.0e} is allowed")
        .into())
}
