//! One call of `cublasGemmStridedBatchedEx`.

use super::api::{cublas, Cublas, CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F, CUDA_R_64F};
use super::api::{GEMM_DEFAULT_TENSOR_OP, OP_N, OP_T};
use super::sums::ExactSums;
use crate::error::{Error, Result};
use crate::launch::device::failed;
use crate::launch::pointers::Pointers;
use crate::launch::stream;
use crate::problem::f32_mode::compute_type;
use crate::problem::{F32Mode, Format, Operand, Problem};
use std::ffi::{c_int, c_longlong, c_void};

/// The arguments of one call, without its pointers. Row-major D = A @ B is column-major D^T = B^T @ A^T, so cuBLAS gets
/// B first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VendorCall {
    /// Operations on B and A.
    ops: [c_int; 2],
    n: c_int,
    m: c_int,
    k: c_int,
    /// Leading dimensions of B, A and D.
    ld: [c_int; 3],
    strides: [c_longlong; 3],
    batch: c_int,
    alpha: f64,
    beta: f64,
    /// The format of A and B, and of D.
    formats: [Format; 2],
    f32_mode: F32Mode,
    /// Whether partial sums of 16-bit products must be added in f32. By default cuBLAS may add them in 16 bits.
    exact_sums: bool,
}

impl VendorCall {
    /// The call for a canonical problem. 16-bit products are added in f32 throughout, as in our own kernels.
    ///
    /// # Errors
    /// [`Error::Vendor`] when a size or stride does not fit the interface.
    pub fn of(problem: &Problem) -> Result<Self> {
        // Contiguous rows are cuBLAS's columns, untransposed.
        let op = |operand: &Operand| match operand.col_stride {
            1 => (OP_N, operand.row_stride),
            stride => (OP_T, stride),
        };
        let call = Self::new(problem, op(&problem.b), op(&problem.a))?;
        Ok(Self { exact_sums: matches!(problem.a.format, Format::F16 | Format::BF16), ..call })
    }

    /// The call that candle-core 0.11 makes for `matmul` of dense operands (`gemm_config` in its `cuda_backend`): with
    /// the batch unchanged, and with the first of the two forms that fits. cuBLAS may add partial sums in 16 bits, as
    /// in candle.
    ///
    /// # Errors
    /// [`Error::Vendor`] when a size or stride does not fit the interface, or candle refuses the operands.
    pub fn by_candle(problem: &Problem) -> Result<Self> {
        let Problem { m, n, k, a, b, .. } = *problem;
        let [m, n, k] = [m, n, k].map(|size| size as i64);
        let refused = || Error::Vendor(format!("candle refuses {problem}: an operand is not contiguous"));
        // Strides of a dimension of size 1 do not matter.
        let fits = |stride: i64, expected: i64, size: i64| stride == expected || size == 1;
        let op = |operand: &Operand, rows: i64, cols: i64| {
            if fits(operand.col_stride, 1, cols) && fits(operand.row_stride, cols, rows) {
                Ok((OP_N, cols))
            } else if fits(operand.col_stride, rows, cols) && fits(operand.row_stride, 1, rows) {
                Ok((OP_T, rows))
            } else {
                Err(refused())
            }
        };
        Self::new(problem, op(&b, k, n)?, op(&a, m, k)?)
    }

    fn new(problem: &Problem, (op_b, ld_b): (c_int, i64), (op_a, ld_a): (c_int, i64)) -> Result<Self> {
        let fit = |number: i64| {
            c_int::try_from(number)
                .map_err(|_| Error::Vendor(format!("{problem}: {number} does not fit its interface")))
        };
        let Problem { m, n, k, batch, a, b, d, epilogue, f32_mode, .. } = *problem;
        Ok(Self {
            ops: [op_b, op_a],
            n: fit(n as i64)?,
            m: fit(m as i64)?,
            k: fit(k as i64)?,
            ld: [fit(ld_b)?, fit(ld_a)?, fit(d.row_stride)?],
            strides: [b, a, d].map(|operand| operand.batch_stride[1]),
            batch: fit((batch[0] * batch[1]) as i64)?,
            alpha: epilogue.alpha(),
            beta: epilogue.beta(),
            formats: [a.format, d.format],
            f32_mode,
            exact_sums: false,
        })
    }

    /// Makes the call.
    ///
    /// # Errors
    /// [`Error::Vendor`] with cuBLAS's status, or where cuBLAS has no name for a format.
    ///
    /// # Safety
    /// As for [`crate::launch::launch`]; `handle` is a cuBLAS handle of the current device, set to the stream to use and in host pointer
    /// mode.
    pub unsafe fn run(&self, pointers: Pointers, handle: *mut c_void) -> Result<()> {
        if handle.is_null() {
            let help = "the plan needs a cuBLAS handle; pass one in Queue::cublas, or plan with Policy::own()";
            return Err(Error::Vendor(help.into()));
        }
        let library = cublas()?;
        // cuBLAS loads kernels and allocates memory at first calls, which would invalidate a capture of another thread.
        // SAFETY: the caller's promises are passed on.
        let run = || unsafe { self.run_by(library, pointers, handle) };
        stream::relaxed(run).map_err(failed("cuThreadExchangeStreamCaptureMode"))?
    }

    pub(super) unsafe fn run_by(&self, library: &Cublas, pointers: Pointers, handle: *mut c_void) -> Result<()> {
        library.library.verify()?;
        let gemm = library.gemm_strided_batched_ex;
        // SAFETY: the caller's handle, which outlives this call.
        let _exact = self.exact_sums.then(|| unsafe { ExactSums::of(library, handle) }).transpose()?;
        let [operands, out] = self.formats;
        let (data_type, out_type) = (data_type(operands)?, data_type(out)?);
        let compute_type = self.compute_type();
        let scalars32 = [self.alpha as f32, self.beta as f32];
        let scalars64 = [self.alpha, self.beta];
        let scalar = |index: usize| -> *const c_void {
            if operands == Format::F64 {
                (&raw const scalars64[index]).cast()
            } else {
                (&raw const scalars32[index]).cast()
            }
        };
        // SAFETY: the caller vouches for pointers, extents and handle; the scalars live until the call returns.
        let status = unsafe {
            gemm(
                handle,
                self.ops[0],
                self.ops[1],
                self.n,
                self.m,
                self.k,
                scalar(0),
                pointers.b,
                data_type,
                self.ld[0],
                self.strides[0],
                pointers.a,
                data_type,
                self.ld[1],
                self.strides[1],
                scalar(1),
                pointers.d,
                out_type,
                self.ld[2],
                self.strides[2],
                self.batch,
                compute_type,
                GEMM_DEFAULT_TENSOR_OP,
            )
        };
        match status {
            0 => Ok(()),
            status => Err(Error::Vendor(format!("cublasGemmStridedBatchedEx returned status {status} for {self:?}"))),
        }
    }

    fn compute_type(&self) -> c_int {
        match (self.formats[0], self.f32_mode) {
            (Format::F64, _) => compute_type::F64,
            (Format::F32, F32Mode::Tf32) => compute_type::F32_FAST_TF32,
            _ => compute_type::F32,
        }
    }
}

/// The `cudaDataType_t` of a format.
fn data_type(format: Format) -> Result<c_int> {
    match format {
        Format::F16 => Ok(CUDA_R_16F),
        Format::BF16 => Ok(CUDA_R_16BF),
        Format::F32 => Ok(CUDA_R_32F),
        Format::F64 => Ok(CUDA_R_64F),
        other => Err(Error::Vendor(format!("cublasGemmStridedBatchedEx has no data type {other}"))),
    }
}
