//! candle-nn: calls of candle-kernels.
#![no_std]

/// The definition that a call reaches: 1 is candle's, 2 ours, 3 another library's.
pub fn moe_gemm() -> i32 {
    let mut from = 0;
    // SAFETY: a place to write to.
    unsafe { kernels::moe_gemm_wmma(&mut from) };
    from
}

pub fn moe_gemm_gguf() -> i32 {
    let mut from = 0;
    // SAFETY: as above.
    unsafe { kernels::moe_gemm_gguf(&mut from) };
    from
}
