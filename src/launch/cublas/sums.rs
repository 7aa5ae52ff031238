//! Partial sums of 16-bit products in f32, for one call of cuBLAS.

use super::api::{succeeded, Cublas};
use crate::error::Result;
use std::ffi::{c_int, c_void};

/// `CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`, a flag beside the math mode.
const DISALLOW_REDUCED_PRECISION_REDUCTION: c_int = 16;

/// A guard: while the guard lives, calls with a handle add partial sums in f32. The drop restores the handle's math
/// mode.
pub(super) struct ExactSums<'a> {
    library: &'a Cublas,
    handle: *mut c_void,
    /// `None` where the handle's sums were exact before.
    before: Option<c_int>,
}

impl<'a> ExactSums<'a> {
    /// # Safety
    /// `handle` is a handle of `library` that outlives the guard, and no other thread uses the handle meanwhile.
    pub unsafe fn of(library: &'a Cublas, handle: *mut c_void) -> Result<Self> {
        let mut mode = 0;
        // SAFETY: the caller's handle, and a valid place to write to.
        succeeded("cublasGetMathMode", unsafe { (library.get_math_mode)(handle, &mut mode) })?;
        let exact = mode | DISALLOW_REDUCED_PRECISION_REDUCTION;
        if exact != mode {
            // SAFETY: the caller's handle.
            succeeded("cublasSetMathMode", unsafe { (library.set_math_mode)(handle, exact) })?;
        }
        Ok(Self { library, handle, before: (exact != mode).then_some(mode) })
    }
}

impl Drop for ExactSums<'_> {
    fn drop(&mut self) {
        if let Some(mode) = self.before {
            // SAFETY: the handle outlives the guard. The handle accepted a mode just now, and accepts its former mode.
            unsafe { (self.library.set_math_mode)(self.handle, mode) };
        }
    }
}
