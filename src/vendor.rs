//! The vendor library as one more kernel: cuBLAS, called the way candle calls it.
//!
//! The function is looked up in libcublas itself, not linked: with the interposer in the program, the linked symbol is ours.

use crate::error::{Error, Result};
use crate::ffi::{tg_gemm_args, tg_matrix};
use crate::problem::{DType, F32Mode, Problem};
use once_cell::sync::OnceCell;
use std::ffi::{c_int, c_longlong, c_void};

/// `cublasGemmStridedBatchedEx` (cuBLAS documentation, section 2.8.17); enums are passed as plain integers.
pub(crate) type GemmStridedBatchedEx = unsafe extern "C" fn(
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
    batch_count: c_int,
    compute_type: c_int,
    algo: c_int,
) -> c_int;

pub(crate) const OP_N: c_int = 0;
pub(crate) const OP_T: c_int = 1;
#[cfg(feature = "interpose")]
pub(crate) const OP_C: c_int = 2;
pub(crate) const CUDA_R_32F: c_int = 0;
pub(crate) const CUDA_R_64F: c_int = 1;
pub(crate) const CUDA_R_16F: c_int = 2;
pub(crate) const CUDA_R_16BF: c_int = 14;
pub(crate) const COMPUTE_32F: c_int = 68;
#[cfg(feature = "interpose")]
pub(crate) const COMPUTE_32F_PEDANTIC: c_int = 69;
#[cfg(feature = "interpose")]
pub(crate) const COMPUTE_32F_FAST_16F: c_int = 74;
#[cfg(feature = "interpose")]
pub(crate) const COMPUTE_32F_FAST_16BF: c_int = 75;
pub(crate) const COMPUTE_64F: c_int = 70;
pub(crate) const COMPUTE_32F_FAST_TF32: c_int = 77;
const GEMM_DEFAULT_TENSOR_OP: c_int = 99;

/// The functions of libcublas that we call.
#[derive(Debug)]
pub(crate) struct Cublas {
    pub gemm_strided_batched_ex: GemmStridedBatchedEx,
    #[cfg(feature = "interpose")]
    pub get_stream: unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int,
    #[cfg(feature = "interpose")]
    pub get_pointer_mode: unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int,
}

/// libcublas, opened once and kept for the life of the process.
pub(crate) fn cublas() -> Result<&'static Cublas> {
    static CUBLAS: OnceCell<Cublas> = OnceCell::new();
    const NAMES: [&str; 3] = ["libcublas.so.13", "libcublas.so.12", "libcublas.so"];
    CUBLAS.get_or_try_init(|| {
        // SAFETY: libcublas may be loaded anywhere and any time; it is never unloaded, as the handle is leaked.
        let open = |name: &&str| unsafe { libloading::Library::new(*name) };
        let library = NAMES.iter().map(open).find_map(|library| library.ok());
        let library = library.ok_or_else(|| {
            Error::Vendor(
                "libcublas.so.13 is not found; put its folder on LD_LIBRARY_PATH, or set TILEGEMM_VENDOR=off".into(),
            )
        })?;
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        let missing = |e: libloading::Error| Error::Vendor(e.to_string());
        // SAFETY: the types are those of cublas_api.h.
        unsafe {
            Ok(Cublas {
                gemm_strided_batched_ex: *library.get(b"cublasGemmStridedBatchedEx\0").map_err(missing)?,
                #[cfg(feature = "interpose")]
                get_stream: *library.get(b"cublasGetStream_v2\0").map_err(missing)?,
                #[cfg(feature = "interpose")]
                get_pointer_mode: *library.get(b"cublasGetPointerMode_v2\0").map_err(missing)?,
            })
        }
    })
}

/// Runs a canonical problem: row-major D = A @ B is column-major D^T = B^T @ A^T, so cuBLAS gets B first.
///
/// # Safety
/// As for [`crate::launch::launch`].
pub(crate) unsafe fn run(problem: &Problem, args: &tg_gemm_args, handle: *mut c_void) -> Result<()> {
    if handle.is_null() {
        let help = "the plan needs a cuBLAS handle; pass one in Queue::cublas, or plan with Policy::own()";
        return Err(Error::Vendor(help.into()));
    }
    let gemm = cublas()?.gemm_strided_batched_ex;
    let (data_type, compute_type) = types(problem);
    let (op_b, ld_b) = op(&args.b);
    let (op_a, ld_a) = op(&args.a);
    let scalars32 = [args.alpha as f32, args.beta as f32];
    let scalars64 = [args.alpha, args.beta];
    let scalar = |index: usize| -> *const c_void {
        if problem.dtype == DType::F64 {
            (&raw const scalars64[index]).cast()
        } else {
            (&raw const scalars32[index]).cast()
        }
    };
    // SAFETY: the caller vouches for pointers, extents and handle; the scalars live until the call returns.
    let status = unsafe {
        gemm(
            handle,
            op_b,
            op_a,
            args.n as c_int,
            args.m as c_int,
            args.k as c_int,
            scalar(0),
            args.b.ptr,
            data_type,
            ld_b,
            args.b.batch_stride[1],
            args.a.ptr,
            data_type,
            ld_a,
            args.a.batch_stride[1],
            scalar(1),
            args.d.ptr,
            data_type,
            args.d.row_stride as c_int,
            args.d.batch_stride[1],
            (args.batch[0] * args.batch[1]) as c_int,
            compute_type,
            GEMM_DEFAULT_TENSOR_OP,
        )
    };
    match status {
        0 => Ok(()),
        status => Err(Error::Vendor(format!("cublasGemmStridedBatchedEx returned status {status} for {problem}"))),
    }
}

/// Data and compute type of a problem.
fn types(problem: &Problem) -> (c_int, c_int) {
    match (problem.dtype, problem.f32_mode) {
        (DType::F16, _) => (CUDA_R_16F, COMPUTE_32F),
        (DType::BF16, _) => (CUDA_R_16BF, COMPUTE_32F),
        (DType::F32, F32Mode::Tf32) => (CUDA_R_32F, COMPUTE_32F_FAST_TF32),
        (DType::F32, _) => (CUDA_R_32F, COMPUTE_32F),
        (DType::F64, _) => (CUDA_R_64F, COMPUTE_64F),
    }
}

/// How cuBLAS is to read a row-major matrix: contiguous rows are its columns, untransposed.
fn op(matrix: &tg_matrix) -> (c_int, c_int) {
    if matrix.col_stride == 1 {
        (OP_N, matrix.row_stride as c_int)
    } else {
        (OP_T, matrix.col_stride as c_int)
    }
}
