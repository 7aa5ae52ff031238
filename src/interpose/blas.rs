//! The other matrix products of cuBLAS, for programs that are already built.

use super::count::Forwarded;
use super::cublas::Gemm;
use super::define::define;
use super::vendor::{Contract, Product, Refusal};
use crate::launch::cublas::api::{CUDA_R_16F, CUDA_R_32F, CUDA_R_64F};
use crate::problem::f32_mode::compute_type;
use crate::problem::Format;
use std::ffi::{c_int, c_longlong, c_void};

define! {
    Cublas: fn cublasGemmEx(
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
        b: *const c_void,
        b_type: c_int,
        ldb: c_int,
        beta: *const c_void,
        c: *mut c_void,
        c_type: c_int,
        ldc: c_int,
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
        strides: [0; 3],
        batch: 1,
        compute_type,
    }
}

/// Defines a function for one type of operands.
macro_rules! typed {
    ($gemm:ident, $strided:ident, $type:expr, $scalars:expr, $compute_type:expr) => {
        define! {
            Cublas: fn $gemm(
                handle: *mut c_void,
                transa: c_int,
                transb: c_int,
                m: c_int,
                n: c_int,
                k: c_int,
                alpha: *const c_void,
                a: *const c_void,
                lda: c_int,
                b: *const c_void,
                ldb: c_int,
                beta: *const c_void,
                c: *mut c_void,
                ldc: c_int,
            ) -> c_int => Gemm {
                handle,
                ops: [transa, transb],
                sizes: [m, n, k],
                alpha,
                beta,
                scalars: $scalars,
                pointers: [a, b, c],
                types: [$type; 3],
                ld: [lda, ldb, ldc],
                strides: [0; 3],
                batch: 1,
                compute_type: $compute_type,
            }
        }
        define! {
            Cublas: fn $strided(
                handle: *mut c_void,
                transa: c_int,
                transb: c_int,
                m: c_int,
                n: c_int,
                k: c_int,
                alpha: *const c_void,
                a: *const c_void,
                lda: c_int,
                stride_a: c_longlong,
                b: *const c_void,
                ldb: c_int,
                stride_b: c_longlong,
                beta: *const c_void,
                c: *mut c_void,
                ldc: c_int,
                stride_c: c_longlong,
                batch: c_int,
            ) -> c_int => Gemm {
                handle,
                ops: [transa, transb],
                sizes: [m, n, k],
                alpha,
                beta,
                scalars: $scalars,
                pointers: [a, b, c],
                types: [$type; 3],
                ld: [lda, ldb, ldc],
                strides: [stride_a, stride_b, stride_c],
                batch,
                compute_type: $compute_type,
            }
        }
    };
}

typed!(cublasSgemm_v2, cublasSgemmStridedBatched, CUDA_R_32F, Format::F32, compute_type::F32);
typed!(cublasDgemm_v2, cublasDgemmStridedBatched, CUDA_R_64F, Format::F64, compute_type::F64);
// cuBLAS may add these products in f16; our kernels add every product of f16 in f32.
typed!(cublasHgemm, cublasHgemmStridedBatched, CUDA_R_16F, Format::F16, compute_type::F32);

/// A call whose matrices are at the addresses of arrays in device memory. No kernel here takes such arrays.
struct PointerArrays {
    sizes: [c_int; 3],
    batch: c_int,
}

impl Contract for PointerArrays {
    unsafe fn product(&self) -> Result<Product, Refusal> {
        Err((Forwarded::PointerArrays, None))
    }

    fn describe(&self) -> String {
        let [m, n, k] = self.sizes;
        format!("{n}x{m}x{k} at {} addresses", self.batch)
    }
}

define! {
    Cublas: fn cublasGemmBatchedEx(
        handle: *mut c_void,
        transa: c_int,
        transb: c_int,
        m: c_int,
        n: c_int,
        k: c_int,
        alpha: *const c_void,
        a: *const *const c_void,
        a_type: c_int,
        lda: c_int,
        b: *const *const c_void,
        b_type: c_int,
        ldb: c_int,
        beta: *const c_void,
        c: *const *mut c_void,
        c_type: c_int,
        ldc: c_int,
        batch: c_int,
        compute_type: c_int,
        algo: c_int,
    ) -> c_int => PointerArrays { sizes: [m, n, k], batch }
}

define! {
    Cublas: fn cublasSgemmBatched(
        handle: *mut c_void,
        transa: c_int,
        transb: c_int,
        m: c_int,
        n: c_int,
        k: c_int,
        alpha: *const c_void,
        a: *const *const c_void,
        lda: c_int,
        b: *const *const c_void,
        ldb: c_int,
        beta: *const c_void,
        c: *const *mut c_void,
        ldc: c_int,
        batch: c_int,
    ) -> c_int => PointerArrays { sizes: [m, n, k], batch }
}
