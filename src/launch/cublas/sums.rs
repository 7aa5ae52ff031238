//! Partial sums of 16-bit products in f32, for one call of cuBLAS.

use super::api::{succeeded, Cublas};
use crate::error::Result;
use std::ffi::{c_int, c_void};

/// `CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`, a flag beside the math mode.
const DISALLOW_REDUCED_PRECISION_REDUCTION: c_int = 16;

/// While it lives, calls with a handle add partial sums in f32. Then the handle has the math mode that it had before.
pub(super) struct ExactSums<'a> {
    library: &'a Cublas,
    handle: *mut c_void,
    /// `None` where sums were exact already.
    before: Option<c_int>,
}

impl<'a> ExactSums<'a> {
    /// # Safety
    /// `handle` is a handle of `library` that outlives this, and no other thread uses it meanwhile.
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
            // SAFETY: the handle outlives this. It took a mode just now, and takes the one that it had.
            unsafe { (self.library.set_math_mode)(self.handle, mode) };
        }
    }
}
