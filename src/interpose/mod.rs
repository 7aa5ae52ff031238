//! Interposition: this module defines the one cuBLAS function that candle calls for f16, bf16 and f32 products. The module needs no candle.
//!
//! candle-core links cuBLAS dynamically and sends every `matmul`, `Linear`, im2col convolution and backward product
//! through `cublasGemmStridedBatchedEx`. A definition in the program itself wins over the shared library's definition,
//! so with
//!
//! ```toml
//! candle-tilegemm = { path = "../candle-tilegemm", features = ["cuda", "sm90", "cutile", "interpose"] }
//! ```
//! ```
//! use candle_tilegemm as _; // a dependency that is never named is not linked
//! ```
//!
//! an unmodified model runs through our dispatcher. Calls outside the interposer's contract go to the real function
//! unchanged. The interposer works on Linux (ELF) only; elsewhere, and where cuBLAS is loaded at run time,
//! [`is_active`] is false and nothing changes.
//!
//! The compute type of a call sets the precision of f32 products. `CUBLAS_COMPUTE_32F_FAST_TF32`, which candle passes
//! after `set_gemm_reduced_precision_f32`, is [`F32Mode::Tf32`](crate::F32Mode::Tf32). `CUBLAS_COMPUTE_32F_PEDANTIC` is
//! [`F32Mode::Strict`](crate::F32Mode::Strict). `CUBLAS_COMPUTE_32F`, candle's default, is the mode of the process
//! ([`set_f32_mode`](crate::set_f32_mode), `TILEGEMM_F32`): `TILEGEMM_F32=tf32` makes these calls TF32, and `strict`
//! keeps these calls to fused multiply-adds. The mode of the process changes no call with one of the other two compute
//! types. A call outside the contract goes to cuBLAS unchanged.
//!
//! A 16-bit product that the dispatcher gives to cuBLAS goes unchanged too, and cuBLAS may add the partial sums in 16
//! bits. [`set_exact_sums`] and `TILEGEMM_EXACT_SUMS=on` ask for sums in f32, as the op has.
//!
//! The feature `interpose-kernels` also defines candle's own kernels: `moe_gemm_wmma`, which `candle_nn::moe::moe_gemm` calls, `moe_gemm_gguf` and
//! `moe_gemm_gguf_prefill`, which `candle_nn::moe::moe_gemm_gguf` calls, and the 46 functions behind `QMatMul` (mmvq, mmq and their quantisation). candle's definitions are then not in the program: every such call runs on our kernels, whatever
//! the [`Mode`] is. The functions return nothing, so a call that cannot run is counted ([`Stats::failed`]), is told once on stderr, and fills the result with NaN.
//! `TILEGEMM_ON_FAILURE=abort` ends the program instead, and is what a server should set.
//!
//! The feature `interpose-mistralrs` does the same with the functions of mistralrs 0.8.1 for weights in fp8 with factors of blocks, and in MXFP4.
//!
//! The feature `preload` also defines the other matrix products of cuBLAS and `cublasLtMatmul`. The library of `preload/`, for programs that are already
//! built, has this feature.
//!
//! `TILEGEMM=off|on|force|trace` sets the [`Mode`]; [`stats`] counts the outcomes of the calls. `trace` also writes the
//! products to a benchmark suite: `TILEGEMM_TRACE` names the file; the default is `tilegemm-trace.toml` in the working
//! folder.

mod arguments;
#[cfg(feature = "preload")]
mod blas;
mod count;
mod cublas;
mod define;
#[cfg(feature = "interpose-kernels")]
mod experts;
mod failure;
#[cfg(feature = "interpose-kernels")]
mod gguf;
#[cfg(feature = "interpose-kernels")]
mod gguf_experts;
#[cfg(any(feature = "interpose-kernels", feature = "interpose-mistralrs"))]
mod kernels;
#[cfg(feature = "preload")]
mod lt;
#[cfg(feature = "preload")]
mod lt_factors;
#[cfg(feature = "preload")]
mod lt_header;
#[cfg(feature = "interpose-mistralrs")]
mod mistralrs;
mod mode;
#[cfg(feature = "preload")]
mod report;
mod symbol;
mod tell;
mod vendor;

pub use count::{stats, Forwarded, Stats};
pub use cublas::is_active;
#[cfg(feature = "interpose-kernels")]
pub use experts::experts_are_active;
#[cfg(feature = "interpose-kernels")]
pub use gguf::gguf_is_active;
#[cfg(feature = "interpose-kernels")]
pub use gguf_experts::gguf_experts_are_active;
#[cfg(feature = "interpose-mistralrs")]
pub use mistralrs::mistralrs_is_active;
#[doc(hidden)]
pub use mode::set_dry_run;
pub use mode::{exact_sums, mode, set_exact_sums, set_mode, trace_to, Mode};
#[cfg(feature = "preload")]
#[doc(hidden)]
pub use report::report_at_exit;
