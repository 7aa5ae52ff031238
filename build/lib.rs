//! What the build scripts of `candle-tilegemm` and of its command `tilegemm` share, and what tests check of it: the kernel table, the hash of a kernel's
//! code, the CUDA toolkit, and compilation by nvcc. Semantic versioning does not cover it.

pub mod archs;
pub mod candle_tests;
pub mod cards;
pub mod code;
mod fitted;
pub mod table;
pub mod toolkit;
mod trees;
pub mod tuning;
pub mod units;

/// Whether a Cargo feature of the crate that is built is on.
pub fn has(feature: &str) -> bool {
    std::env::var_os(format!("CARGO_FEATURE_{}", feature.to_uppercase().replace('-', "_"))).is_some()
}

/// Whether device code is compiled: docs.rs has no nvcc, and neither rust-analyzer (which sets the second variable) nor `cargo check` needs it.
pub fn compiles_kernels() -> bool {
    ["DOCS_RS", "RA_RUSTC_WRAPPER", "TILEGEMM_SKIP_KERNELS"].map(toolkit::env).iter().all(Option::is_none)
}
