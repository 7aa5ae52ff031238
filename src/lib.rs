pub mod arch;
pub mod cost;
pub mod dispatch;
mod display;
pub mod error;
#[cfg(feature = "cuda")]
mod ffi;
pub mod kernel;
#[cfg(feature = "cuda")]
pub mod launch;
pub mod problem;
pub mod stats;
#[cfg(feature = "cuda")]
mod vendor;
