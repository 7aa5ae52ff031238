//! Which of the kernels that can run a problem is taken.

use super::Candidate;
use crate::kernel::{Family, KernelDesc};
use crate::problem::{DType, Problem};

/// What an own kernel's estimate has to be of cuBLAS's, at most: where no record tells how good the estimates are, and for few outputs,
/// where the record has estimates of both that are 20 % off. The same of `split_k`'s estimate and those of our other kernels.
const UNRECORDED: f64 = 0.8;
const FEW_OUTPUTS: f64 = 0.9;
const SPLIT_K: f64 = 0.8;
/// Elements of B whose three bf16 parts fit into the default workspace.
const ONE_PIECE: usize = (crate::workspace::DEFAULT_BYTES / 6) as usize;

/// The kernel with the lowest estimate and that estimate, with three exceptions:
///
/// - `reference` is taken only where no other kernel runs the problem.
/// - Outside of what the records cover ([`lead`]), one of our kernels is taken before cuBLAS only where its estimate is below 0.8 of
///   cuBLAS's.
/// - `split_k`, whose estimates are the least exact, is taken before our other kernels with such a lead, too.
///
/// On a tie the kernel for the newest architecture is taken, then the first in the table.
pub(super) fn fastest(problem: &Problem, candidates: &[Candidate]) -> Option<(&'static KernelDesc, f64)> {
    let able = || candidates.iter().filter_map(|c| Some((c.kernel, *c.verdict.as_ref().ok()?)));
    let least = |among: &dyn Fn(&KernelDesc) -> bool| {
        let among = able().filter(|(kernel, _)| among(kernel));
        among.min_by(|(x, x_us), (y, y_us)| x_us.total_cmp(y_us).then(y.arch.capability.cmp(&x.arch.capability)))
    };
    let own = least(&|kernel| !matches!(kernel.family, Family::Cublas | Family::Reference | Family::SplitK));
    let split = least(&|kernel| kernel.family == Family::SplitK);
    let own = match (own, split) {
        (Some(own), Some(split)) => Some(if split.1 < SPLIT_K * own.1 { split } else { own }),
        (own, split) => own.or(split),
    };
    let vendor = least(&|kernel| kernel.family == Family::Cublas);
    match (own, vendor) {
        (Some(own), Some(vendor)) => Some(if own.1 < lead(problem) * vendor.1 { own } else { vendor }),
        (own, vendor) => own.or(vendor).or_else(|| least(&|_| true)),
    }
}

/// What an own kernel's estimate may be of cuBLAS's, by whether benches/record has products like this one.
///
/// The suite's records have operands whose rows lie at multiples of 16 bytes, and of these:
///
/// - linear layers (one matrix) in 16 bits with N from 1024 to 160,000 and K from 512 to 32,768; routers with N from 256 on, K from 1024
///   on and up to 16 rows; in f32 and f64 N and K from 384 to 8192, as long as the parts of B fit into the workspace; M up to 16,384;
/// - attention (several matrices) with N and K from 64 to 4096;
/// - K = 1 in f32.
///
/// The record of few outputs has one matrix of up to 256 rows and columns, whatever its alignment, and K from 33 on.
fn lead(problem: &Problem) -> f64 {
    let Problem { m, n, k, .. } = *problem;
    let one = problem.batch_count() == 1;
    let aligned = problem.alignments().iter().all(|(_, align)| *align >= 16);
    let linear = match problem.dtype {
        DType::F16 | DType::BF16 if m <= 16 && k >= 1024 => (256..=160_000).contains(&n) && k <= 32_768,
        DType::F16 | DType::BF16 => (1024..=160_000).contains(&n) && (512..=32_768).contains(&k),
        _ => n.min(k) >= 384 && n.max(k) <= 8192 && n * k <= ONE_PIECE,
    };
    let attention = n.min(k) >= 64 && n.max(k) <= 4096;
    match () {
        _ if k == 1 && problem.dtype == DType::F32 => 1.0,
        _ if aligned && one && linear && m <= 16_384 => 1.0,
        _ if aligned && !one && attention => 1.0,
        _ if one && m.max(n) <= 256 && k > 32 => FEW_OUTPUTS,
        _ => UNRECORDED,
    }
}
