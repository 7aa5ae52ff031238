//! A GEMM backend for [candle](https://docs.rs/candle-core): CUTLASS/CuTe and cuTile C++ kernels behind a dispatcher that
//! says which kernel ran and why.
//!
//! # Three ways in
//!
//! **Unmodified models** (feature `interpose`, Linux): one line, and every f16, bf16 and f32 product of the program goes
//! through the dispatcher. What it does not take goes to cuBLAS as it came. See the module `interpose`.
//!
//! ```
//! use candle_tilegemm as _;
//! ```
//!
//! **The op**: [`GemmExt::gemm`] is `matmul` for any rank, strides and broadcast batches, without copies; [`Gemm`] adds scale,
//! bias, activation and residual.
//!
//! ```
//! # #[cfg(feature = "candle")]
//! # fn main() -> candle::Result<()> {
//! use candle::{Device, Tensor};
//! use candle_tilegemm::{Activation, Gemm, GemmExt};
//!
//! let x = Tensor::randn(0f32, 1f32, (4, 64), &Device::Cpu)?;
//! let w = Tensor::randn(0f32, 1f32, (32, 64), &Device::Cpu)?;
//! let plain = x.gemm(&w.t()?)?;
//! let activated = Gemm::new().activation(Activation::GeluErf).forward(&x, &w.t()?)?;
//! assert_eq!(plain.dims(), activated.dims());
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "candle"))]
//! # fn main() {}
//! ```
//!
//! **The layers**: [`nn`] has `Linear` and its constructors with the names and signatures of `candle_nn`.
//!
//! # How it chooses
//!
//! `csrc/*/family.toml` list the kernels. For a [`Problem`] the [`dispatch::Dispatcher`] asks each of them whether it
//! [supports](kernel::KernelDesc::supports) it, ranks those that do by an [estimate](cost::estimate_us), and keeps the
//! [plan](dispatch::Plan). The vendor library is a row of the same table. Where a [measured table](tuning) for the GPU model
//! has an entry, that counts instead of the estimate. That is arithmetic only, so it works without a GPU:
//!
//! ```
//! use candle_tilegemm::arch::DeviceInfo;
//! use candle_tilegemm::dispatch::{Dispatcher, Policy};
//! use candle_tilegemm::{DType, Layout, Problem};
//!
//! let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
//! let problem = Problem::dense(2048, 28672, 4096, 1, Layout::NT, DType::BF16);
//! let plan = dispatcher.plan(&problem, Policy::own())?;
//! assert_eq!(plan.kernel.name, "sm90_gemm_bf16_nt_256x160x64_2x1_cooperative");
//! println!("{}", dispatcher.explain(&problem, Policy::default()));
//! # Ok::<(), candle_tilegemm::Error>(())
//! ```
//!
//! # Numerics
//!
//! Products are summed in f32, in f64 for f64, and rounded once. The result of a kernel is the same from run to run.
//!
//! NaN and Inf propagate as IEEE 754 has it, by the same rules in every kernel and on the CPU: A and B are not read where alpha
//! is 0, and the product counts as 0; C is not read where beta is 0; an [`Activation`] of NaN is NaN, of inf inf, and of -inf its
//! limit. Gradients follow the same rules.
//!
//! How exact f32 products are is an [`F32Mode`]: by default no
//! kernel is taken whose error is above that of cuBLAS's SGEMM, and TF32 is only used where it is asked for.
//!
//! # Memory
//!
//! A launch allocates nothing, but for one [`workspace`] of 128 MiB on each stream that f32 products need it on; [`prepare`]
//! allocates it and loads the kernels beforehand.
//!
//! # Safety
//!
//! Kernels and cuBLAS are launched in the module `launch`, the C boundary is in `ffi` and `interpose`; there is no unsafe code
//! elsewhere but for the uninitialised result of the op.

#![warn(missing_docs, unsafe_op_in_unsafe_fn)]

pub mod arch;
#[cfg(feature = "candle")]
mod candle;
mod config;
pub mod cost;
pub mod dispatch;
mod display;
pub mod error;
pub mod family;
#[cfg(feature = "cuda")]
mod ffi;
#[cfg(feature = "interpose")]
pub mod interpose;
pub mod kernel;
#[cfg(feature = "cuda")]
pub mod launch;
mod partition;
pub mod problem;
pub mod settings;
pub mod stats;
#[cfg(any(feature = "cli", feature = "interpose"))]
pub mod suite;
#[cfg(any(feature = "cli", feature = "interpose"))]
pub mod trace;
pub mod tuning;
pub mod workspace;

// Not the dependency `candle`, but the folder of this crate.
#[cfg(feature = "candle")]
pub use self::candle::{nn, prepare, Gemm, GemmExt};
pub use config::Config;
pub use error::{Error, Result};
pub use problem::f32_mode::{f32_mode, set_f32_mode};
pub use problem::{Activation, DType, F32Mode, Layout, Problem};
