//! The signatures of candle's kernels behind `QMatMul`.

use std::ffi::c_void;

/// W times a few rows: W, the scratch buffer, D, K, N, blocks of a row in the scratch buffer, elements from a row of D to the next, M, the stream.
pub type FewRows =
    unsafe extern "C" fn(*const c_void, *const c_void, *mut c_void, i32, i32, i32, i32, i32, *mut c_void);
/// A few rows of activations: the activations, the scratch buffer, K, K in the scratch buffer, rows, the stream.
#[cfg(feature = "interpose-kernels")]
pub(crate) type QuantizeFewRows = unsafe extern "C" fn(*const c_void, *mut c_void, i32, i32, i32, *mut c_void);
/// W times rows: a second scratch buffer, W, the scratch buffer, D, K, N, M, blocks from a row of W to the next, elements from a row of D to the next, four facts of
/// the device, the stream.
pub type Rows = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    *const c_void,
    *mut c_void,
    i64,
    i64,
    i64,
    i64,
    i64,
    i32,
    i32,
    i64,
    i32,
    *mut c_void,
);
/// Rows of activations in f32: the activations, a list of rows, the scratch buffer, a type that nothing reads, K, elements from a row to the next and to the next
/// matrices, K in the scratch buffer, rows, matrices in two dimensions, the stream.
pub type QuantizeRows = unsafe extern "C" fn(
    *const c_void,
    *const i32,
    *mut c_void,
    i32,
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    *mut c_void,
);
