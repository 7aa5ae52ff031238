//! The option `--f32`.

use crate::failure::Result;
use crate::words::words;
use candle_tilegemm::F32Mode;

/// The exactness of f32 products.
#[derive(clap::Args)]
pub struct F32 {
    /// Exactness of f32 products: no more error than cuBLAS SGEMM, fused multiply-adds only, or TF32 [default: TILEGEMM_F32, else accurate]
    #[arg(long = "f32", value_name = "MODE", value_parser = words(F32Mode::ALL.map(|mode| (mode.name(), mode))))]
    pub mode: Option<F32Mode>,
}

impl F32 {
    /// The mode of this process: the requested mode, else the environment's.
    pub fn mode(&self) -> Result<F32Mode> {
        Ok(self.mode.map_or_else(candle_tilegemm::f32_mode, Ok)?)
    }
}
