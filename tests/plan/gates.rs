//! Plans of gated products: one kernel, or a product and a kernel of its own for the gate.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::internal::cost;
use candle_tilegemm::kernel::{Fusion, Rejection, Role};
use candle_tilegemm::problem::{BiasAxis, Gate, Groups};
use candle_tilegemm::{Activation, Format, Layout, Problem};

/// A product of `n` gates and as many numbers.
fn gated([m, n, k]: [usize; 3]) -> Problem {
    Problem::dense(m, 2 * n, k, 1, Layout::NT, Format::BF16).with(|problem| {
        (problem.epilogue.gate, problem.epilogue.activation) = (Some(Gate::Halves), Activation::Silu);
        problem.d.row_stride = n as i64;
    })
}

fn on(card: &str) -> Dispatcher {
    Dispatcher::hypothetical(DeviceInfo::by_name(card).unwrap())
}

#[test]
fn prompts_of_models_have_their_gates_fused_on_hopper() {
    for card in ["h100", "h200"] {
        let dispatcher = on(card);
        for [n, k] in [[14336, 4096], [8192, 2048], [5632, 2048], [18944, 3584], [12288, 4096]] {
            for m in [64, 128, 256, 512, 1024, 2048, 8192] {
                for format in [Format::BF16, Format::F16] {
                    let problem = gated([m, n, k]).with(|p| {
                        (p.a.format, p.b.format, p.d.format) = (format, format, format);
                    });
                    assert_eq!(
                        dispatcher.fuse(&problem, Policy::default()).unwrap(),
                        Fusion::Full,
                        "{card}: {problem}"
                    );
                    let plan = dispatcher.plan(&problem, Policy::default()).unwrap();
                    assert_eq!((plan.kernel.family, plan.workspace.least), ("sm90_gated", 0), "{card}: {problem}");
                    let apart = dispatcher.plan(&problem.ungated(), Policy::default()).unwrap().estimate_us;
                    let apart = apart + cost::gate_us(&problem, dispatcher.device());
                    let gain = apart / plan.estimate_us;
                    assert!(
                        (0.87..1.4).contains(&gain),
                        "{card}: {problem}: {:.1} us, {apart:.1} apart",
                        plan.estimate_us
                    );
                }
            }
        }
    }
}

#[test]
fn what_no_kernel_fuses_is_a_product_and_a_gate() {
    let problem = gated([512, 14336, 4096]);
    let apart = |dispatcher: &Dispatcher, problem: &Problem, policy: Policy| {
        assert_eq!(dispatcher.fuse(problem, policy).unwrap(), Fusion::None, "{problem}");
        let plan = dispatcher.plan(&problem.ungated(), policy).unwrap();
        assert_ne!(plan.kernel.role, Role::LastResort, "{problem}");
    };
    let h100 = on("h100");
    for other in [
        problem.with(|p| p.epilogue.gate = Some(Gate::Interleaved)),
        problem.with(|p| p.epilogue.bias = Some(BiasAxis::N)),
        problem.with(|p| p.a.pointer_align = 2),
        gated([512, 14336, 4095]),
        problem.with(|p| (p.a.format, p.b.format, p.d.format) = (Format::F32, Format::F32, Format::F32)),
        problem.with(|p| p.d.format = Format::F32),
    ] {
        apart(&h100, &other, Policy::default());
    }
    for card in ["a100", "rtx4090", "b200", "rtx5090"] {
        apart(&on(card), &problem, Policy::default());
    }
    // The number of rows decides nothing there.
    apart(&h100, &problem, Policy::default().with_batch_invariance(true));
    assert_eq!(h100.fuse(&problem, Policy::own()).unwrap(), Fusion::Full);
}

/// Rows of D at any place, and any number of columns.
#[test]
fn odd_columns_and_places_of_d_are_fused_too() {
    let h100 = on("h100");
    let problem = gated([512, 14335, 4096]);
    for problem in [problem, problem.with(|p| p.d.row_stride += 3), problem.with(|p| p.d.pointer_align = 2)] {
        assert_eq!(h100.fuse(&problem, Policy::default()).unwrap(), Fusion::Full, "{problem}");
    }
}

#[test]
fn kernels_of_gated_products_take_no_others() {
    let device = DeviceInfo::h100();
    let (problem, mut tried) = (gated([100, 512, 1024]), 0);
    let groups = problem.with(|p| p.groups = Some(Groups::new(3)));
    for kernel in KERNELS.iter().filter(|kernel| kernel.needs_gates() && kernel.types == problem.types()) {
        assert!(kernel.takes_gates());
        assert_eq!(kernel.supports(&problem, &device), Ok(()), "{kernel}");
        assert_eq!(kernel.supports(&problem.ungated(), &device), Err(Rejection::NoGate), "{kernel}");
        let in_turns = problem.with(|p| p.epilogue.gate = Some(Gate::Interleaved));
        assert_eq!(kernel.supports(&in_turns, &device), Err(Rejection::NoGate), "{kernel}");
        assert_eq!(kernel.supports(&groups, &device), Err(Rejection::Groups), "{kernel}");
        tried += 1;
    }
    assert!(tried > 0);
}
