//! The choice in batch-invariant mode ([`Policy::batch_invariant`]).

use super::{Chosen, Dispatcher, Policy, Reason};
use crate::kernel::{Role, SumOrder};
use crate::packing::Packing;
use crate::problem::{Operand, Problem};

/// Numbers of rows that an order of sums is chosen for: a few sequences to decode, many, and a long prompt. The order with the least
/// product of their times is taken. An odd number is among them, for operands whose columns are contiguous.
const ROWS: [usize; 3] = [3, 64, 4096];

/// The fastest choice of each order.
type Options = Vec<(SumOrder, Chosen)>;

impl Dispatcher {
    /// The order of sums of products like `asked`, whatever the number of rows and matrices. `None` where no kernel runs all of them.
    pub(super) fn sum_order(&self, asked: &Problem, policy: Policy) -> Option<SumOrder> {
        let single = asked.canonical_strides();
        let [a, d] = [single.a, single.d].map(with_room);
        let b = if single.groups.is_some() { single.b } else { single.b.with(|o| o.batch_stride = [0; 2]) };
        let mut epilogue = single.epilogue;
        epilogue.c = epilogue.c.map(with_room);
        let options = ROWS.map(|m| {
            let problem = Problem { m, batch: [1, 1], a, b, d, epilogue, ..single };
            self.options(&problem.canonical().problem, policy)
        });
        let total = |order: SumOrder| {
            let us = |options: &Options| Some(options.iter().find(|option| option.0 == order)?.1.us.ln());
            options.iter().map(us).sum::<Option<f64>>()
        };
        let is_last = |chosen: &Chosen| chosen.kernel.role == Role::LastResort;
        let orders = options[0].iter().filter_map(|(order, chosen)| Some((*order, is_last(chosen), total(*order)?)));
        orders.min_by(|x, y| x.1.cmp(&y.1).then(x.2.total_cmp(&y.2))).map(|(order, ..)| order)
    }

    /// The fastest choice for the canonical `problem` in this order of sums.
    pub(super) fn in_order(&self, problem: &Problem, policy: Policy, order: SumOrder) -> Option<Chosen> {
        self.options(problem, policy).into_iter().find(|option| option.0 == order).map(|(_, chosen)| chosen)
    }

    fn options(&self, problem: &Problem, policy: Policy) -> Options {
        let mut options = Options::new();
        for packing in Packing::each_invariant(problem) {
            let footprint = packing.and_then(|packing| packing.footprint(problem));
            if footprint.is_some_and(|footprint| footprint.need(problem).least > policy.workspace) {
                continue;
            }
            let inner = packing.map_or(*problem, |packing| packing.inner(problem));
            let copies = packing.map_or(0.0, |packing| packing.us(problem, &self.device));
            let policy = if packing.is_some() { policy.with_workspace(0) } else { policy };
            for kernel in self.kernels.iter().copied().filter(|kernel| kernel.role != Role::Vendor) {
                if self.admits(kernel, &inner, policy).is_err() {
                    continue;
                }
                let (case, model) = (self.case(kernel, &inner, policy), self.model(kernel));
                for config in kernel.family().configurations(&case) {
                    let Some(order) = kernel.sums(&config) else { continue };
                    let us = copies + model.uncorrected_us(&case, &config);
                    let chosen = Chosen { kernel, config, us, reason: Reason::Estimate, packing };
                    match options.iter_mut().find(|option| option.0 == order) {
                        Some((_, best)) if us < best.us => *best = chosen,
                        Some(_) => {}
                        None => options.push((order, chosen)),
                    }
                }
            }
        }
        options
    }
}

/// One matrix of the operand. The number of rows decides the alignment of contiguous columns, so that such columns get the distance of an
/// odd number of rows.
fn with_room(operand: Operand) -> Operand {
    operand.with(|o| {
        o.batch_stride = [0; 2];
        if o.row_stride == 1 && o.col_stride != 1 {
            o.col_stride = ROWS[2] as i64 + 1;
        }
    })
}
