//! The one cuBLAS function that candle calls for f16, bf16 and f32 products, defined here instead.
//!
//! candle-core links cuBLAS dynamically and sends every `matmul`, `Linear`, im2col convolution and backward product through
//! `cublasGemmStridedBatchedEx`. A definition in the program itself wins over that of the shared library, so with
//!
//! ```toml
//! candle-tilegemm = { version = "0.1", features = ["cuda", "sm90", "cutile", "interpose"] }
//! ```
//! ```
//! use candle_tilegemm as _; // a dependency that is never named is not linked
//! ```
//!
//! an unmodified model runs through our dispatcher. Calls that we do not take go to the real function as they came. Linux
//! (ELF) only; elsewhere, and where cuBLAS is loaded at run time, [`is_active`] is false and nothing changes.
//!
//! What f32 products have to be is in the compute type of a call: `CUBLAS_COMPUTE_32F_FAST_TF32`, which candle passes where
//! `set_gemm_reduced_precision_f32` asks for it, is [`F32Mode::Tf32`](crate::F32Mode::Tf32), and `CUBLAS_COMPUTE_32F_PEDANTIC` is
//! [`F32Mode::Strict`](crate::F32Mode::Strict). The mode of the process ([`set_f32_mode`](crate::set_f32_mode), `TILEGEMM_F32`) is
//! what `CUBLAS_COMPUTE_32F` means, which candle passes else: `TILEGEMM_F32=tf32` makes those calls TF32 and `strict` keeps them to
//! fused multiply-adds, and neither changes a call that says itself what it wants. A call that goes to cuBLAS outside of the
//! contract goes as it came.
//!
//! Products of 16 bits that the dispatcher gives to cuBLAS go as they came, too, and cuBLAS may add their partial sums in 16 bits.
//! [`set_exact_sums`] and `TILEGEMM_EXACT_SUMS=on` ask for sums in f32, which is what the op has.
//!
//! `TILEGEMM=off|on|force|trace` sets the [`Mode`]; [`stats`] counts what happened to the calls. `trace` also writes the
//! products to a benchmark suite: `TILEGEMM_TRACE` names the file, else it is `tilegemm-trace.toml` in the working folder.

mod arguments;
mod count;
mod cublas;
mod failure;
mod mode;
mod tell;

pub use count::{stats, Forwarded, Stats};
pub use cublas::is_active;
#[doc(hidden)]
pub use mode::set_dry_run;
pub use mode::{exact_sums, mode, set_exact_sums, set_mode, trace_to, Mode};
