//! The pieces that the families of products of 8 bits by 8 bits share: which factors there are, and how sums are kept.

use crate::kernel::{KernelDesc, Math, Rejection};
use crate::problem::{Format, Problem, Scale};

/// Numbers of K, and rows of W, that share a factor of blocks.
const BLOCK: u32 = 128;

/// How sums are kept. csrc/fp8/factors.hpp has the same kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sums {
    /// In the tensor cores over all of K.
    Whole,
    /// In f32 every 128 of K.
    Promoted,
    /// The same, times factors of blocks.
    Blocks,
}

/// What shares a factor along an extent: all, or so many numbers. Without factors all have 1.
fn shared(scale: Option<Scale>, along: usize, extent: usize) -> Option<u32> {
    scale.map(|scale| scale.granularity[along]).filter(|shared| (*shared as usize) < extent)
}

/// Whether there are factors of blocks: along K, or for several rows of W.
fn has_blocks(problem: &Problem) -> bool {
    let Problem { n, k, a, b, .. } = *problem;
    let along_k = shared(a.scale, 1, k).or(shared(b.scale, 0, k)).is_some();
    along_k || shared(b.scale, 1, n).is_some_and(|rows| rows != 1)
}

/// How the kernel keeps the sums of a problem that it supports.
pub(super) fn sums(kernel: &KernelDesc, problem: &Problem) -> Sums {
    match () {
        _ if has_blocks(problem) => Sums::Blocks,
        _ if kernel.types.a == Format::I8 || kernel.math == Math::FastAccum => Sums::Whole,
        _ => Sums::Promoted,
    }
}

/// Whether the kernel takes the factors: one, one for each row, or blocks of 1 x 128 and of 128 x 128. `factors_of` of csrc/fp8/factors.hpp has the same
/// conditions.
pub(super) fn supports(kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
    let Problem { m, n, k, a, b, .. } = *problem;
    let refuse = |operand, what| Err(Rejection::Factors { operand, what });
    for (operand, scale) in [("A", a.scale), ("B", b.scale)] {
        if scale.is_some_and(|scale| scale.format != Format::F32) {
            return refuse(operand, "are not in f32");
        }
    }
    let is = |shared: Option<u32>, of: u32| shared.is_none_or(|shared| shared == of);
    if !is(shared(a.scale, 0, m), 1) || !is(shared(a.scale, 1, k), BLOCK) {
        return refuse("A", "are of other numbers than all, a row, or 1 x 128");
    }
    let blocks = has_blocks(problem);
    if !is(shared(b.scale, 1, n), if blocks { BLOCK } else { 1 }) || !is(shared(b.scale, 0, k), BLOCK) {
        return refuse("B", "are of other numbers than all, a row of W, or 128 x 128, which go with those of A");
    }
    match sums(kernel, problem) {
        Sums::Blocks if kernel.types.a == Format::I8 || kernel.math == Math::FastAccum => {
            refuse("B", "are of blocks; expected one, or one for each row of W")
        }
        Sums::Blocks if a.scale.is_none() => refuse("A", "are absent; expected some beside blocks of B"),
        Sums::Blocks if b.scale.is_none() => refuse("B", "are absent; expected some beside blocks of A"),
        _ => Ok(()),
    }
}
