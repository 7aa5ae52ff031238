//! A product that was planned before is planned again without an allocation.

mod counting;

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::problem::{BiasAxis, Epilogue};
use candle_tilegemm::{Activation, Format, Layout, Problem};
use counting::allocations;
use std::sync::Barrier;

fn dispatcher() -> Dispatcher {
    Dispatcher::hypothetical(DeviceInfo::h100())
}

/// As many distinct products as a model has, and more: by rows, element type and alignment.
fn products() -> Vec<Problem> {
    let dtypes = [Format::BF16, Format::F16, Format::F32];
    let sizes = (1..=32).flat_map(|m| dtypes.map(|dtype| Problem::dense(m, 4096, 1024, 1, Layout::NT, dtype)));
    sizes
        .flat_map(|dense| [16, 8].map(|align| dense.with(|p| p.a = dense.a.with(|o| o.pointer_align = align))))
        .collect()
}

/// With an epilogue that a kernel fuses wholly, in part, or not at all.
fn with_epilogue(product: &Problem) -> Problem {
    let mut epilogue = Epilogue::new(0.5, 1.0);
    epilogue.bias = Some(BiasAxis::N);
    epilogue.activation = Activation::GeluErf;
    epilogue.c = Some(product.d);
    (*product).with(|p| p.epilogue = epilogue)
}

/// Allocations of a thread that has asked for every product before.
fn allocations_when_warm(dispatcher: &Dispatcher, products: &[Problem], ask: fn(&Dispatcher, &Problem)) -> u64 {
    products.iter().for_each(|product| ask(dispatcher, product));
    allocations(|| (0..10).for_each(|_| products.iter().for_each(|product| ask(dispatcher, product)))).0
}

fn plan(dispatcher: &Dispatcher, product: &Problem) {
    dispatcher.plan(product, Policy::default()).unwrap();
}

fn with_plan(dispatcher: &Dispatcher, product: &Problem) {
    dispatcher.with_plan(product, Policy::default(), |plan| assert_eq!(plan.asked, *product)).unwrap();
}

fn fuse(dispatcher: &Dispatcher, product: &Problem) {
    dispatcher.fuse(&with_epilogue(product), Policy::default()).unwrap();
}

#[test]
fn allocations_are_counted() {
    assert!(allocations(|| plan(&dispatcher(), &products()[0])).0 > 0, "a cold plan allocates");
    assert_eq!(allocations(|| std::hint::black_box(vec![1u8; 100])).0, 1);
}

#[test]
fn a_cached_plan_allocates_nothing() {
    for ask in [plan, with_plan, fuse] {
        assert_eq!(allocations_when_warm(&dispatcher(), &products(), ask), 0);
    }
}

#[test]
fn a_cached_plan_allocates_nothing_on_eight_threads() {
    let (dispatcher, products, start) = (dispatcher(), products(), Barrier::new(8));
    let counts = std::thread::scope(|scope| {
        let run = |ask| {
            start.wait();
            allocations_when_warm(&dispatcher, &products, ask)
        };
        let asked: Vec<fn(&Dispatcher, &Problem)> = vec![plan, plan, plan, with_plan, with_plan, with_plan, fuse, fuse];
        let threads: Vec<_> = asked.into_iter().map(|ask| scope.spawn(move || run(ask))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(counts, [0; 8]);
}

/// More products than a thread keeps: those that it lost are found under the lock, and that allocates nothing either.
#[test]
fn a_plan_that_a_thread_has_lost_allocates_nothing() {
    let many: Vec<Problem> = (1..=4000).map(|m| Problem::dense(m, 64, 64, 1, Layout::NT, Format::BF16)).collect();
    assert_eq!(allocations_when_warm(&dispatcher(), &many, with_plan), 0);
}

/// Dispatchers share a thread's cache, and a policy is part of the question.
#[test]
fn a_plan_is_found_for_its_own_dispatcher_and_policy_only() {
    let (h100, a100) = (dispatcher(), Dispatcher::hypothetical(DeviceInfo::a100()));
    let product = Problem::dense(512, 4096, 4096, 1, Layout::NT, Format::BF16);
    for _ in 0..2 {
        for (dispatcher, capability) in [(&h100, 90), (&a100, 80)] {
            for policy in [Policy::own(), Policy::force("cublas_bf16_nt").unwrap()] {
                let kernel = dispatcher.with_plan(&product, policy, |plan| plan.kernel).unwrap();
                match policy.forced() {
                    Some(forced) => assert_eq!(kernel, forced),
                    None => assert_eq!(kernel.arch.capability, capability, "{kernel}"),
                }
            }
        }
    }
}

/// A plan may be asked for while another one is in use.
#[test]
fn plans_nest() {
    let (dispatcher, products) = (dispatcher(), products());
    let nested = dispatcher.with_plan(&products[0], Policy::default(), |outer| {
        let inner = dispatcher.with_plan(&products[1], Policy::default(), |inner| inner.asked).unwrap();
        (outer.asked, inner)
    });
    assert_eq!(nested.unwrap(), (products[0], products[1]));
    let again = dispatcher.with_plan(&products[0], Policy::default(), |outer| {
        let inner = dispatcher.with_plan(&products[2], Policy::default(), |inner| inner.asked).unwrap();
        (outer.asked, inner)
    });
    assert_eq!(again.unwrap(), (products[0], products[2]));
}
