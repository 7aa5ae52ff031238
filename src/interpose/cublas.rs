//! The matrix products of cuBLAS: the contract for their arguments, and the definition of `cublasGemmStridedBatchedEx`.

use super::arguments::Arguments;
use super::count::Forwarded;
use super::define::define;
use super::symbol::arrives;
use super::vendor::{Contract, Product, Refusal, STATUS_SUCCESS};
use crate::error::Error;
use crate::launch::cublas::api::{self, cublas, Cublas};
use crate::launch::{Pointers, Queue};
use crate::problem::f32_mode::{compute_type, f32_mode};
use crate::problem::{power_of_two_in, Epilogue, F32Mode, Format, Operand, Problem};
use half::f16;
use std::ffi::{c_int, c_longlong, c_void};
#[cfg(feature = "candle")]
use std::hint::black_box;
use std::ptr::{null, null_mut};

/// Whether candle's calls arrive here. The check makes one call through candle's own binding and sees whether the call
/// reaches this definition. The check needs no GPU. In a build without the feature `candle` the call is one to the function
/// that the dynamic linker finds for the program.
///
/// ```
/// if !candle_tilegemm::interpose::is_active() {
///     eprintln!("this program's products go to cuBLAS; `tilegemm doctor` says why");
/// }
/// ```
pub fn is_active() -> bool {
    let Some(function) = declared() else { return false };
    let (ptr, out) = (null(), null_mut());
    // SAFETY: with a null handle cuBLAS refuses before it reads any other argument, and our definition reads none.
    arrives("cublasGemmStridedBatchedEx", || unsafe {
        function(out, 0, 0, 0, 0, 0, ptr, ptr, 0, 0, 0, ptr, 0, 0, 0, ptr, out, 0, 0, 0, 0, compute_type::F32, -1);
    })
}

#[cfg(feature = "candle")]
fn declared() -> Option<api::GemmStridedBatchedEx> {
    use ::candle::cuda_backend::cudarc::cublas::sys;
    // The compiler may not take the declaration for the definition of this module.
    let declared = black_box(sys::cublasGemmStridedBatchedEx as *const ());
    // SAFETY: the binding has C's enums where our type has integers.
    Some(unsafe { std::mem::transmute::<*const (), api::GemmStridedBatchedEx>(declared) })
}

#[cfg(not(feature = "candle"))]
fn declared() -> Option<api::GemmStridedBatchedEx> {
    let program = libloading::os::unix::Library::this();
    // SAFETY: `cublasGemmStridedBatchedEx` has this type wherever the function is defined.
    unsafe { program.get::<api::GemmStridedBatchedEx>("cublasGemmStridedBatchedEx") }.ok().map(|function| *function)
}

/// The arguments of one call in cuBLAS's convention: column-major, C = alpha * op(A) @ op(B) + beta * C.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gemm {
    pub handle: *mut c_void,
    pub ops: [c_int; 2],
    /// m, n and k.
    pub sizes: [c_int; 3],
    pub alpha: *const c_void,
    pub beta: *const c_void,
    /// The type of alpha and beta.
    pub scalars: Format,
    pub pointers: [*const c_void; 3],
    pub types: [c_int; 3],
    pub ld: [c_int; 3],
    pub strides: [c_longlong; 3],
    pub batch: c_int,
    pub compute_type: c_int,
}

impl Contract for Gemm {
    /// The product in row-major terms. alpha and beta are read where the handle is in host pointer mode.
    unsafe fn product(&self) -> Result<Product, Refusal> {
        let not_ours = |reason| Err((reason, None));
        let mut pointer_mode = 0;
        let library = cublas().map_err(failed)?;
        // SAFETY: the caller's handle, and a valid place to write to.
        let status = unsafe { (library.get_pointer_mode)(self.handle, &mut pointer_mode) };
        if status != STATUS_SUCCESS || pointer_mode != 0 {
            return not_ours(Forwarded::PointerMode);
        }
        let Some([operands, out]) = formats(self.types) else { return not_ours(Forwarded::Types) };
        // SAFETY: the caller's handle.
        let Some(asked) = (unsafe { self.asked_mode(library, operands) }) else {
            return not_ours(Forwarded::ComputeType);
        };
        let f32_mode = match operands {
            Format::F32 => asked.map_or_else(f32_mode, Ok).map_err(failed)?,
            _ => F32Mode::default(),
        };
        let Gemm { ops, sizes, batch, ld, .. } = *self;
        if !(Arguments { ops, sizes, batch, ld }).are_valid() || self.alpha.is_null() || self.beta.is_null() {
            return not_ours(Forwarded::Arguments);
        }
        // SAFETY: host pointer mode, and scalars of this type.
        let [alpha, beta] = [self.alpha, self.beta].map(|scalar| unsafe { read_scalar(scalar, self.scalars) });
        let operand = |index: usize, format: Format, rows_contiguous: bool| {
            let ld = i64::from(self.ld[index]);
            let strides = if rows_contiguous { [ld, 1] } else { [1, ld] };
            let pointer_align = power_of_two_in(self.pointers[index] as u64);
            Operand { pointer_align, ..Operand::new(format, strides, [0, self.strides[index]]) }
        };
        let d = operand(2, out, true);
        let mut epilogue = Epilogue::new(alpha, beta);
        epilogue.c = epilogue.reads_c().then_some(d);
        epilogue.in_place = epilogue.reads_c();
        let [m, n, k] = sizes.map(|size| size as usize);
        // Row-major D^T = B^T @ A^T: our A is cuBLAS's B.
        let (a, b) = (operand(1, operands, ops[1] == api::OP_N), operand(0, operands, ops[0] == api::OP_N));
        let problem = Problem { epilogue, f32_mode, ..Problem::new([n, m, k], [1, batch as usize], a, b, d) };
        let [a, b, c] = self.pointers;
        let pointers = Pointers { c, ..Pointers::new(b, a, c.cast_mut()) };
        let mut stream = std::ptr::null_mut();
        // SAFETY: the caller's handle, and a valid place to write to.
        if unsafe { (library.get_stream)(self.handle, &mut stream) } != STATUS_SUCCESS {
            return Err(failed(Error::Vendor("cublasGetStream failed on the caller's handle".into())));
        }
        let is_tf32 = asked == Some(F32Mode::Tf32);
        Ok(Product { problem, pointers, queue: Queue::new(stream, self.handle), is_tf32 })
    }

    fn describe(&self) -> String {
        let Gemm { sizes: [m, n, k], batch, .. } = self;
        format!("{n}x{m}x{k} batch {batch}")
    }
}

fn failed(error: Error) -> Refusal {
    (Forwarded::Failed, Some(error))
}

impl Gemm {
    /// The type of alpha and beta of a function that has a compute type.
    pub fn scalars(compute_type: c_int) -> Format {
        match compute_type {
            compute_type::F64 | compute_type::F64_PEDANTIC => Format::F64,
            _ => Format::F32,
        }
    }

    /// The f32 mode that the call asks for by its compute type, and else by the math mode of its handle: a mode, or (`Some(None)`) the mode
    /// of the process. `None` where the type of the sums is not that of our kernels.
    ///
    /// # Safety
    /// The handle is the caller's.
    unsafe fn asked_mode(&self, library: &Cublas, operands: Format) -> Option<Option<F32Mode>> {
        let is_f64 = matches!(self.compute_type, compute_type::F64 | compute_type::F64_PEDANTIC);
        if operands == Format::F64 {
            return is_f64.then_some(None);
        }
        let asked = F32Mode::of_compute_type(self.compute_type)?;
        if operands != Format::F32 || asked.is_some() {
            return Some(asked);
        }
        let mut math_mode = 0;
        // SAFETY: the caller's handle, and a valid place to write to.
        let status = unsafe { (library.get_math_mode)(self.handle, &mut math_mode) };
        Some(F32Mode::of_math_mode(math_mode).filter(|_| status == STATUS_SUCCESS))
    }
}

/// A scalar on the host.
///
/// # Safety
/// `scalar` is readable and of this format: f16, f32 or f64.
pub(super) unsafe fn read_scalar(scalar: *const c_void, format: Format) -> f64 {
    // SAFETY: the caller's promise.
    unsafe {
        match format {
            Format::F16 => f64::from(*scalar.cast::<f16>()),
            Format::F64 => *scalar.cast::<f64>(),
            _ => f64::from(*scalar.cast::<f32>()),
        }
    }
}

/// The format of A and B and the format of the result, by the numbers of `cudaDataType_t` of A, B and the result.
pub(super) fn formats([a, b, out]: [c_int; 3]) -> Option<[Format; 2]> {
    match [a, b, out] {
        [api::CUDA_R_16F, api::CUDA_R_16F, api::CUDA_R_16F] => Some([Format::F16; 2]),
        [api::CUDA_R_16BF, api::CUDA_R_16BF, api::CUDA_R_16BF] => Some([Format::BF16; 2]),
        [api::CUDA_R_32F, api::CUDA_R_32F, api::CUDA_R_32F] => Some([Format::F32; 2]),
        [api::CUDA_R_64F, api::CUDA_R_64F, api::CUDA_R_64F] => Some([Format::F64; 2]),
        [api::CUDA_R_16F, api::CUDA_R_16F, api::CUDA_R_32F] => Some([Format::F16, Format::F32]),
        [api::CUDA_R_16BF, api::CUDA_R_16BF, api::CUDA_R_32F] => Some([Format::BF16, Format::F32]),
        _ => None,
    }
}

define! {
    Cublas: fn cublasGemmStridedBatchedEx(
        handle: *mut c_void,
        transa: c_int,
        transb: c_int,
        m: c_int,
        n: c_int,
        k: c_int,
        alpha: *const c_void,
        a: *const c_void,
        a_type: c_int,
        lda: c_int,
        stride_a: c_longlong,
        b: *const c_void,
        b_type: c_int,
        ldb: c_int,
        stride_b: c_longlong,
        beta: *const c_void,
        c: *mut c_void,
        c_type: c_int,
        ldc: c_int,
        stride_c: c_longlong,
        batch: c_int,
        compute_type: c_int,
        algo: c_int,
    ) -> c_int => Gemm {
        handle,
        ops: [transa, transb],
        sizes: [m, n, k],
        alpha,
        beta,
        scalars: Gemm::scalars(compute_type),
        pointers: [a, b, c],
        types: [a_type, b_type, c_type],
        ld: [lda, ldb, ldc],
        strides: [stride_a, stride_b, stride_c],
        batch,
        compute_type,
    }
}
