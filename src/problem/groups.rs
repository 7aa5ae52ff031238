//! Products of groups of rows, each with a matrix B of its own.

/// Rows of A and D that belong to one matrix B each, as in a mixture-of-experts model. The rows of a group follow one
/// another, and the numbers of rows lie on the device. A plan depends on the three numbers here and in the problem (M is the total
/// of rows), never on the numbers on the device.
///
/// No kernel takes groups yet: a problem with groups is rejected with
/// [`Rejection::Groups`](crate::kernel::Rejection::Groups).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Groups {
    /// Groups, and matrices B, which are the inner batch stride of B apart.
    pub count: usize,
    /// The expected rows of a group that has rows.
    pub expected_rows: usize,
}

impl Groups {
    /// `count` groups, of some `expected_rows` rows each.
    pub const fn new(count: usize, expected_rows: usize) -> Self {
        Self { count, expected_rows }
    }
}
