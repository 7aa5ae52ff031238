//! Batch-invariant plans: one order of sums for each N, K, type and card, whatever the number of rows.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::kernel::{Fusion, Role, SumOrder};
use candle_tilegemm::problem::BiasAxis;
use candle_tilegemm::{Activation, F32Mode, Format, Layout, Problem};
use tilegemm::lists::random;

const ROWS: [usize; 14] = [1, 2, 3, 7, 8, 9, 64, 65, 129, 300, 801, 1000, 4096, 16_384];

fn invariant() -> Policy {
    Policy::default().with_batch_invariance(true)
}

/// The order of sums of a plan.
fn order(dispatcher: &Dispatcher, problem: &Problem) -> SumOrder {
    let plan = dispatcher.plan(problem, invariant()).unwrap_or_else(|error| panic!("{problem}: {error}"));
    assert_ne!(plan.kernel.role, Role::Vendor, "{problem}");
    plan.kernel.sums(&plan.config).unwrap_or_else(|| panic!("{problem}: {} has no order", plan.kernel))
}

#[test]
fn the_number_of_rows_does_not_change_the_order() {
    let mut checked = 0;
    for device in [DeviceInfo::h100(), DeviceInfo::h200(), DeviceInfo::a100()] {
        let dispatcher = Dispatcher::hypothetical(device);
        for layout in [Layout::NT, Layout::NN, Layout::TN, Layout::TT] {
            for (format, mode) in [
                (Format::BF16, F32Mode::Accurate),
                (Format::F16, F32Mode::Accurate),
                (Format::F32, F32Mode::Accurate),
                (Format::F32, F32Mode::Strict),
                (Format::F32, F32Mode::Tf32),
                (Format::F64, F32Mode::Accurate),
            ] {
                for [n, k] in
                    [[4096, 4096], [1001, 515], [520, 1032], [128, 14_336], [50_257, 768], [4096, 1], [1, 300]]
                {
                    for batch in [1, 3] {
                        let of = |m: usize| {
                            Problem::dense(m, n, k, batch, layout, format).with(|problem| problem.f32_mode = mode)
                        };
                        let first = order(&dispatcher, &of(2));
                        for m in ROWS {
                            // One row is contiguous along both dimensions, and gets the layout that kernels prefer.
                            if m == 1 && matches!(layout, Layout::TN | Layout::TT) {
                                continue;
                            }
                            assert_eq!(order(&dispatcher, &of(m)), first, "{} on {}", of(m), dispatcher.device().name);
                            checked += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(checked > 10_000, "{checked}");
}

/// Single rows and columns are folded into one product, and several rows of each matrix are not: all have one order of sums.
#[test]
fn a_folded_batch_has_the_order_of_the_others() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    for (format, layout) in
        [Format::BF16, Format::F32, Format::F64].into_iter().flat_map(|f| [Layout::NN, Layout::NT].map(|l| (f, l)))
    {
        for (one_b, n, k) in [(true, 128, 256), (true, 100, 100), (false, 1, 256), (false, 1, 100)] {
            let of = |batch: [usize; 2], m: usize| {
                Problem::dense(m, n, k, 2, layout, format).with(|p| {
                    p.batch = batch;
                    for (operand, is_one) in [(&mut p.a, !one_b), (&mut p.b, one_b), (&mut p.d, false)] {
                        let matrix = operand.batch_stride[1];
                        operand.batch_stride[0] = if is_one { 0 } else { matrix * batch[1] as i64 };
                    }
                })
            };
            let first = order(&dispatcher, &of([5, 3], 2));
            for batch in [[5, 3], [64, 3], [513, 2]] {
                for m in [1, 2, 3, 64, 300] {
                    assert_eq!(order(&dispatcher, &of(batch, m)), first, "{} {batch:?}", of(batch, m));
                }
            }
        }
    }
}

/// Products as models have them, and the same with other numbers of rows.
#[test]
fn random_products_have_one_order() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    for shape in random::products(5, 200, &[]) {
        let problem = shape.problem();
        let first = order(&dispatcher, &problem);
        let is_dense = |problem: &Problem| problem.a.col_stride == 1 && problem.m > 1;
        for m in [3, 40, 300].into_iter().filter(|m| *m < problem.m && is_dense(&problem)) {
            let fewer = problem.with(|problem| problem.m = m);
            assert_eq!(order(&dispatcher, &fewer), first, "{fewer} of {problem}");
        }
    }
}

/// Where an epilogue is fused for some rows, it is fused for all: a product that is rounded before the epilogue has other bits.
#[test]
fn the_number_of_rows_does_not_change_who_does_the_epilogue() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    for format in [Format::BF16, Format::F32] {
        for n in [1000, 1001, 1004] {
            let of = |m: usize| {
                let mut problem = Problem::dense(m, n, 520, 1, Layout::NT, format);
                problem.epilogue.bias = Some(BiasAxis::N);
                problem.epilogue.activation = Activation::GeluErf;
                problem
            };
            let copies_d = |m: usize| {
                let fusion = dispatcher.fuse(&of(m), invariant()).unwrap();
                let plan = dispatcher.plan(&of(m), invariant()).unwrap();
                (fusion, plan.packing.is_some_and(|packing| packing.d))
            };
            let first = copies_d(2);
            assert_eq!(first.0, Fusion::Full);
            assert!(ROWS.into_iter().all(|m| copies_d(m) == first), "N {n}, {format}");
        }
    }
}

#[test]
fn an_explanation_says_the_order() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    let problem = Problem::dense(5, 4096, 4096, 1, Layout::NT, Format::BF16);
    let explanation = dispatcher.explain(&problem, invariant());
    assert_eq!(explanation.sums, Some(SumOrder::Wgmma));
    assert!(explanation.to_string().contains("every row adds up 16 products at a time, on tensor cores"));
    assert_eq!(dispatcher.explain(&problem, Policy::default()).sums, None);
    let plan = dispatcher.plan(&problem, invariant()).unwrap();
    assert_eq!(explanation.chosen, Some(plan.kernel));
}

/// A kernel that is asked for by name is taken in this mode, too.
#[test]
fn a_forced_kernel_comes_first() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    let problem = Problem::dense(4, 4096, 4096, 1, Layout::NT, Format::BF16);
    let forced = Policy::force("gemv_sm90_bf16_nt_8x2x512_1x1").unwrap().with_batch_invariance(true);
    assert_eq!(dispatcher.plan(&problem, forced).unwrap().kernel.name, "gemv_sm90_bf16_nt_8x2x512_1x1");
}
