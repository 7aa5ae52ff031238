//! The families of kernels. Each family has its limits, configurations, workspace and estimate here. `csrc/<family>`
//! has the device code and the rows of the table.

use crate::arch::Arch;
use crate::config::Config;
use crate::kernel::{Case, Extent, Family, Fusion, Gating, Grouping, KernelDesc, Limits, Math, Role, Room, Tiles};
use crate::problem::{Format, Layout, Types};

pub(crate) mod card;
mod cublas;
pub(crate) mod data;
pub(crate) mod facts;
pub(crate) mod fitted;
mod fp8;
mod gemv;
mod gevm;
mod gguf;
mod gguf_gemv;
mod gguf_grouped_gemv;
pub(crate) mod model;
mod narrow;
mod narrow_gemv;
mod narrow_grouped_gemm;
mod outer;
mod reference;
mod simt_gemm;
mod sm100_gemm;
mod sm80_gemm;
mod sm80_grouped_gemm;
mod sm90_bf16x6;
mod sm90_bf16x6_direct;
mod sm90_dgemm;
mod sm90_few_rows;
mod sm90_fp8_few_rows;
mod sm90_fp8_gemm;
mod sm90_fp8_grouped_gemm;
mod sm90_gated;
mod sm90_gemm;
mod sm90_gguf_gemm;
mod sm90_gguf_grouped_gemm;
mod sm90_grouped_gemm;
mod sm90_narrow_gemm;
mod sm90_narrow_grouped_gemm;
mod sm90_sgemm;
mod sm90_tf32;
mod sm90_wave;
mod split_k;
mod tile_gemm;
pub(crate) mod trees;

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The kernel of this name, from the table.
///
/// ```
/// use candle_tilegemm::family::by_name;
/// use candle_tilegemm::kernel::Role;
///
/// assert!(by_name("cublas_bf16_nt").is_some_and(|kernel| kernel.role == Role::Vendor));
/// assert!(by_name("no_such_kernel").is_none());
/// ```
pub fn by_name(name: &str) -> Option<&'static KernelDesc> {
    KERNELS.iter().find(|kernel| kernel.name == name)
}

/// A group that has rows has an entry in the list of units (csrc/experts/unit_list.hpp).
const ENTRY_BYTES: usize = 16;

/// Shared memory of a block on the cards that run the code of the kernel's arch: code for 8.0 also runs on 8.6, which has less. The kernels have the same numbers.
fn bytes_of_block(kernel: &KernelDesc) -> usize {
    1024 * if [90, 100].contains(&kernel.arch.capability) { 227 } else { 99 }
}

/// The configuration with the smallest estimate; there is one at least.
fn fastest(family: &dyn Family, case: &Case, configurations: Vec<Config>) -> Config {
    let timed = configurations.into_iter().map(|config| (family.estimate(case, &config), config));
    timed.min_by(|x, y| x.0.total_cmp(&y.0)).map(|(_, config)| config).unwrap_or_default()
}
