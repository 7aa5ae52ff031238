pub mod arch;
pub mod cost;
#[cfg(feature = "candle")]
mod cpu;
#[cfg(all(feature = "candle", feature = "cuda"))]
mod cuda;
pub mod dispatch;
mod display;
mod epilogue;
pub mod error;
#[cfg(feature = "cuda")]
mod ffi;
#[cfg(feature = "candle")]
mod gemm_op;
#[cfg(feature = "interpose")]
pub mod interpose;
pub mod kernel;
#[cfg(feature = "cuda")]
pub mod launch;
#[cfg(feature = "candle")]
pub mod nn;
#[cfg(feature = "candle")]
mod op;
mod operand;
pub mod problem;
pub mod stats;
#[cfg(feature = "cuda")]
mod vendor;

pub use error::{Error, Result};
#[cfg(feature = "candle")]
pub use op::{Gemm, GemmExt};
pub use problem::{Activation, DType, F32Mode, Layout, Problem};
