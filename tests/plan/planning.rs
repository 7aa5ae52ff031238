//! 100,000 random problems: each gets one plan that keeps to its policy, or one refusal with reasons. Nothing panics, and nothing overflows.

#[path = "../support/problems.rs"]
mod problems;

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Plan, Planned, Policy, Reason};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::{Error, Format, Layout, Problem};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use std::cell::Cell;
use std::sync::LazyLock;

/// Problems of each test.
const CASES: u32 = 25_000;

/// Every card, with the measured tables that ship.
static CARDS: LazyLock<Vec<Dispatcher>> = LazyLock::new(|| {
    let cards = DeviceInfo::names().filter_map(DeviceInfo::by_name);
    cards.map(Dispatcher::hypothetical).collect()
});

/// Often the default, else no, few or many bytes.
fn workspace() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![3 => Just(None), 1 => Just(Some(0)), 2 => (0..44u32).prop_map(|bits| Some(1u64 << bits))]
}

/// Plans random problems under the policy that `policy` makes of the problem and a random number.
fn plan_all(policy: impl Fn(&Problem, usize) -> Policy) {
    let (planned, refused) = (Cell::new(0), Cell::new(0));
    // The same problems in every run: a failure is a fault of the change at hand.
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let asked = (problems::problem(), workspace(), 0..CARDS.len(), any::<usize>());
    let result = runner.run(&asked, |(problem, workspace, card, number)| {
        let policy = policy(&problem, number);
        let policy = workspace.map_or(policy, |bytes| policy.with_workspace(bytes));
        let count = if has_plan(&CARDS[card], &problem, policy)? { &planned } else { &refused };
        count.set(count.get() + 1);
        Ok(())
    });
    match result {
        Ok(()) => println!("{} planned, {} refused", planned.get(), refused.get()),
        Err(TestError::Fail(reason, (problem, workspace, card, number))) => {
            let (card, policy) = (&CARDS[card].device().name, policy(&problem, number));
            panic!("{reason}\n{problem}, workspace {workspace:?}, {card}, {policy:?}\n{problem:#?}");
        }
        Err(other) => panic!("{other}"),
    }
    // Problems that are all refused, or none, would prove little.
    let least = CASES / 40;
    assert!(planned.get() > least && refused.get() > least, "{planned:?} planned, {refused:?} refused");
}

/// Extents and strides that are within the limits of kernels with any number of rows, and elements of D that do not overlap.
fn is_usual(problem: &Problem) -> bool {
    let Problem { m, n, k, a, b, d, .. } = *problem;
    let sizes = [m, n, k, problem.batch_count()];
    let strides = [a, b, d].map(|o| [o.row_stride, o.col_stride, o.batch_stride[0], o.batch_stride[1]]);
    let are_usual = |strides: &[i64], least: i64| strides.iter().all(|stride| (least..1 << 30).contains(stride));
    sizes.into_iter().all(|size| size <= 1 << 20)
        && sizes.into_iter().map(|size| size as f64).product::<f64>() < 1e12
        && are_usual(strides.as_flattened(), 0)
        && are_usual(&strides[2], 1)
}

/// Whether the problem has a plan. The plan or the refusal is checked.
fn has_plan(dispatcher: &Dispatcher, problem: &Problem, policy: Policy) -> Result<bool, TestCaseError> {
    let (canonical, device) = (problem.canonical(), dispatcher.device());
    let supports = |kernel: &KernelDesc| kernel.supports(&canonical.problem, device).is_ok();
    let plan = match dispatcher.plan(problem, policy) {
        Ok(plan) => plan,
        Err(Error::Unsupported { reasons, .. }) => {
            prop_assert!(!reasons.is_empty(), "a refusal without a reason");
            let may_run = |kernel: &&KernelDesc| {
                let is_candidate = kernel.role != Role::ByName && (kernel.role != Role::Vendor || policy.vendor);
                is_candidate && supports(kernel) && kernel.workspace(&canonical.problem).least <= policy.workspace
            };
            if policy.batch_invariant && is_usual(problem) {
                if let Ok(plan) = dispatcher.plan(problem, Policy::own().with_workspace(policy.workspace)) {
                    let name = plan.name();
                    return Err(TestCaseError::fail(format!(
                        "{name} runs the problem, and no order of sums does: {reasons}"
                    )));
                }
            }
            // An order of sums has to suit all numbers of rows.
            if let Some(kernel) = KERNELS.iter().find(may_run).filter(|_| !policy.batch_invariant) {
                return Err(TestCaseError::fail(format!("{kernel} runs the problem, which is refused: {reasons}")));
            }
            return Ok(false);
        }
        Err(Error::Forced { rejection, .. }) => {
            prop_assert!(policy.forced().is_some() && !rejection.to_string().is_empty(), "{rejection}");
            return Ok(false);
        }
        Err(other) => return Err(TestCaseError::fail(format!("neither a plan nor a refusal: {other}"))),
    };
    let (kernel, us) = (plan.kernel, plan.estimate_us);
    prop_assert!(us >= 0.0 && us.is_finite(), "{}: {us} us", plan.name());
    prop_assert_eq!(plan.canonical, canonical);
    let is_empty = canonical.problem.is_empty();
    prop_assert!(plan.packing.is_some() || is_empty || supports(kernel), "{kernel} does not support the problem");
    if let Some(forced) = policy.forced() {
        // A kernel that does not fuse the epilogue of a D in 16 bits runs as its twin with a result in f32, on a copy of D.
        let is_twin = plan.packing.is_some() && forced.family == kernel.family && kernel.types.d == Format::F32;
        prop_assert!(forced.name == kernel.name || is_twin, "{} in place of {forced}", plan.name());
        prop_assert_eq!(plan.reason, Reason::Forced);
        return Ok(true);
    }
    prop_assert!(kernel.role != Role::ByName, "{kernel} runs by name only");
    prop_assert!(policy.vendor || kernel.role != Role::Vendor, "{kernel} is the vendor's");
    if policy.batch_invariant && !is_empty {
        prop_assert!(kernel.sums(&plan.config).is_some(), "M decides about the order of the sums of {}", plan.name());
    }
    fits_memory(&plan, policy)?;
    Ok(true)
}

/// A plan needs no more memory than there is, and the plan for a stream without a workspace needs none.
fn fits_memory(plan: &Planned, policy: Policy) -> Result<(), TestCaseError> {
    let (need, name) = (plan.workspace, plan.name());
    prop_assert!(need.least <= policy.workspace && need.least <= need.best, "{name}: {need:?}");
    let without = plan.without_workspace().map_or(0, |without| without.workspace.least);
    prop_assert_eq!(without, 0, "in place of {}", name);
    Ok(())
}

#[test]
fn equal_questions_have_equal_plans() {
    let of = |device: &DeviceInfo, m: usize, policy: Policy| -> Plan {
        let problem = Problem::dense(m, 4095, 4096, 2, Layout::NT, Format::BF16);
        let plan = Dispatcher::hypothetical(device.clone()).plan(&problem, policy).unwrap();
        Plan::clone(&plan)
    };
    for dispatcher in &*CARDS {
        let (device, own, any) = (dispatcher.device(), Policy::own(), Policy::default());
        for m in [1, 64, 2048] {
            assert_eq!(of(device, m, any), of(device, m, any));
            assert_eq!(of(device, m, own), of(device, m, own));
            assert_ne!(of(device, m, own), of(device, m + 1, own));
        }
    }
}

#[test]
fn with_the_vendor_library() {
    plan_all(|_, _| Policy::default());
}

#[test]
fn by_our_own_kernels() {
    plan_all(|_, number| if number.is_multiple_of(4) { Policy::own().with_copies() } else { Policy::own() });
}

#[test]
fn in_one_order_of_sums() {
    plan_all(|_, _| Policy::default().with_batch_invariance(true));
}

/// Kernels of the problem's types, those that run by name only among them.
#[test]
fn by_name() {
    plan_all(|problem, number| {
        let types = problem.canonical().problem.types();
        let kernels: Vec<&KernelDesc> = KERNELS.iter().filter(|kernel| kernel.types == types).collect();
        let kernel = kernels.get(number % kernels.len().max(1)).map_or(KERNELS[0].name, |kernel| kernel.name);
        Policy::force(kernel).expect("a kernel of the table")
    });
}
