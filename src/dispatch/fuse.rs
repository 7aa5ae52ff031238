//! How much of an epilogue a GEMM kernel does.

use super::dispatcher::Dispatcher;
use super::memo::Recent;
use super::planned::Planned;
use super::policy::Policy;
use super::split::Split;
use crate::cost;
use crate::error::Result;
use crate::kernel::{Fusion, Role};
use crate::packing;
use crate::problem::Problem;
use std::cell::RefCell;
use std::sync::Arc;

/// Rows from which on a gate may be fused. With one and two rows of 14336, 8192 and 5632 gates, `gemv` and a gate are 0.5 to 6 us faster than any fused kernel, down
/// included; with four rows one size of the three gains, and from eight on all do (H200, 2026-11-29).
const GATED_ROWS: usize = 8;
/// A fused gate is taken where its estimate is below this multiple of the estimate of a product and a gate. From eight rows on it was faster in 80 of 81 measurements,
/// by 7 % at the median, and the estimates of two families differ by as much.
const GATED_LEAD: f64 = 1.15;

thread_local! {
    static RECENT_SPLITS: RefCell<Recent<Split>> = const { RefCell::new(Recent::new()) };
}

impl Dispatcher {
    /// How much of the epilogue of `problem` the plan should do: the split with the lowest estimate. Elementwise kernels do
    /// the rest after the product.
    ///
    /// A plan for a D in 16 bits does the whole epilogue: between a product in D and an elementwise kernel D would be rounded. Its kernel fuses
    /// the epilogue, or writes its sums to a copy of D in f32 ([`crate::packing`]).
    ///
    /// A gate is fused ([`Fusion::Full`]), or a kernel of its own follows the product of [`Problem::ungated`] ([`Fusion::None`]).
    ///
    /// # Errors
    /// As for [`Dispatcher::plan`], when not even the bare product can run.
    pub fn fuse(&self, problem: &Problem, policy: Policy) -> Result<Fusion> {
        if problem.epilogue.is_linear() || problem.epilogue.in_place || packing::rounds_after_copy(problem) {
            return Ok(Fusion::Full);
        }
        let make = || {
            let fusion = self.split(problem, policy)?;
            Ok(Split { asked: *problem, dispatcher: self.id, policy, fusion })
        };
        self.splits.recall(&RECENT_SPLITS, self.question(problem, policy), make, |split| split.fusion)
    }

    /// Whether the product applies its gate.
    fn fuse_gate(&self, problem: &Problem, policy: Policy) -> Result<Fusion> {
        if problem.groups.is_some() {
            return Ok(Fusion::Full);
        }
        let is_forced = policy.forced.is_some();
        if policy.batch_invariant && !is_forced {
            return Ok(Fusion::None); // the number of rows decides nothing here
        }
        let us = |problem: &Problem| {
            let of_plan = |plan: &Arc<Planned>| (plan.kernel.role != Role::LastResort).then_some(plan.estimate_us);
            self.with_plan(problem, policy, of_plan)
        };
        let may_fuse = problem.m * problem.batch_count() >= GATED_ROWS || is_forced;
        let fused = if may_fuse { us(problem).ok().flatten() } else { None };
        let apart = match us(&problem.ungated()) {
            Ok(us) => us.unwrap_or(f64::INFINITY) + cost::gate_us(problem, &self.device),
            Err(error) if fused.is_none() => return Err(error),
            Err(_) => f64::INFINITY,
        };
        Ok(if fused.is_some_and(|fused| fused < GATED_LEAD * apart) { Fusion::Full } else { Fusion::None })
    }

    fn split(&self, problem: &Problem, policy: Policy) -> Result<Fusion> {
        if problem.epilogue.gate.is_some() {
            return self.fuse_gate(problem, policy);
        }
        if policy.batch_invariant && policy.forced.is_none() {
            // The number of rows decides nothing here: an epilogue is fused for every number of rows or for none.
            let order = self.sum_order(problem, policy);
            return Ok(if order.is_some() { Fusion::Full } else { Fusion::None });
        }
        let estimate = |fusion: Fusion| -> Result<f64> {
            let (epilogue, passes) = problem.epilogue.keep(fusion);
            let estimate_us = self.with_plan(&Problem { epilogue, ..*problem }, policy, |plan| plan.estimate_us)?;
            Ok(estimate_us + cost::elementwise_us(problem, passes, &self.device))
        };
        let bare = estimate(Fusion::None)?;
        let fused = [Fusion::Full, Fusion::BiasAct].map(|fusion| (fusion, estimate(fusion).unwrap_or(f64::INFINITY)));
        let best = fused.into_iter().chain([(Fusion::None, bare)]).min_by(|x, y| x.1.total_cmp(&y.1));
        Ok(best.map_or(Fusion::None, |(fusion, _)| fusion))
    }
}
