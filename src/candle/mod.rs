//! candle's side: the op and the layers, on the CPU and on GPUs.
//!
//! `crate::candle` is this folder; the files name the dependency as `::candle`.

mod activation;
mod block_numbers;
pub(crate) mod blocks;
mod cpu;
pub mod cublaslt;
#[cfg(feature = "cuda")]
mod cuda;
mod gated;
mod gates;
mod gemm_op;
pub mod gguf;
mod grouped_gemm;
mod into;
mod lowering;
pub mod nn;
mod numbers;
mod op;
mod qweights;
mod routing;
mod scaled;
mod tensors;

pub use grouped_gemm::GroupedGemm;
pub use op::{prepare, Gemm, GemmExt};
