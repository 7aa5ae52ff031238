//! `libtilegemm_preload.so`: the matrix products of cuBLAS and `cublasLtMatmul` for a program that is already built, by
//! `LD_PRELOAD=libtilegemm_preload.so`. The functions are those of `candle_tilegemm::interpose`; docs/preload.md describes the library.

#![warn(unsafe_op_in_unsafe_fn)]

use candle_tilegemm::interpose;
use std::ffi::c_char;

/// The counters of the process as JSON ([`interpose::Stats`]), for programs and scripts: writes at most `bytes` bytes to `text`, of which the
/// last is 0, and returns the length of the whole text.
///
/// # Safety
/// `text` has room for `bytes` bytes; null where `bytes` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tilegemm_stats(text: *mut c_char, bytes: usize) -> usize {
    let stats = serde_json::to_string(&interpose::stats()).unwrap_or_default();
    if let Some(most) = bytes.checked_sub(1) {
        let length = stats.len().min(most);
        // SAFETY: `length` is below `bytes`, for which the caller vouches.
        unsafe {
            std::ptr::copy_nonoverlapping(stats.as_ptr(), text.cast(), length);
            *text.add(length) = 0;
        }
    }
    stats.len()
}

/// The loader calls the function when the program ends.
#[used]
#[link_section = ".fini_array"]
static AT_EXIT: extern "C" fn() = {
    extern "C" fn at_exit() {
        interpose::report_at_exit();
    }
    at_exit
};
