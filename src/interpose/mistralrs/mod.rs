//! The kernels of mistralrs 0.8.1 for weights in fp8 with factors of blocks (`BlockwiseFP8Linear`) and in MXFP4 (`MXFP4Layer`), defined here in place
//! of mistralrs's own.
//!
//! mistralrs-quant has an object for each of its .cu files in a static archive. `blockwise_fp8_gemm.o` has four functions, `mxfp4_gemm.o` seven and
//! `mxfp4_gemm_wmma.o` four. All functions of an object are defined here, so that the object is not in the program; a part of them would be an error
//! of the link. The crate is no dependency of this one: `declared` has its declarations. Its build script names the archive without a kind, so that
//! rustc links the archive behind all crates, and ours come first wherever the program names this crate.
//!
//! The functions multiply activations as they come, in f16 or bf16, by weights that a factor multiplies, with sums in f32, and so do our kernels.

mod declared;
mod experts;
mod fp8;
mod mxfp4;
mod product;
mod weights;

use super::define::check;
use std::ptr::{null, null_mut};

check! {
    /// Whether the functions of mistralrs 0.8.1 for weights in fp8 and MXFP4 are this crate's in this program or shared library. Whether the program calls them, it does
    /// not say: [`Stats::mistralrs`](super::Stats::mistralrs) does. The check needs no GPU.
    ///
    /// ```
    /// if !candle_tilegemm::interpose::mistralrs_is_active() {
    ///     eprintln!("mistralrs's weights in fp8 run on another definition");
    /// }
    /// ```
    fn mistralrs_is_active() by declared::launch_fp8_matmul_f16(null(), null(), null(), null_mut(), 0, 0, 0, 0, 1, 1, null_mut()),
    anchor "candle_tilegemm_mistralrs"
}

use fp8::launch_fp8_matmul_f16;

#[cfg(test)]
mod emulation;
#[cfg(test)]
mod tests;
