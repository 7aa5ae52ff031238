//! A GEMM backend for [candle](https://docs.rs/candle-core): CUTLASS/CuTe and cuTile C++ kernels behind a dispatcher that
//! says which kernel ran and why.
//!
//! # Ways in
//!
//! **Unmodified models** (feature `interpose`, Linux): one line sends every f16, bf16 and f32 product of the program through the
//! dispatcher. A call that the dispatcher does not take goes to cuBLAS unchanged. See the module `interpose`. The feature
//! `interpose-kernels` does the same with candle's kernels for experts and for quantised weights, `interpose-mistralrs` with those of
//! mistralrs 0.8.1 for fp8 and MXFP4.
//!
//! ```
//! use candle_tilegemm as _;
//! ```
//!
//! **Programs that are already built** (`make preload`, Linux): `LD_PRELOAD=libtilegemm_preload.so` does the same for the products of cuBLAS and cuBLASLt in
//! such programs, PyTorch's for one.
//!
//! **The op**: [`GemmExt::gemm`] is `matmul` for any rank, strides and broadcast batches, without copies. [`Gemm`] adds scale,
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
//! **The layers**: [`nn`] has `Linear` and its constructors with the names and signatures of `candle_nn`. On a GPU `QLinear` needs the feature `gguf`, and
//! [`nn::moe`] and [`GroupedGemm`] need `experts`: these are the features that compile their kernels.
//!
//! **The engine**: [`dispatch`] plans a product, and the module `launch` (feature `cuda`) runs the plan on device pointers. Neither
//! needs candle: with `default-features = false` the crate has no candle in it. `examples/engine` is such a program, with cudarc.
//!
//! # How the dispatcher chooses
//!
//! `csrc/*/family.toml` list the kernels. For a [`Problem`] the [`dispatch::Dispatcher`] finds the kernels that
//! [support](kernel::KernelDesc::supports) the problem, ranks these kernels by an estimate of their time, and keeps the
//! [plan](dispatch::Plan). The vendor library is a row of the same table. Where a measured table (`tilegemm tune`) for the GPU model
//! has an entry, the entry counts instead of the estimate. A choice is arithmetic only and needs no GPU:
//!
//! ```
//! use candle_tilegemm::arch::DeviceInfo;
//! use candle_tilegemm::dispatch::{Dispatcher, Policy};
//! use candle_tilegemm::{Format, Layout, Problem};
//!
//! let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
//! let problem = Problem::dense(2048, 28672, 4096, 1, Layout::NT, Format::BF16);
//! let plan = dispatcher.plan(&problem, Policy::own())?;
//! assert_eq!(plan.kernel.name, "sm90_gemm_bf16_nt_256x160x64_2x1_cooperative");
//! println!("{}", dispatcher.explain(&problem, Policy::default()));
//! # Ok::<(), candle_tilegemm::Error>(())
//! ```
//!
//! # Numerics
//!
//! Products are summed in f32, in f64 for f64, and rounded once, after the epilogue. The result of a kernel is the same from run to run.
//!
//! NaN and Inf propagate as IEEE 754 says, by the same rules in every kernel and on the CPU. Where alpha is 0, A and B are not
//! read, and the product counts as 0. Where beta is 0, C is not read. An [`Activation`] of NaN is NaN, of inf is inf, and of -inf is
//! its limit. Gradients follow the same rules.
//!
//! An [`F32Mode`] states how exact f32 products are. By default the dispatcher takes no kernel with more error than cuBLAS's
//! SGEMM, and uses TF32 only where the caller asks for TF32.
//!
//! # Memory
//!
//! A launch allocates nothing but one [`workspace`] of 128 MiB for each stream whose products need one. [`prepare`] allocates the
//! workspace and loads the kernels beforehand.
//!
//! # Safety
//!
//! The module `launch` launches kernels and cuBLAS. The modules `ffi` and `interpose` are the C boundary. The only other unsafe code
//! is the uninitialised memory of the op's results and copies.

#![deny(missing_docs)]
#![warn(unsafe_op_in_unsafe_fn)]

pub mod arch;
#[cfg(feature = "candle")]
mod candle;
mod config;
mod cost;
pub mod dispatch;
mod display;
mod error;
pub mod family;
#[cfg(feature = "cuda")]
mod ffi;
#[doc(hidden)]
pub mod internal;
#[cfg(feature = "interpose")]
pub mod interpose;
pub mod kernel;
#[cfg(feature = "cuda")]
pub mod launch;
pub mod layer;
pub mod packing;
pub mod problem;
mod settings;
pub mod stats;
#[cfg(feature = "cuda")]
mod stderr;
mod suite;
mod trace;
mod tuning;
pub mod workspace;

// `self::candle` is the folder of this crate, not the dependency.
#[cfg(feature = "candle")]
pub use self::candle::{cublaslt, gguf, nn, prepare, Gemm, GemmExt, GroupedGemm};
pub use config::Config;
pub use error::{Cause, Error, Result};
pub use problem::f32_mode::{f32_mode, set_f32_mode};
pub use problem::{Activation, F32Mode, Format, Layout, Problem};
