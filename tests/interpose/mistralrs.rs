//! The functions of mistralrs 0.8.1, called with the parameters that it declares. A call that is no product says what has arrived.

use candle_tilegemm::interpose;
use half::{bf16, f16};
use std::ffi::c_void;
use std::process::Command;
use std::ptr::{null, null_mut};

macro_rules! declare {
    ($number:ty: $matmul:ident $experts:ident; $($mxfp4:ident)*; $($mxfp4_experts:ident)*) => {
        #[rustfmt::skip]
        unsafe extern "C" {
            fn $matmul(input: *const $number, weight: *const u8, weight_scale: *const f32, output: *mut $number, m: i32, n: i32, k: i32,
                scale_row_stride: i32, block_size_y: i32, block_size_x: i32, stream: *mut c_void);
            fn $experts(input: *const $number, weights: *const u8, weight_scales: *const f32, indices: *const u32, output: *mut $number,
                num_tokens: i32, topk: i32, num_experts: i32, n: i32, k: i32, scale_row_stride: i32, block_size_y: i32, block_size_x: i32,
                input_has_topk_dim: bool, stream: *mut c_void);
            $(fn $mxfp4(input: *const $number, weight: *const u8, weight_scale: *const u8, bias: *const $number, output: *mut $number, m: i32,
                n: i32, k: i32, has_bias: bool, stream: *mut c_void);)*
            $(fn $mxfp4_experts(input: *const $number, weights: *const u8, weight_scales: *const u8, biases: *const $number,
                indices: *const u32, output: *mut $number, num_tokens: i32, topk: i32, num_experts: i32, n: i32, k: i32, has_bias: bool,
                input_has_topk_dim: bool, stream: *mut c_void);)*
        }
    };
}

declare! {
    f16: launch_fp8_matmul_f16 launch_fp8_indexed_moe_gemm_f16;
    launch_mxfp4_matmul_f16 launch_mxfp4_matmul_wmma_f16;
    launch_mxfp4_indexed_moe_gemm_f16 launch_mxfp4_moe_grouped_gemm_f16 launch_mxfp4_moe_grouped_gemm_wmma_f16
}
declare! {
    bf16: launch_fp8_matmul_bf16 launch_fp8_indexed_moe_gemm_bf16;
    launch_mxfp4_matmul_bf16 launch_mxfp4_matmul_wmma_bf16;
    launch_mxfp4_indexed_moe_gemm_bf16 launch_mxfp4_moe_grouped_gemm_bf16 launch_mxfp4_moe_grouped_gemm_wmma_bf16
}
unsafe extern "C" {
    fn mxfp4_get_max_smem_optin() -> i32;
}

/// In the process that makes the calls.
const CALLS: &str = "TEST_CALLS_OF_MISTRALRS";

/// Calls each function with numbers that differ. A negative number of rows or tokens is no product, so that no call reaches a GPU, or writes.
#[test]
fn calls_as_mistralrs_makes_them() {
    if std::env::var_os(CALLS).is_none() {
        return;
    }
    let (x, y, none) = (null(), null_mut(), null_mut());
    // SAFETY: the definitions read and write nothing for calls that are no products.
    unsafe {
        launch_fp8_matmul_f16(x, null(), null(), y, -3, 5, 7, 11, 13, 17, none);
        launch_fp8_matmul_bf16(null(), null(), null(), null_mut(), -4, 5, 7, 11, 13, 17, none);
        launch_fp8_indexed_moe_gemm_f16(x, null(), null(), null(), y, -3, 2, 19, 5, 7, 11, 13, 17, true, none);
        let y = null_mut();
        launch_fp8_indexed_moe_gemm_bf16(null(), null(), null(), null(), y, -4, 2, 19, 5, 7, 11, 13, 17, true, none);
        for function in [launch_mxfp4_matmul_f16, launch_mxfp4_matmul_wmma_f16] {
            function(null(), null(), null(), null(), null_mut(), -3, 5, 64, true, none);
        }
        for function in [launch_mxfp4_matmul_bf16, launch_mxfp4_matmul_wmma_bf16] {
            function(null(), null(), null(), null(), null_mut(), -4, 5, 64, true, none);
        }
        for function in [
            launch_mxfp4_indexed_moe_gemm_f16,
            launch_mxfp4_moe_grouped_gemm_f16,
            launch_mxfp4_moe_grouped_gemm_wmma_f16,
        ] {
            function(null(), null(), null(), null(), null(), null_mut(), -3, 2, 19, 5, 64, true, false, none);
        }
        for function in [
            launch_mxfp4_indexed_moe_gemm_bf16,
            launch_mxfp4_moe_grouped_gemm_bf16,
            launch_mxfp4_moe_grouped_gemm_wmma_bf16,
        ] {
            function(null(), null(), null(), null(), null(), null_mut(), -4, 2, 19, 5, 64, true, false, none);
        }
    }
    let stats = interpose::stats();
    assert_eq!((stats.failed, stats.mistralrs), (14, 0));
}

#[test]
fn mistralrs_calls_arrive_with_their_arguments() {
    assert!(interpose::mistralrs_is_active());
    // SAFETY: a function without arguments.
    assert_eq!(unsafe { mxfp4_get_max_smem_optin() }, i32::MAX);
    let mut calls = Command::new(std::env::current_exe().unwrap());
    calls.args(["--exact", "mistralrs::calls_as_mistralrs_makes_them", "--nocapture"]).env(CALLS, "1");
    let output = calls.env_remove("TILEGEMM_ON_FAILURE").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    for (number, rows) in [("f16", -3), ("bf16", -4)] {
        let blocks = "5 x 7 weights in blocks of 13 x 17, 11 in a row is no product";
        let has = |words: String| assert!(told.contains(&words), "{words} is not in {told}");
        has(format!("launch_fp8_matmul_{number} of {rows} rows by {blocks}"));
        let experts = format!("of {rows} tokens with 2 of 19 experts of");
        has(format!("launch_fp8_indexed_moe_gemm_{number} {experts} {blocks}"));
        let mxfp4 = "5 x 64 weights in MXFP4 is no product";
        for name in ["matmul", "matmul_wmma"] {
            has(format!("launch_mxfp4_{name}_{number} of {rows} rows by {mxfp4}"));
        }
        for name in ["indexed_moe_gemm", "moe_grouped_gemm", "moe_grouped_gemm_wmma"] {
            has(format!("launch_mxfp4_{name}_{number} {experts} {mxfp4}"));
        }
    }
}
