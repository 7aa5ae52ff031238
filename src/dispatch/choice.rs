//! Which of the kernels that can run a problem is taken.

use super::chosen::{Chosen, Reason};
use super::dispatcher::Dispatcher;
use super::explanation::{Candidate, Tuned};
use super::policy::Policy;
use super::{left_out, margins};
use crate::arch::{Arch, DeviceInfo};
use crate::cost;
use crate::error::Error;
use crate::family::{BUILT_ARCHS, KERNELS};
use crate::kernel::{in_words, KernelDesc, Rejection, Role};
use crate::packing::{self, Packing};
use crate::problem::{Format, Layout, Problem};
use crate::tuning::{Among, Entry};
use crate::workspace::partition::Partition;

/// Estimates up to this multiple of the lowest are corrected, and contest the choice of a program that learns.
pub(super) const REACH: f64 = 1.15;

impl Dispatcher {
    /// The error that no kernel runs the problem `asked`.
    pub(super) fn unsupported(&self, asked: &Problem, canonical: &Problem, policy: Policy) -> Error {
        let lacking = left_out::lacking(asked);
        if self.only_built && !lacking.is_empty() {
            return Error::NotBuilt { problem: asked.to_string(), features: in_words(&lacking) };
        }
        let candidates = self.candidates(canonical, policy, self.able(canonical, policy));
        unsupported(asked, &candidates, &self.device, self.only_built)
    }

    /// The candidates that can run the canonical `problem`. Only estimates near the lowest are corrected
    /// ([`Model::corrected`](crate::family::model::Model::corrected)), because a correction takes as long as many estimates.
    pub(super) fn able(&self, problem: &Problem, policy: Policy) -> Vec<Candidate> {
        // A refusal for its types or layout takes longer to write down than to find.
        let (types, layout) = (problem.types(), problem.layout());
        let fits = |kernel: &&&KernelDesc| kernel.types == types && [Layout::Any, layout].contains(&kernel.layout);
        let able = self.kernels.iter().filter(fits).filter_map(|&kernel| {
            self.admits(kernel, problem, policy).ok()?;
            let (config, us) = self.model(kernel).uncorrected(&self.case(kernel, problem, policy));
            self.has_memory(kernel, problem, policy, &config).ok()?;
            Some(Candidate { kernel, verdict: Ok(us), config })
        });
        let mut able: Vec<Candidate> = able.collect();
        let mut open: Vec<_> = able.iter().map(|candidate| candidate.kernel).enumerate().collect();
        loop {
            let us = |candidate: &Candidate| candidate.verdict.as_ref().map_or(f64::INFINITY, |us| *us);
            let least = able.iter().map(us).fold(f64::INFINITY, f64::min);
            let (near, far): (Vec<_>, Vec<_>) = open.into_iter().partition(|(i, _)| us(&able[*i]) <= least * REACH);
            if near.is_empty() {
                return able;
            }
            // The kernels of a family are neighbours in the table.
            let trees = |kernel| self.model(kernel).trees.trees;
            for group in near.chunk_by(|x, y| std::ptr::eq(trees(x.1), trees(y.1))) {
                let choice = |(i, kernel): &(usize, &'static KernelDesc)| {
                    (self.case(kernel, problem, policy), able[*i].config, us(&able[*i]))
                };
                let choices: Vec<_> = group.iter().map(choice).collect();
                let corrected = self.model(group[0].1).corrected(&choices);
                for ((i, _), (config, us)) in group.iter().zip(corrected) {
                    (able[*i].config, able[*i].verdict) = (config, Ok(us));
                }
            }
            open = far;
        }
    }

    /// The answers of the measured tables, up to the first entry whose kernel can run.
    pub(super) fn tuned(&self, problem: &Problem, policy: Policy, candidates: &[Candidate]) -> Vec<Tuned> {
        if policy.forced.is_some() || policy.batch_invariant {
            return Vec::new();
        }
        let mut tuned = Vec::new();
        for (table, entry) in self.tables.lookup(problem, Among::with_vendor(policy.vendor)) {
            let rejection = match find(candidates, entry.kernel) {
                Some(candidate) => candidate.verdict.as_ref().err().cloned(),
                None => self.judge(entry.kernel, problem, policy).verdict.err(),
            };
            let rejection = rejection.or_else(|| self.check(entry.kernel, problem, policy, entry.config?).err());
            let runs = rejection.is_none();
            tuned.push(Tuned { table, entry, rejection });
            if runs {
                break;
            }
        }
        tuned
    }

    /// The choice among the candidates, without copies of operands.
    pub(super) fn among(&self, problem: &Problem, candidates: &[Candidate], tuned: &[Tuned]) -> Option<Chosen> {
        let fastest = fastest(problem, &self.device, candidates)?;
        let us = *fastest.verdict.as_ref().ok()?;
        Some(match tuned.iter().find(|tuned| tuned.rejection.is_none()) {
            Some(Tuned { entry: Entry { kernel, config, gain, learned, .. }, .. }) => {
                // The time of the estimate's choice over the measured gain: the measurement has shown the entry's own estimate to be wrong.
                let us = (us / gain).max(cost::roofline_us(problem, &self.device));
                let config = config.or_else(|| Some(find(candidates, kernel)?.config)).unwrap_or_default();
                let reason = if learned.is_some() { Reason::Learned } else { Reason::Tuned };
                Chosen { kernel, config, us, reason, packing: None }
            }
            None => {
                Chosen { kernel: fastest.kernel, config: fastest.config, us, reason: Reason::Estimate, packing: None }
            }
        })
    }

    /// The choice on copies of operands ([`crate::packing`]), where this choice is faster than `direct`, the choice without copies.
    pub(super) fn with_packing(&self, problem: &Problem, policy: Policy, direct: Option<Chosen>) -> Option<Chosen> {
        let mut best = direct;
        let direct_us = best.as_ref().map_or(f64::INFINITY, |direct| packing::lead(problem) * direct.us);
        let mut most = if policy.copies { f64::INFINITY } else { direct_us };
        if problem.is_empty() {
            return best;
        }
        for packing in Packing::each(problem) {
            let footprint = packing.footprint(problem).filter(|f| f.need(problem).least <= policy.workspace);
            let Some(partition) = footprint.and_then(|f| Partition::new(Some(f), problem, policy.workspace)) else {
                continue;
            };
            let (pieces, piece) = partition.count(problem);
            let copies = pieces as f64 * packing.us(&piece, &self.device);
            let inner = packing.inner(problem);
            if copies + cost::roofline_us(&inner, &self.device) >= most {
                continue;
            }
            let reads_copies = packing.a || packing.b;
            let vendor = policy.vendor && (!reads_copies || packing::is_whole(&inner));
            let policy = Policy { vendor, ..policy.with_workspace(0) };
            let able = self.able(&inner, policy);
            let tuned = self.tuned(&inner, policy, &able);
            let chosen = self.among(&inner, &able, &tuned).filter(|chosen| chosen.kernel.role != Role::LastResort);
            let Some(mut chosen) = chosen else { continue };
            if pieces > 1 {
                // Each piece runs in the configuration of the whole.
                let piece = packing.inner(&piece);
                let case = self.case(chosen.kernel, &piece, policy);
                let us = self.model(chosen.kernel).configured_us(&case, &chosen.config);
                chosen.us = chosen.us.max(pieces as f64 * us);
            }
            if copies + chosen.us >= most {
                continue;
            }
            most = copies + chosen.us;
            best = Some(Chosen { us: most, packing: Some(packing), ..chosen });
        }
        best
    }
}

impl Dispatcher {
    /// The choice of the kernel asked for by name. Where the kernel does not fuse the epilogue of a D in 16 bits, its twin with a result in f32 runs on a
    /// copy of D.
    pub(super) fn by_name(&self, asked: Candidate, problem: &Problem, policy: Policy) -> Result<Chosen, Rejection> {
        let Candidate { kernel, verdict, config } = asked;
        let chosen = |kernel, config, us, packing| Chosen { kernel, config, us, reason: Reason::Forced, packing };
        let rejection = match verdict {
            Ok(us) => return Ok(chosen(kernel, config, us, None)),
            Err(rejection) => rejection,
        };
        let unfused = || {
            let packing = Packing::unfused(problem)?;
            let partition = Partition::new(packing.footprint(problem), problem, policy.workspace)?;
            let inner = packing.inner(problem);
            let twin = KERNELS.iter().find(|twin| twin.is_twin(kernel) && twin.types == inner.types())?;
            let of_twin = Policy { forced: Some((twin.index, policy.forced?.1)), ..policy.with_workspace(0) };
            let Candidate { verdict, config, .. } = self.judge(twin, &inner, of_twin);
            let mut us = verdict.ok()?;
            if !problem.is_empty() {
                let (pieces, piece) = partition.count(problem);
                us += pieces as f64 * packing.us(&piece, &self.device);
            }
            Some(chosen(twin, config, us, Some(packing)))
        };
        unfused().ok_or(rejection)
    }
}

/// Whether a kernel is ours, with estimates as exact as most families' estimates.
fn is_sure(kernel: &KernelDesc) -> bool {
    kernel.role == Role::Kernel && kernel.family().lead() == 1.0
}

/// The kernel with the lowest estimate and that estimate, with three exceptions:
///
/// - A kernel of last resort is taken only where no other kernel runs the problem.
/// - One of our kernels is taken before cuBLAS only where its estimate is below a share of cuBLAS's estimate ([`margins`]).
/// - A family whose estimates are the least exact is taken before our other kernels and before cuBLAS with a lead of its own
///   ([`lead`](crate::kernel::Family::lead)).
///
/// On a tie the kernel for the newest architecture is taken, then the first in the table.
fn fastest<'a>(problem: &Problem, device: &DeviceInfo, candidates: &'a [Candidate]) -> Option<&'a Candidate> {
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
        (Some(own), Some(vendor)) => {
            let share = margins::share(problem, device) * own.0.kernel.family().lead();
            Some(if own.1 < share * vendor.1 { own } else { vendor })
        }
        (own, vendor) => own.or(vendor).or_else(|| least(&|_| true)),
    };
    taken.map(|(candidate, _)| candidate)
}

/// The candidate of a kernel.
fn find<'a>(candidates: &'a [Candidate], kernel: &KernelDesc) -> Option<&'a Candidate> {
    candidates.iter().find(|candidate| candidate.kernel.index == kernel.index)
}

/// The error that no kernel runs `problem`: none of this build, or none of the table.
fn unsupported(problem: &Problem, candidates: &[Candidate], device: &DeviceInfo, only_built: bool) -> Error {
    if let Some(reasons) = other_results(problem) {
        return Error::Unsupported { problem: problem.to_string(), reasons };
    }
    // Kernels for other devices, dtypes and layouts explain nothing here.
    let near = candidates.iter().filter_map(|c| match &c.verdict {
        Err(
            Rejection::Arch { .. }
            | Rejection::Types { .. }
            | Rejection::Groups
            | Rejection::NoGroups
            | Rejection::NoGate
            | Rejection::Scales { .. }
            | Rejection::Layout { .. },
        )
        | Ok(_) => None,
        Err(rejection) => Some(format!("{}: {rejection}", c.kernel.name)),
    });
    let reasons: Vec<String> = near.take(4).collect();
    let runs_there = |c: &Candidate| {
        c.kernel.role != Role::Vendor && c.kernel.is_built() && c.kernel.arch.runs_on(device.capability)
    };
    let reasons = match reasons.is_empty() {
        true if !only_built => "no kernel of the table takes such operands on this device".into(),
        true if candidates.iter().any(runs_there) => "none was built for this dtype".into(),
        true => Arch::remedy(device.capability, BUILT_ARCHS),
        false => reasons.join("; "),
    };
    Error::Unsupported { problem: problem.to_string(), reasons }
}

/// The formats of results that kernels have for operands of these formats, where none has the problem's.
fn other_results(problem: &Problem) -> Option<String> {
    let asked = problem.types();
    let kernels = || KERNELS.iter().filter(|kernel| (kernel.types.a, kernel.types.b) == (asked.a, asked.b));
    if kernels().any(|kernel| kernel.types.d == asked.d) {
        return None;
    }
    let mut results: Vec<Format> = kernels().map(|kernel| kernel.types.d).collect();
    results.sort_unstable();
    results.dedup();
    let first = results.first()?;
    let all = results.iter().map(|format| format.name()).collect::<Vec<_>>().join(" or ");
    let d = asked.d;
    Some(format!("kernels for such operands write {all}, not {d}: ask for that (`tilegemm explain --out {first}`)"))
}
