//! The functions of `mxfp4_gemm.o` and `mxfp4_gemm_wmma.o`. Those of one kind differ by the kernels that mistralrs has for few and for many rows.
//!
//! A power of two of 0 is 2^-127 and of 255 NaN, as the format has them; mistralrs's kernels make 0 and infinity of these.

use super::declared;
use super::experts::Experts;
use super::product::Product;
use super::weights::{Factors, Weights};
use crate::interpose::define::define;
use crate::problem::Format;
use std::ffi::{c_int, c_void};
use std::ptr::null;

const _: unsafe extern "C" fn() -> c_int = declared::mxfp4_get_max_smem_optin;

/// The bytes of shared memory into which lists of tokens have to fit; else mistralrs loops over the experts on the host. Our kernels have no such lists.
#[unsafe(no_mangle)]
pub extern "C" fn mxfp4_get_max_smem_optin() -> c_int {
    c_int::MAX
}

/// Defines functions for activations in one format.
macro_rules! of_format {
    ($format:ident, $number:ty: $($matmul:ident)*; $($experts:ident)*) => {
        $(define! {
            /// y = x W^T + bias, of M x K and N x K.
            declared: fn $matmul(
                x: *const $number,
                weight: *const u8,
                weight_scale: *const u8,
                bias: *const $number,
                y: *mut $number,
                m: i32,
                n: i32,
                k: i32,
                has_bias: bool,
                stream: *mut c_void,
            ) => Product {
                name: stringify!($matmul),
                x: x.cast(),
                weights: Weights {
                    codes: weight.cast(),
                    factors: weight_scale.cast(),
                    sizes: [n, k],
                    of: Factors::PowersOfTwo,
                },
                bias: if has_bias { bias.cast() } else { null() },
                y: y.cast(),
                rows: m,
                format: Format::$format,
                stream,
            }
        })*

        $(define! {
            /// Row (t, j) of y, of N numbers, is row t of x, or row (t, j) where `input_has_topk_dim`, times the weights of expert `indices[t, j]`, and its bias. Where
            /// there is no such expert, the row is zeros: mistralrs leaves the zeros that it has allocated.
            declared: fn $experts(
                x: *const $number,
                weights: *const u8,
                weight_scales: *const u8,
                biases: *const $number,
                indices: *const u32,
                y: *mut $number,
                num_tokens: i32,
                topk: i32,
                num_experts: i32,
                n: i32,
                k: i32,
                has_bias: bool,
                input_has_topk_dim: bool,
                stream: *mut c_void,
            ) => Experts {
                name: stringify!($experts),
                x: x.cast(),
                weights: Weights {
                    codes: weights.cast(),
                    factors: weight_scales.cast(),
                    sizes: [n, k],
                    of: Factors::PowersOfTwo,
                },
                biases: if has_bias { biases.cast() } else { null() },
                indices,
                y: y.cast(),
                counts: [num_tokens, topk, num_experts],
                has_rows_of_pairs: input_has_topk_dim,
                format: Format::$format,
                stream,
            }
        })*
    };
}

of_format! {
    F16, half::f16: launch_mxfp4_matmul_f16 launch_mxfp4_matmul_wmma_f16;
    launch_mxfp4_indexed_moe_gemm_f16 launch_mxfp4_moe_grouped_gemm_f16 launch_mxfp4_moe_grouped_gemm_wmma_f16
}
of_format! {
    BF16, half::bf16: launch_mxfp4_matmul_bf16 launch_mxfp4_matmul_wmma_bf16;
    launch_mxfp4_indexed_moe_gemm_bf16 launch_mxfp4_moe_grouped_gemm_bf16 launch_mxfp4_moe_grouped_gemm_wmma_bf16
}
