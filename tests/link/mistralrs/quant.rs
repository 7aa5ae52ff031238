//! mistralrs-quant: declarations, and a static archive of objects, of which its build script says `rustc-link-lib=mistralrsquant`.
#![no_std]

macro_rules! declare {
    ($($name:ident)*) => {
        unsafe extern "C" {
            $(fn $name(from: *mut i32);)*
        }
        const FUNCTIONS: &[unsafe extern "C" fn(*mut i32)] = &[$($name),*];
    };
}

declare! {
    launch_dequant_fp8_blockwise_kernel_f32
    launch_fp8_matmul_f16
    launch_fp8_matmul_bf16
    launch_fp8_indexed_moe_gemm_f16
    launch_fp8_indexed_moe_gemm_bf16
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

/// The definitions that calls of the functions reach: 1 is mistralrs's, 2 ours.
pub fn calls() -> impl Iterator<Item = i32> {
    FUNCTIONS.iter().map(|function| {
        let mut from = 0;
        // SAFETY: a place to write to.
        unsafe { function(&mut from) };
        from
    })
}
