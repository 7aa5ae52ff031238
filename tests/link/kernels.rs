//! candle-kernels: declarations, and a static archive of objects.
#![no_std]

unsafe extern "C" {
    pub fn moe_gemm_wmma(from: *mut i32);
    pub fn moe_gemm_gguf(from: *mut i32);
}
