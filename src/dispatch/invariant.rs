//! The choice in batch-invariant mode ([`Policy::batch_invariant`]).

use super::chosen::{Chosen, Reason};
use super::dispatcher::Dispatcher;
use super::policy::Policy;
use crate::kernel::{Role, SumOrder};
use crate::packing::{has_odd_d, Packing};
use crate::problem::{Operand, Problem};

/// Numbers of rows that an order of sums is chosen for: a few sequences to decode, many, and a long prompt. The order with the least
/// product of their times is taken. Odd numbers are among them, few and many, for operands whose columns are contiguous.
const ROWS: [usize; 3] = [3, 64, 4095];

/// What the products of all numbers of rows have in common: the order of sums, and whether a product is rounded to a copy of D before the rest of an
/// epilogue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Order {
    sums: SumOrder,
    copies_d: bool,
}

/// The fastest choice of each order.
type Options = Vec<(SumOrder, Chosen)>;

impl Dispatcher {
    /// The order of sums of products like `asked`, whatever the number of rows, and of matrices where kernels for one matrix run them. `None` where no
    /// kernel runs all of them.
    pub(super) fn sum_order(&self, asked: &Problem, policy: Policy) -> Option<Order> {
        // Copies of D are faster where D is odd. In a D of columns the number of rows decides about that.
        let is_odd = has_odd_d(asked) && !asked.canonical().swapped;
        let fastest = |like: fn(&Problem, usize) -> Problem| {
            [is_odd, false].into_iter().find_map(|copies_d| {
                let sums = self.fastest_sums(ROWS.map(|m| like(asked, m)), policy, copies_d)?;
                Some(Order { sums, copies_d })
            })
        };
        let runs = |order: &Order| {
            ROWS.iter().all(|m| self.in_order(&with_rows(asked, *m).canonical().problem, policy, *order).is_some())
        };
        fastest(with_rows_of_one_matrix)
            .filter(|order| asked.batch_count() == 1 || runs(order))
            .or_else(|| fastest(with_rows))
    }

    fn fastest_sums(&self, problems: [Problem; ROWS.len()], policy: Policy, copies_d: bool) -> Option<SumOrder> {
        let options = problems.map(|problem| self.options(&problem.canonical().problem, policy, copies_d));
        let total = |order: SumOrder| {
            let us = |options: &Options| Some(options.iter().find(|option| option.0 == order)?.1.us.ln());
            options.iter().map(us).sum::<Option<f64>>()
        };
        let is_last = |chosen: &Chosen| chosen.kernel.role == Role::LastResort;
        let orders = options[0].iter().filter_map(|(order, chosen)| Some((*order, is_last(chosen), total(*order)?)));
        orders.min_by(|x, y| x.1.cmp(&y.1).then(x.2.total_cmp(&y.2))).map(|(order, ..)| order)
    }

    /// The fastest choice for the canonical `problem` in this order of sums.
    pub(super) fn in_order(&self, problem: &Problem, policy: Policy, order: Order) -> Option<Chosen> {
        self.options(problem, policy, order.copies_d)
            .into_iter()
            .find(|option| option.0 == order.sums)
            .map(|(_, chosen)| chosen)
    }

    fn options(&self, problem: &Problem, policy: Policy, copies_d: bool) -> Options {
        let mut options = Options::new();
        for packing in Packing::each_invariant(problem, copies_d) {
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

/// The product with this number of rows.
fn with_rows(asked: &Problem, m: usize) -> Problem {
    let all = asked.canonical_strides();
    let [a, d] = [all.a, all.d].map(with_room);
    let mut epilogue = all.epilogue;
    epilogue.c = epilogue.c.map(with_room);
    Problem { m, a, d, epilogue, ..all }
}

/// The same of one matrix A.
fn with_rows_of_one_matrix(asked: &Problem, m: usize) -> Problem {
    let all = with_rows(asked, m);
    let one = |operand: Operand| operand.with(|o| o.batch_stride = [0; 2]);
    let b = if all.groups.is_some() { all.b } else { one(all.b) };
    let mut epilogue = all.epilogue;
    epilogue.c = epilogue.c.map(one);
    Problem { batch: [1, 1], a: one(all.a), b, d: one(all.d), epilogue, ..all }
}

/// The number of rows decides the alignment of contiguous columns, so that such columns get the distance of an odd number of rows. Columns that
/// are one column stay so.
fn with_room(operand: Operand) -> Operand {
    operand.with(|o| {
        if o.row_stride == 1 && !matches!(o.col_stride, 0 | 1) {
            o.col_stride = ROWS[2] as i64;
        }
    })
}
