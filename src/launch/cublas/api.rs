//! The functions of libcublas, and the numbers of its enums.
//!
//! Functions are looked up in libcublas itself, not linked: with the interposer in the program, the linked symbol is
//! the interposer's.

use super::library::{find, Found};
use crate::error::{Error, Result};
use once_cell::sync::OnceCell;
use std::ffi::{c_int, c_longlong, c_void};
use std::fmt;
use std::path::PathBuf;

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
pub(super) const OP_T: c_int = 1;
#[cfg(feature = "interpose")]
pub(crate) const OP_C: c_int = 2;
pub(crate) const CUDA_R_32F: c_int = 0;
pub(crate) const CUDA_R_64F: c_int = 1;
pub(crate) const CUDA_R_16F: c_int = 2;
pub(crate) const CUDA_R_16BF: c_int = 14;
pub(super) const GEMM_DEFAULT_TENSOR_OP: c_int = 99;

/// The libcublas in use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VendorLibrary {
    /// The file of the library: the library that made the program's handles.
    pub path: PathBuf,
    /// Major, minor and patch version.
    pub version: [i32; 3],
}

impl fmt::Display for VendorLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.version;
        write!(f, "{major}.{minor}.{patch}, {}", self.path.display())
    }
}

impl VendorLibrary {
    /// Whether the library's interface is a known one. Calls of the program reach the library either way.
    pub(crate) fn verify(&self) -> Result<()> {
        match self.version[0] {
            12 | 13 => Ok(()),
            _ => Err(Error::Vendor(format!(
                "the program has version {self}; 12 or 13 is needed: link the program to one of these, or set TILEGEMM_VENDOR=off"
            ))),
        }
    }
}

/// The functions of libcublas in use.
#[derive(Debug)]
pub(crate) struct Cublas {
    pub library: VendorLibrary,
    pub gemm_strided_batched_ex: GemmStridedBatchedEx,
    pub get_math_mode: unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int,
    pub(super) set_math_mode: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    #[cfg(feature = "interpose")]
    pub get_stream: unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int,
    #[cfg(feature = "interpose")]
    pub get_pointer_mode: unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int,
}

/// A library of NVIDIA's, opened once and kept for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    Cublas,
    #[cfg(feature = "preload")]
    CublasLt,
}

impl Library {
    fn found(self) -> Result<&'static Found> {
        static CUBLAS: OnceCell<Found> = OnceCell::new();
        let (cell, symbol, names) = match self {
            Self::Cublas => (&CUBLAS, c"cublasCreate_v2", ["libcublas.so.13", "libcublas.so.12", "libcublas.so"]),
            #[cfg(feature = "preload")]
            Self::CublasLt => {
                static CUBLASLT: OnceCell<Found> = OnceCell::new();
                (&CUBLASLT, c"cublasLtCreate", ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"])
            }
        };
        cell.get_or_try_init(|| {
            find(symbol, &names).ok_or_else(|| {
                let name = names[0];
                Error::Vendor(format!(
                    "{name} is not found; put its folder on LD_LIBRARY_PATH, or set TILEGEMM_VENDOR=off"
                ))
            })
        })
    }

    /// A function of the library.
    ///
    /// # Errors
    /// [`Error::Vendor`] names the missing library or function.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function.
    pub unsafe fn function<F: Copy>(self, name: &str) -> Result<F> {
        let missing = |e: libloading::Error| {
            Error::Vendor(format!("{e}; link the program to libcublas 12 or 13, or set TILEGEMM_VENDOR=off"))
        };
        // SAFETY: the caller's promise; the library is never closed.
        Ok(*unsafe { self.found()?.library.get::<F>(name) }.map_err(missing)?)
    }
}

/// The functions of libcublas, looked up once.
pub(crate) fn cublas() -> Result<&'static Cublas> {
    static CUBLAS: OnceCell<Cublas> = OnceCell::new();
    CUBLAS.get_or_try_init(|| {
        let library = Library::Cublas;
        // SAFETY: cublas_api.h declares these types.
        unsafe {
            let version = version(library.function("cublasGetProperty")?)?;
            Ok(Cublas {
                library: VendorLibrary { path: library.found()?.path.clone(), version },
                get_math_mode: library.function("cublasGetMathMode")?,
                set_math_mode: library.function("cublasSetMathMode")?,
                gemm_strided_batched_ex: library.function("cublasGemmStridedBatchedEx")?,
                #[cfg(feature = "interpose")]
                get_stream: library.function("cublasGetStream_v2")?,
                #[cfg(feature = "interpose")]
                get_pointer_mode: library.function("cublasGetPointerMode_v2")?,
            })
        }
    })
}

/// `cublasGetProperty`: major, minor and patch version by the numbers 0, 1 and 2.
type GetProperty = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;

pub(super) fn version(property: GetProperty) -> Result<[i32; 3]> {
    let mut version = [0; 3];
    for (number, value) in (0..).zip(&mut version) {
        // SAFETY: a valid place to write to.
        succeeded("cublasGetProperty", unsafe { property(number, value) })?;
    }
    Ok(version)
}

pub(super) fn succeeded(call: &str, status: c_int) -> Result<()> {
    match status {
        0 => Ok(()),
        status => Err(Error::Vendor(format!("{call} returned status {status}"))),
    }
}
