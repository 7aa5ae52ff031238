//! candle's side: the op and the layers, on the CPU and on GPUs.
//!
//! `crate::candle` is this folder; the files name the dependency as `::candle`.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod experts;
mod gemm_op;
mod lowering;
pub mod nn;
mod op;
mod slope;

pub use op::{prepare, Gemm, GemmExt};
