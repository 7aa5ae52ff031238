//! The functions, with the parameters that mistralrs-quant 0.8.1 declares (`src/blockwise_fp8/ffi.rs` and `src/mxfp4/ffi.rs` there). Streams are
//! handles, and codes are bytes.

use half::{bf16, f16};
use std::ffi::{c_int, c_void};

macro_rules! declarations {
    ($number:ty: $matmul:ident $experts:ident; $($mxfp4:ident)*; $($mxfp4_experts:ident)*) => {
        unsafe extern "C" {
            pub fn $matmul(
                input: *const $number,
                weight: *const u8,
                weight_scale: *const f32,
                output: *mut $number,
                m: i32,
                n: i32,
                k: i32,
                scale_row_stride: i32,
                block_size_y: i32,
                block_size_x: i32,
                stream: *mut c_void,
            );
            pub fn $experts(
                input: *const $number,
                weights: *const u8,
                weight_scales: *const f32,
                indices: *const u32,
                output: *mut $number,
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
            );
            $(pub fn $mxfp4(
                input: *const $number,
                weight: *const u8,
                weight_scale: *const u8,
                bias: *const $number,
                output: *mut $number,
                m: i32,
                n: i32,
                k: i32,
                has_bias: bool,
                stream: *mut c_void,
            );)*
            $(pub fn $mxfp4_experts(
                input: *const $number,
                weights: *const u8,
                weight_scales: *const u8,
                biases: *const $number,
                indices: *const u32,
                output: *mut $number,
                num_tokens: i32,
                topk: i32,
                num_experts: i32,
                n: i32,
                k: i32,
                has_bias: bool,
                input_has_topk_dim: bool,
                stream: *mut c_void,
            );)*
        }
    };
}

declarations! {
    f16: launch_fp8_matmul_f16 launch_fp8_indexed_moe_gemm_f16;
    launch_mxfp4_matmul_f16 launch_mxfp4_matmul_wmma_f16;
    launch_mxfp4_indexed_moe_gemm_f16 launch_mxfp4_moe_grouped_gemm_f16 launch_mxfp4_moe_grouped_gemm_wmma_f16
}
declarations! {
    bf16: launch_fp8_matmul_bf16 launch_fp8_indexed_moe_gemm_bf16;
    launch_mxfp4_matmul_bf16 launch_mxfp4_matmul_wmma_bf16;
    launch_mxfp4_indexed_moe_gemm_bf16 launch_mxfp4_moe_grouped_gemm_bf16 launch_mxfp4_moe_grouped_gemm_wmma_bf16
}

unsafe extern "C" {
    pub fn mxfp4_get_max_smem_optin() -> c_int;
}
