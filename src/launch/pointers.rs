//! The arguments of a launch beside its plan: pointers, stream and handle.

use crate::problem::Format;
use crate::workspace::partition::Piece;
use std::ffi::c_void;
use std::ptr::null;

/// Device pointers of one product, to the first element of the first matrix of the batch.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
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
    /// The factors of A, B and D ([`Scale`](crate::problem::Scale)), aligned to their format; null without factors.
    pub scales: [*const c_void; 3],
    /// The zeros of A, B and D, u8; null without zeros.
    pub zeros: [*const c_void; 3],
    /// The arrays of [`Groups`](crate::problem::Groups); null pointers without groups.
    pub groups: GroupPointers,
}

/// Device pointers of a product with [`Groups`](crate::problem::Groups) of rows.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct GroupPointers {
    /// As [`Bounds`](crate::problem::Bounds) says: the first row of each group and the end of the last group, in i32, or the group of each
    /// row, in u32.
    pub bounds: *const c_void,
    /// The pair of each row of the product, u32; null where rows are in order ([`Rows`](crate::problem::Rows)).
    pub pairs: *const c_void,
    /// The factor of each row of D, f32; null where rows have no factors.
    pub scales: *const c_void,
}

impl GroupPointers {
    /// No groups.
    pub const NONE: Self = Self { bounds: null(), pairs: null(), scales: null() };

    /// Groups by their bounds, with rows in order.
    pub const fn new(bounds: *const c_void) -> Self {
        Self { bounds, ..Self::NONE }
    }

    /// The same groups with the list of pairs and the factors; null for none.
    pub const fn with_lists(self, pairs: *const c_void, scales: *const c_void) -> Self {
        Self { pairs, scales, ..self }
    }
}

impl Pointers {
    /// The pointers of a product without bias and C.
    pub const fn new(a: *const c_void, b: *const c_void, d: *mut c_void) -> Self {
        let none = [null(); 3];
        Self { a, b, c: null(), bias: null(), d, scales: none, zeros: none, groups: GroupPointers::NONE }
    }

    /// The same pointers with a C.
    pub const fn with_c(self, c: *const c_void) -> Self {
        Self { c, ..self }
    }

    /// The same pointers with a bias.
    pub const fn with_bias(self, bias: *const c_void) -> Self {
        Self { bias, ..self }
    }

    /// The same pointers with the factors of B, and its zeros; null for none.
    pub const fn with_scale_of_b(self, factors: *const c_void, zeros: *const c_void) -> Self {
        let ([a, _, d], [a_zeros, _, d_zeros]) = (self.scales, self.zeros);
        Self { scales: [a, factors, d], zeros: [a_zeros, zeros, d_zeros], ..self }
    }

    /// The same pointers with the factors of A; null for none.
    pub const fn with_scale_of_a(self, factors: *const c_void) -> Self {
        let [_, b, d] = self.scales;
        Self { scales: [factors, b, d], ..self }
    }

    /// The same pointers with groups of rows.
    pub const fn with_groups(self, groups: GroupPointers) -> Self {
        Self { groups, ..self }
    }

    /// The pointers of the transposed product.
    pub(super) fn transposed(self) -> Self {
        let swapped = |[a, b, d]: [*const c_void; 3]| [b, a, d];
        Self { a: self.b, b: self.a, scales: swapped(self.scales), zeros: swapped(self.zeros), ..self }
    }

    /// The pointers of a piece of the product.
    pub(super) fn of_piece(self, piece: &Piece) -> Self {
        let at = |pointer: *const c_void, format: Format, elements: i64| {
            pointer.wrapping_byte_offset(format.offset(elements) as isize)
        };
        let (types, offsets) = (piece.problem.types(), piece.offsets());
        let factors = |operand: usize| {
            let scale = [&piece.problem.a, &piece.problem.b, &piece.problem.d][operand].scale;
            match scale {
                Some(scale) => at(self.scales[operand], scale.format, offsets.scales[operand]),
                None => self.scales[operand],
            }
        };
        let zeros = |operand: usize| match self.zeros[operand].is_null() {
            true => self.zeros[operand],
            false => at(self.zeros[operand], Format::U8, offsets.scales[operand]),
        };
        Self {
            a: at(self.a, types.a, offsets.a),
            b: at(self.b, types.b, offsets.b),
            c: at(self.c, types.c, offsets.c),
            bias: if self.bias.is_null() { self.bias } else { at(self.bias, types.c, offsets.bias) },
            d: at(self.d, types.d, offsets.d).cast_mut(),
            scales: [0, 1, 2].map(factors),
            zeros: [0, 1, 2].map(zeros),
            ..self
        }
    }
}

/// The stream and the handle of a launch.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Queue {
    /// A CUDA stream of the current device; null and the per-thread default stream included.
    pub stream: *mut c_void,
    /// A cuBLAS handle that is set to that stream and in host pointer mode, for plans that chose the vendor library.
    /// The handle may be null for plans that cannot choose the vendor library ([`crate::dispatch::Policy::own`]). No
    /// other thread uses the handle meanwhile. The handle's math mode may change during the call and is restored
    /// afterwards.
    pub cublas: *mut c_void,
}

impl Queue {
    /// A stream, and a cuBLAS handle that may be null where the field's description says so.
    pub const fn new(stream: *mut c_void, cublas: *mut c_void) -> Self {
        Self { stream, cublas }
    }
}
