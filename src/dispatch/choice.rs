//! Which of the kernels that can run a problem is taken.

use super::{Candidate, Chosen, Dispatcher, Policy};
use crate::cost;
use crate::error::Error;
use crate::kernel::{KernelDesc, Rejection, Role};
use crate::packing::{self, Packing};
use crate::problem::{Format, Layout, Problem};

/// What an own kernel's estimate has to be of cuBLAS's, at most: where no record tells how good the estimates are, and for few outputs,
/// where the record has estimates of both that are 20 % off.
const UNRECORDED: f64 = 0.8;
const FEW_OUTPUTS: f64 = 0.9;
/// Elements of B whose three bf16 parts fit into the default workspace.
const ONE_PIECE: usize = (crate::workspace::DEFAULT_BYTES / 6) as usize;

impl Dispatcher {
    /// The candidates that can run the canonical `problem`. Of our kernels with exact estimates, only the estimates that can be the lowest
    /// are settled ([`settled`](crate::kernel::Family::settled)): the others are too low, and no lower than the lowest.
    pub(super) fn able(&self, problem: &Problem, policy: Policy) -> Vec<Candidate> {
        // A refusal for its types or layout takes longer to write down than to find.
        let (types, layout) = (problem.types(), problem.layout());
        let fits = |kernel: &&&KernelDesc| kernel.types == types && [Layout::Any, layout].contains(&kernel.layout);
        let able = self.kernels.iter().filter(fits).filter_map(|&kernel| {
            self.admits(kernel, problem, policy).ok()?;
            let (config, us) = cost::configure_unsettled(self.family(kernel), &self.case(kernel, problem, policy));
            Some(Candidate { kernel, verdict: Ok(us), config })
        });
        let mut able: Vec<Candidate> = able.collect();
        let mut settled = vec![false; able.len()];
        let us = |candidate: &Candidate| candidate.verdict.as_ref().map_or(f64::INFINITY, |us| *us);
        loop {
            let sure = (0..able.len()).filter(|&i| is_sure(able[i].kernel));
            let least = sure.min_by(|&x, &y| us(&able[x]).total_cmp(&us(&able[y])).then(settled[x].cmp(&settled[y])));
            let Some(least) = least.filter(|least| !settled[*least]) else { return able };
            let Candidate { kernel, config, .. } = able[least];
            let case = self.case(kernel, problem, policy);
            able[least].verdict = Ok(cost::settled(self.family(kernel), &case, &config, us(&able[least])));
            settled[least] = true;
        }
    }

    /// The choice on copies of operands ([`crate::packing`]), where it is faster than `direct`, the choice without copies.
    pub(super) fn with_packing(&self, problem: &Problem, policy: Policy, direct: Option<Chosen>) -> Option<Chosen> {
        let mut best = direct;
        let direct_us = best.as_ref().map_or(f64::INFINITY, |direct| packing::LEAD * direct.us);
        let mut most = if policy.copies { f64::INFINITY } else { direct_us };
        let fits = |packing: &Packing| {
            packing.footprint(problem).is_some_and(|footprint| footprint.need(problem).least <= policy.workspace)
        };
        for packing in Packing::each(problem).filter(fits) {
            let copies = packing.us(problem, &self.device);
            let inner = packing.inner(problem);
            if copies + cost::roofline_us(&inner, &self.device) >= most {
                continue;
            }
            // With such a K, cuBLAS takes kernels for unaligned operands, wherever lines start.
            let vendor = policy.vendor && packing::is_whole_k(&inner);
            let policy = Policy { vendor, ..policy.with_workspace(0) };
            let able = self.able(&inner, policy);
            let tuned = self.tuned(&inner, policy, &able);
            let chosen = self.decide(&inner, &able, &tuned).filter(|chosen| chosen.kernel.role != Role::LastResort);
            let Some(chosen) = chosen.filter(|chosen| copies + chosen.us < most) else { continue };
            most = copies + chosen.us;
            best = Some(Chosen { us: most, packing: Some(packing), ..chosen });
        }
        best
    }
}

/// Whether a kernel is ours, with estimates as exact as those of most families.
fn is_sure(kernel: &KernelDesc) -> bool {
    kernel.role == Role::Kernel && kernel.family().lead() == 1.0
}

/// The kernel with the lowest estimate and that estimate, with three exceptions:
///
/// - A kernel of last resort is taken only where no other kernel runs the problem.
/// - Outside of what the records cover ([`lead`]), one of our kernels is taken before cuBLAS only where its estimate is below 0.8 of
///   cuBLAS's.
/// - A family whose estimates are the least exact is taken before our other kernels with such a lead, too
///   ([`lead`](crate::kernel::Family::lead)).
///
/// On a tie the kernel for the newest architecture is taken, then the first in the table.
pub(super) fn fastest<'a>(problem: &Problem, candidates: &'a [Candidate]) -> Option<&'a Candidate> {
    let least = |among: &dyn Fn(&KernelDesc) -> bool| {
        let able = candidates.iter().filter(|c| among(c.kernel));
        let able = able.filter_map(|c| Some((c, *c.verdict.as_ref().ok()?)));
        let newest = |c: &Candidate| std::cmp::Reverse(c.kernel.arch.capability);
        able.min_by(|(x, x_us), (y, y_us)| x_us.total_cmp(y_us).then(newest(x).cmp(&newest(y))))
    };
    let sure = least(&is_sure);
    let unsure = least(&|kernel| kernel.role == Role::Kernel && kernel.family().lead() < 1.0);
    let own = match (sure, unsure) {
        (Some(sure), Some(unsure)) => {
            Some(if unsure.1 < unsure.0.kernel.family().lead() * sure.1 { unsure } else { sure })
        }
        (sure, unsure) => sure.or(unsure),
    };
    let vendor = least(&|kernel| kernel.role == Role::Vendor);
    let taken = match (own, vendor) {
        (Some(own), Some(vendor)) => Some(if own.1 < lead(problem) * vendor.1 { own } else { vendor }),
        (own, vendor) => own.or(vendor).or_else(|| least(&|_| true)),
    };
    taken.map(|(candidate, _)| candidate)
}

/// What an own kernel's estimate may be of cuBLAS's, by whether benches/record has products like this one.
///
/// The suite's records have operands whose rows lie at multiples of 16 bytes, and of these:
///
/// - linear layers (one matrix) in 16 bits with N from 1024 to 160,000 and K from 512 to 32,768; routers with N from 256 on, K from 1024
///   on and up to 16 rows; up to 256 rows in nt with N and K from 192 on (random products of seeds 3 and 4); in f32 and f64 N and K from
///   384 to 8192, as long as the parts of B fit into the workspace; M up to 16,384;
/// - attention (several matrices) with N and K from 64 to 4096;
/// - K = 1 in f32.
///
/// The record of few outputs has one matrix of up to 256 rows and columns, whatever its alignment, and K from 33 on.
fn lead(problem: &Problem) -> f64 {
    let Problem { m, n, k, .. } = *problem;
    let one = problem.batch_count() == 1;
    let aligned = problem.alignments().iter().all(|(_, align)| *align >= 16);
    let linear = match problem.a.format {
        Format::F16 | Format::BF16 if m <= 16 && k >= 1024 => (256..=160_000).contains(&n) && k <= 32_768,
        Format::F16 | Format::BF16 if m <= 256 && problem.layout() == Layout::NT => {
            (192..=160_000).contains(&n) && (192..=32_768).contains(&k)
        }
        Format::F16 | Format::BF16 => (1024..=160_000).contains(&n) && (512..=32_768).contains(&k),
        _ => n.min(k) >= 384 && n.max(k) <= 8192 && n * k <= ONE_PIECE,
    };
    let attention = n.min(k) >= 64 && n.max(k) <= 4096;
    match () {
        _ if k == 1 && problem.is_f32() => 1.0,
        _ if aligned && one && linear && m <= 16_384 => 1.0,
        _ if aligned && !one && attention => 1.0,
        _ if one && m.max(n) <= 256 && k > 32 => FEW_OUTPUTS,
        _ => UNRECORDED,
    }
}

/// The candidate of a kernel.
pub(super) fn find<'a>(candidates: &'a [Candidate], kernel: &KernelDesc) -> Option<&'a Candidate> {
    candidates.iter().find(|candidate| candidate.kernel.index == kernel.index)
}

/// The error that no kernel runs `problem`.
pub(super) fn unsupported(problem: &Problem, candidates: &[Candidate]) -> Error {
    // Kernels for other devices, dtypes and layouts explain nothing here.
    let near = candidates.iter().filter_map(|c| match &c.verdict {
        Err(Rejection::Arch { .. } | Rejection::Types { .. } | Rejection::Groups | Rejection::Layout { .. })
        | Ok(_) => None,
        Err(rejection) => Some(format!("{}: {rejection}", c.kernel.name)),
    });
    let reasons: Vec<String> = near.take(4).collect();
    let reasons =
        if reasons.is_empty() { "none was built for this device and dtype".into() } else { reasons.join("; ") };
    Error::Unsupported { problem: problem.to_string(), reasons }
}
