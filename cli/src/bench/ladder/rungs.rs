//! The rungs of the GPU: the kernels of cli/ladder, and cuBLAS.

use super::super::timing::Timer;
use super::row::Row;
use crate::Result;
use candle::cuda_backend::cudarc::cublas::{result, sys};
use std::ffi::{c_char, c_int, c_void, CStr};

/// One way to compute the product on the GPU.
pub enum Rung {
    Kernel(&'static ffi::Rung),
    Cublas,
}

/// In the order of the ladder.
pub fn rungs() -> impl Iterator<Item = Rung> {
    let mut count = 0;
    // SAFETY: `count` is a valid place to write to.
    let first = unsafe { ffi::tg_rungs(&mut count) };
    // SAFETY: the library gives `count` pointers to static descriptors.
    let kernels = unsafe { std::slice::from_raw_parts(first, count) };
    // SAFETY: as above; none is null.
    kernels.iter().map(|&rung| Rung::Kernel(unsafe { &*rung })).chain([Rung::Cublas])
}

/// Addresses of dense matrices on the device.
#[derive(Clone, Copy)]
pub struct Addresses {
    pub a: *const c_void,
    pub b: *const c_void,
    pub d: *mut c_void,
}

impl Rung {
    pub fn name(&self) -> String {
        match self {
            Rung::Kernel(rung) => text(rung.name),
            Rung::Cublas => "cuBLAS".into(),
        }
    }

    pub fn row(&self, size: usize, err: f64) -> Row {
        let (why, tile) = match self {
            Rung::Kernel(rung) => (text(rung.why), Some(rung.tile.map(|extent| extent as u32))),
            Rung::Cublas => ("the vendor's choice among its kernels".into(), None),
        };
        let tile = tile.filter(|tile| !tile.contains(&0));
        Row {
            size,
            rung: self.name(),
            why,
            tile,
            roof_us: f64::NAN,
            cold_us: None,
            hot_us: f64::NAN,
            err,
            cpu_rows: None,
        }
    }

    /// Launches the rung. False: the rung does not support this size.
    ///
    /// # Safety
    /// The addresses are addresses of dense size x size matrices, f16, f16 and f32. The matrices stay allocated until
    /// the timer's stream has passed the launch.
    pub unsafe fn launch(&self, timer: &Timer, addresses: Addresses, size: usize) -> Result<bool> {
        let (Addresses { a, b, d }, queue, n) = (addresses, timer.queue(), size as c_int);
        match self {
            Rung::Kernel(rung) => {
                // SAFETY: ladder.h needs the promises that the caller made.
                let status = unsafe { (rung.launch)(a, b, d, n, n, n, queue.stream) };
                launched(&self.name(), status)
            }
            Rung::Cublas => {
                use sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
                use sys::cudaDataType_t::{CUDA_R_16F, CUDA_R_32F};
                let (one, zero) = (1f32, 0f32);
                let (alpha, beta) = ((&raw const one).cast(), (&raw const zero).cast());
                let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
                let algorithm = sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT;
                // cuBLAS is column-major: row-major D = A @ B^T is its D^T = (B^T)^T @ A^T.
                // SAFETY: as the caller promises; the handle is the handle of the timer's stream, and the scalars live.
                unsafe {
                    result::gemm_ex(
                        queue.cublas.cast(),
                        CUBLAS_OP_T,
                        CUBLAS_OP_N,
                        n,
                        n,
                        n,
                        alpha,
                        b,
                        CUDA_R_16F,
                        n,
                        a,
                        CUDA_R_16F,
                        n,
                        beta,
                        d,
                        CUDA_R_32F,
                        n,
                        compute,
                        algorithm,
                    )?;
                }
                Ok(true)
            }
        }
    }
}

/// A status of ladder.h: launched, not supported, or an error.
pub fn launched(name: &str, status: c_int) -> Result<bool> {
    match status {
        ffi::TG_RUNG_OK => Ok(true),
        ffi::TG_RUNG_UNSUPPORTED => Ok(false),
        _ => Err(format!("CUDA refuses to launch {name}; is this build for this GPU? (`tilegemm doctor`)").into()),
    }
}

fn text(string: *const c_char) -> String {
    // SAFETY: names and reasons are string literals of the library.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

/// cli/ladder/ladder.h.
pub mod ffi {
    use std::ffi::{c_char, c_int, c_void};

    pub const TG_RUNG_OK: c_int = 0;
    pub const TG_RUNG_UNSUPPORTED: c_int = 1;

    #[repr(C)]
    pub struct Rung {
        pub name: *const c_char,
        pub why: *const c_char,
        pub tile: [c_int; 3],
        pub launch: unsafe extern "C" fn(
            a: *const c_void,
            b: *const c_void,
            d: *mut c_void,
            m: c_int,
            n: c_int,
            k: c_int,
            stream: *mut c_void,
        ) -> c_int,
    }

    unsafe extern "C" {
        pub fn tg_rungs(count: *mut usize) -> *const *const Rung;
        pub fn tg_stream_read(
            data: *const c_void,
            bytes: usize,
            sink: *mut c_void,
            sm_count: c_int,
            stream: *mut c_void,
        ) -> c_int;
    }
}
