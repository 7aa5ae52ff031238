//! src/interpose/mistralrs: not built on mistralrs-quant. `part`: without two of the functions.
#![no_std]

#[unsafe(export_name = "candle_tilegemm_mistralrs")]
static ANCHOR: unsafe extern "C" fn(*mut i32) = launch_fp8_matmul_f16;

macro_rules! define {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(from: *mut i32) {
            // SAFETY: the caller's place.
            unsafe { *from = 2 };
        }
    )*};
}

define! {
    launch_fp8_matmul_f16
    launch_fp8_matmul_bf16
    launch_mxfp4_matmul_f16
    launch_mxfp4_matmul_bf16
    launch_mxfp4_indexed_moe_gemm_f16
    launch_mxfp4_indexed_moe_gemm_bf16
    launch_mxfp4_moe_grouped_gemm_f16
    launch_mxfp4_moe_grouped_gemm_bf16
    mxfp4_get_max_smem_optin
    launch_mxfp4_matmul_wmma_f16
    launch_mxfp4_matmul_wmma_bf16
    launch_mxfp4_moe_grouped_gemm_wmma_f16
    launch_mxfp4_moe_grouped_gemm_wmma_bf16
}
#[cfg(not(part))]
define!(launch_fp8_indexed_moe_gemm_f16 launch_fp8_indexed_moe_gemm_bf16);
