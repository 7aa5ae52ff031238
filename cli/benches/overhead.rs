//! What a product costs the host before its kernel runs: a plan made, a plan found again, a launch.
//!
//! `cargo bench -p tilegemm --bench overhead` runs on any machine; the launch needs the feature `cuda` and a device, and says so where it
//! has none (`TILEGEMM_REQUIRE_GPU=1` makes that a failure). Threads are timed by the wall: with fewer cores than threads a
//! figure counts the turns that a thread waits for.

#[path = "../../tests/alloc/counting.rs"]
mod counting;

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::problem::BiasAxis;
use candle_tilegemm::{Activation, Format, Layout, Problem};
use counting::allocations;
use criterion::Criterion;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const THREADS: usize = 8;
/// Distinct products that a thread takes in turns: what a model has, and many.
const SHAPES: [usize; 2] = [64, 512];

fn main() {
    let mut criterion = Criterion::default()
        .configure_from_args()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    print_allocations();
    first_plans();
    plans(&mut criterion);
    threads(&mut criterion);
    launches(&mut criterion);
    criterion.final_summary();
}

fn linear(m: usize) -> Problem {
    Problem::dense(m, 4096, 4096, 1, Layout::NT, Format::BF16)
}

/// A product whose epilogue can be split.
fn fused() -> Problem {
    let mut problem = linear(64);
    problem.epilogue.bias = Some(BiasAxis::N);
    problem.epilogue.activation = Activation::Silu;
    problem
}

fn dispatcher() -> Dispatcher {
    Dispatcher::hypothetical(DeviceInfo::h100())
}

fn find(dispatcher: &Dispatcher, problem: &Problem) {
    let kernel = dispatcher.with_plan(black_box(problem), Policy::default(), |plan| plan.kernel);
    black_box(kernel.expect("the table has a kernel for it"));
}

/// As [`find`], with a plan to keep: its count of references is shared by all threads.
fn take(dispatcher: &Dispatcher, problem: &Problem) {
    black_box(dispatcher.plan(black_box(problem), Policy::default()).expect("the table has a kernel for it"));
}

fn split(dispatcher: &Dispatcher, problem: &Problem) {
    black_box(dispatcher.fuse(black_box(problem), Policy::default()).expect("the table has a kernel for it"));
}

fn print_allocations() {
    const CALLS: u64 = 1000;
    let dispatcher = dispatcher();
    let count = |what: &str, call: &dyn Fn()| {
        let (first, ()) = allocations(call);
        let (again, ()) = allocations(|| (0..CALLS).for_each(|_| call()));
        println!("allocations: {what}: {first} in the first call, {again} in the next {CALLS}");
    };
    count("with_plan", &|| find(&dispatcher, &linear(512)));
    count("plan", &|| take(&dispatcher, &linear(256)));
    count("fuse", &|| split(&dispatcher, &fused()));
}

/// The time of first plans for random products: of the list of a seed, the least time of each in seven rounds.
fn first_plans() {
    const PRODUCTS: usize = 1500;
    const ROUNDS: usize = 7;
    let shapes = tilegemm::lists::random::products(5, PRODUCTS, &[]);
    let mut least = vec![Duration::MAX; shapes.len()];
    for _ in 0..ROUNDS {
        let fresh = dispatcher();
        for (least, shape) in least.iter_mut().zip(&shapes) {
            let problem = shape.problem();
            let begin = Instant::now();
            find(&fresh, &problem);
            *least = begin.elapsed().min(*least);
        }
    }
    least.sort();
    let at = |share: f64| least[(share * (PRODUCTS - 1) as f64) as usize];
    println!("first plan of {PRODUCTS} random products: median {:.1?}, 95th percentile {:.1?}", at(0.5), at(0.95));
}

fn plans(criterion: &mut Criterion) {
    let problem = linear(512);
    criterion.bench_function("cold plan", |bencher| {
        bencher.iter_batched(dispatcher, |fresh| find(&fresh, &problem), criterion::BatchSize::SmallInput);
    });
    let dispatcher = dispatcher();
    criterion.bench_function("cached plan", |bencher| bencher.iter(|| find(&dispatcher, &problem)));
    criterion.bench_function("cached plan, as an Arc", |bencher| bencher.iter(|| take(&dispatcher, &problem)));
    for count in SHAPES {
        let shapes: Vec<Problem> = (1..=count).map(linear).collect();
        let mut next = shapes.iter().cycle();
        criterion.bench_function(&format!("cached plan, {count} in turns"), |bencher| {
            bencher.iter(|| find(&dispatcher, next.next().expect("it never ends")))
        });
    }
    criterion.bench_function("cached fuse", |bencher| bencher.iter(|| split(&dispatcher, &fused())));
}

fn threads(criterion: &mut Criterion) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{THREADS} threads on {cores} cores");
    let dispatcher = dispatcher();
    let mut bench = |name: &str, ask: Ask, problem_of: fn(usize) -> Problem| {
        criterion.bench_function(&format!("cached plan, {THREADS} threads, {name}"), |bencher| {
            bencher.iter_custom(|calls| together(&dispatcher, calls, ask, problem_of));
        });
    };
    bench("one plan", find, |_| linear(512));
    bench("one plan, as an Arc", take, |_| linear(512));
    bench("a plan each", find, |thread| linear(512 + thread));
}

type Ask = fn(&Dispatcher, &Problem);

/// The time that the slowest of the threads takes for its calls.
fn together(dispatcher: &Dispatcher, calls: u64, ask: Ask, problem_of: fn(usize) -> Problem) -> Duration {
    let start = Barrier::new(THREADS);
    let run = |thread: usize| {
        let problem = problem_of(thread);
        ask(dispatcher, &problem);
        start.wait();
        let begin = Instant::now();
        (0..calls).for_each(|_| ask(dispatcher, &problem));
        begin.elapsed()
    };
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || run(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).max().expect("there are threads")
    })
}

/// Runs the launches where there is a device; says so where there is none.
fn launches(criterion: &mut Criterion) {
    if let Err(reason) = device::launches(criterion) {
        println!("skipped: no CUDA device ({reason})");
        if std::env::var("TILEGEMM_REQUIRE_GPU").is_ok_and(|value| value == "1") {
            eprintln!("error: TILEGEMM_REQUIRE_GPU=1, and launches cannot be timed: {reason}");
            std::process::exit(1);
        }
    }
}

#[cfg(not(all(feature = "candle", feature = "cuda")))]
mod device {
    pub fn launches(_: &mut criterion::Criterion) -> Result<(), String> {
        Err("built without the features `candle` and `cuda`".into())
    }
}

#[cfg(all(feature = "candle", feature = "cuda"))]
mod device {
    use super::*;
    use candle::backend::BackendDevice;
    use candle::cuda_backend::cudarc::driver::DevicePtr;
    use candle::CudaDevice;
    use candle_tilegemm::dispatch::Planned;
    use candle_tilegemm::launch::{self, Pointers, Queue};

    /// Launches between two waits: the queue of a stream holds about a thousand, and a full one is timed too.
    const QUEUED: u64 = 256;
    const SIZE: usize = 64;

    /// A product that takes the device less time than its launch takes the host.
    fn tiny() -> Problem {
        Problem::dense(SIZE, SIZE, SIZE, 1, Layout::NT, Format::BF16)
    }

    pub fn launches(criterion: &mut Criterion) -> Result<(), String> {
        let here = launch::dispatcher(0).map_err(|error| error.to_string())?;
        let text = |error: candle::Error| error.to_string();
        let device = CudaDevice::new(0).map_err(text)?;
        let buffer = || device.clone_htod(&[half::bf16::ONE; SIZE * SIZE]).map_err(text);
        let (a, b, d) = (buffer()?, buffer()?, buffer()?);
        let stream = device.cuda_stream();
        let [a_ptr, b_ptr, d_ptr] = [&a, &b, &d].map(|slice| slice.device_ptr(&stream).0);
        let pointers = Pointers::new(a_ptr as _, b_ptr as _, d_ptr as _);
        let handle = device.cublas_handle();
        let queue = Queue::new(stream.cu_stream().cast(), (*handle.handle()).cast());
        let run = |plan: &Planned| {
            // SAFETY: three buffers of 64 x 64 elements, as the plan's problem has it, that live to the end of this function,
            // which waits for the stream.
            unsafe { launch::launch(plan, pointers, queue) }.expect("the launch of a plan")
        };
        let timed = |calls: u64, call: &dyn Fn()| {
            let mut total = Duration::ZERO;
            let mut left = calls;
            while left > 0 {
                let now = left.min(QUEUED);
                let begin = Instant::now();
                (0..now).for_each(|_| call());
                total += begin.elapsed();
                device.synchronize().expect("the kernels that were launched");
                left -= now;
            }
            total
        };
        let problem = tiny();
        for policy in [Policy::own(), Policy::force("cublas_bf16_nt").map_err(|error| error.to_string())?] {
            let plan = here.plan(&problem, policy).map_err(|error| error.to_string())?;
            criterion.bench_function(&format!("launch, {}", plan.kernel), |bencher| {
                bencher.iter_custom(|calls| timed(calls, &|| run(&plan)));
            });
        }
        criterion.bench_function("cached plan and launch", |bencher| {
            let call = || here.with_plan(black_box(&problem), Policy::own(), |plan| run(plan)).expect("a plan");
            bencher.iter_custom(|calls| timed(calls, &call));
        });
        device.synchronize().map_err(text)
    }
}
