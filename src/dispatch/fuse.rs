//! How much of an epilogue a GEMM kernel does.

use super::dispatcher::Dispatcher;
use super::memo::Recent;
use super::policy::Policy;
use super::split::Split;
use crate::cost;
use crate::error::Result;
use crate::kernel::Fusion;
use crate::packing;
use crate::problem::Problem;
use std::cell::RefCell;

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

    fn split(&self, problem: &Problem, policy: Policy) -> Result<Fusion> {
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
