//! The functions of `blockwise_fp8_gemm.o`.

use super::declared;
use super::experts::Experts;
use super::product::Product;
use super::weights::{Factors, Weights};
use crate::interpose::define::define;
use crate::problem::Format;
use std::ffi::c_void;
use std::ptr::null;

/// Defines the functions for activations in one format.
macro_rules! of_format {
    ($format:ident, $number:ty, $matmul:ident, $experts:ident) => {
        define! {
            /// y = x W^T, of M x K and N x K.
            declared: fn $matmul(
                x: *const $number,
                weight: *const u8,
                weight_scale: *const f32,
                y: *mut $number,
                m: i32,
                n: i32,
                k: i32,
                scale_row_stride: i32,
                block_size_y: i32,
                block_size_x: i32,
                stream: *mut c_void,
            ) => Product {
                name: stringify!($matmul),
                x: x.cast(),
                weights: Weights {
                    codes: weight.cast(),
                    factors: weight_scale.cast(),
                    sizes: [n, k],
                    of: Factors::Blocks { block: [block_size_y, block_size_x], stride: scale_row_stride },
                },
                bias: null(),
                y: y.cast(),
                rows: m,
                format: Format::$format,
                stream,
            }
        }

        define! {
            /// Row (t, j) of y, of N numbers, is row t of x, or row (t, j) where `input_has_topk_dim`, times the weights of expert `indices[t, j]`. Where there is no
            /// such expert, the row is zeros: mistralrs leaves the zeros that it has allocated.
            declared: fn $experts(
                x: *const $number,
                weights: *const u8,
                weight_scales: *const f32,
                indices: *const u32,
                y: *mut $number,
                num_tokens: i32,
                topk: i32,
                num_experts: i32,
                n: i32,
                k: i32,
                scale_row_stride: i32,
                block_size_y: i32,
                block_size_x: i32,
                input_has_topk_dim: bool,
                stream: *mut c_void,
            ) => Experts {
                name: stringify!($experts),
                x: x.cast(),
                weights: Weights {
                    codes: weights.cast(),
                    factors: weight_scales.cast(),
                    sizes: [n, k],
                    of: Factors::Blocks { block: [block_size_y, block_size_x], stride: scale_row_stride },
                },
                biases: null(),
                indices,
                y: y.cast(),
                counts: [num_tokens, topk, num_experts],
                has_rows_of_pairs: input_has_topk_dim,
                format: Format::$format,
                stream,
            }
        }
    };
}

of_format!(F16, half::f16, launch_fp8_matmul_f16, launch_fp8_indexed_moe_gemm_f16);
of_format!(BF16, half::bf16, launch_fp8_matmul_bf16, launch_fp8_indexed_moe_gemm_bf16);
