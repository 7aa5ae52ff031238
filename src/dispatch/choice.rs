//! Which of the kernels that can run a problem is taken.

use super::Candidate;
use crate::kernel::{Family, KernelDesc};
use crate::problem::{DType, Problem};

/// What an own kernel's estimate has to be of cuBLAS's, at most, where no record tells how good the estimates are.
const UNRECORDED: f64 = 0.8;

/// The kernel with the lowest estimate and that estimate, with two exceptions:
///
/// - `reference` is taken only where no other kernel runs the problem.
/// - Outside of what the records cover ([`is_recorded`]), one of our kernels is taken before cuBLAS only where its estimate is below
///   0.8 of cuBLAS's.
///
/// On a tie the kernel for the newest architecture is taken, then the first in the table.
pub(super) fn fastest(problem: &Problem, candidates: &[Candidate]) -> Option<(&'static KernelDesc, f64)> {
    let able = || candidates.iter().filter_map(|c| Some((c.kernel, *c.verdict.as_ref().ok()?)));
    let least = |among: &dyn Fn(&KernelDesc) -> bool| {
        let among = able().filter(|(kernel, _)| among(kernel));
        among.min_by(|(x, x_us), (y, y_us)| x_us.total_cmp(y_us).then(y.arch.capability.cmp(&x.arch.capability)))
    };
    let own = least(&|kernel| !matches!(kernel.family, Family::Cublas | Family::Reference));
    let vendor = least(&|kernel| kernel.family == Family::Cublas);
    match (own, vendor) {
        (Some(own), Some(vendor)) => {
            let factor = if is_recorded(problem) { 1.0 } else { UNRECORDED };
            Some(if own.1 < factor * vendor.1 { own } else { vendor })
        }
        (own, vendor) => own.or(vendor).or_else(|| least(&|_| true)),
    }
}

/// Whether benches/record has products like this one, so that estimates of our kernels and of cuBLAS are known to hold.
///
/// The records have operands whose rows lie at multiples of 16 bytes, and of these:
///
/// - linear layers (one matrix) with N and K from 256 to 57,344 and 32,768, of which the shorter K or N is at least 384, with any M
///   up to 16,384;
/// - attention (several matrices) with M and N of 4 to 4096 and a head of 64 or more, and with M = 1 to 4 in decoding;
/// - K = 1 in f32.
fn is_recorded(problem: &Problem) -> bool {
    let Problem { m, n, k, .. } = *problem;
    if k == 1 && problem.dtype == DType::F32 {
        return true;
    }
    let aligned = problem.alignments().iter().all(|(_, align)| *align >= 16);
    let linear = (256..=57_344).contains(&n) && (256..=32_768).contains(&k) && n.max(k) >= 384 && m <= 16_384;
    // Rows without end of few columns, and long sums of them, were not measured.
    let shape =
        if problem.batch_count() == 1 { linear && !is_long(problem) } else { n.min(k) >= 64 && n.max(k) <= 4096 };
    aligned && shape
}

/// Whether sums are long for so few columns and more rows than in decoding: no record has N below 1024 with K above 8192 there.
fn is_long(problem: &Problem) -> bool {
    problem.m > 16 && problem.n < 1024 && problem.k > 8192
}
