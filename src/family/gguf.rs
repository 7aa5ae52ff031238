//! The pieces that the families with the weights of GGUF files share.

use crate::kernel::{Rejection, INT};
use crate::problem::{Format, Groups, Problem};

/// Numbers of K that a warp loads at a time.
pub(super) const SPAN: usize = 256;
/// The largest stride of B, in elements: 16 rows of W span less than 2^32 bytes. csrc/gguf/ring.hpp has the same number.
const MOST_STRIDE: u64 = 1 << 27;

pub(super) fn supports(problem: &Problem) -> Result<(), Rejection> {
    match problem.b.col_stride {
        have if have.unsigned_abs() > MOST_STRIDE => Err(Rejection::Stride { operand: "B", have, most: MOST_STRIDE }),
        _ => Ok(()),
    }
}

/// The format's place in lists of fitted numbers.
pub(super) fn place(format: Format) -> usize {
    Format::blocks().take_while(|block| *block != format).count().min(12)
}

/// The device.hpp of both families of groups have the same numbers.
const MOST_GROUPS: usize = 4096;

/// Whether the kernels of groups take the problem: their lists hold the groups, and the number of tiles, in `[rows, columns]`, is a number of 32 bits.
pub(super) fn supports_groups(
    problem: &Problem,
    groups: &Groups,
    tile: [usize; 2],
    most_with_rows: usize,
) -> Result<(), Rejection> {
    let filled = groups.count.min(problem.m);
    let tiles = (problem.m.div_ceil(tile[0]) + filled).saturating_mul(problem.n.div_ceil(tile[1]));
    Rejection::check_counts([
        ("groups", groups.count, MOST_GROUPS),
        ("groups with rows", filled, most_with_rows),
        ("tiles", tiles, INT / 4),
    ])?;
    supports(problem)
}
