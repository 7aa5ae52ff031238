//! The arguments of a launch beside its plan: pointers, stream and handle.

use crate::partition::Piece;
use std::ffi::c_void;

/// Device pointers of one product, to the first element of the first matrix of the batch.
#[derive(Debug, Clone, Copy)]
pub struct Pointers {
    /// m x k
    pub a: *const c_void,
    /// k x n
    pub b: *const c_void,
    /// m x n; only read when beta is not 0, and may be null when beta is 0.
    pub c: *const c_void,
    /// One value per row or column; null without a bias.
    pub bias: *const c_void,
    /// m x n
    pub d: *mut c_void,
}

impl Pointers {
    /// The pointers of a piece of the product.
    pub(super) fn of_piece(self, piece: &Piece) -> Self {
        let size = piece.problem.dtype.bytes() as i64;
        let at = |pointer: *const c_void, elements: i64| pointer.wrapping_byte_offset((elements * size) as isize);
        let offsets = piece.offsets();
        Self {
            a: at(self.a, offsets.a),
            b: at(self.b, offsets.b),
            c: at(self.c, offsets.c),
            bias: if self.bias.is_null() { self.bias } else { at(self.bias, offsets.bias) },
            d: at(self.d, offsets.d).cast_mut(),
        }
    }
}

/// The stream and the handle of a launch.
#[derive(Debug, Clone, Copy)]
pub struct Queue {
    /// A CUDA stream of the current device; null and the per-thread default stream included.
    pub stream: *mut c_void,
    /// A cuBLAS handle that is set to that stream and in host pointer mode, for plans that chose the vendor library.
    /// The handle may be null for plans that cannot choose the vendor library ([`crate::dispatch::Policy::own`]). No
    /// other thread uses the handle meanwhile. The handle's math mode may change during the call and is restored
    /// afterwards.
    pub cublas: *mut c_void,
}
