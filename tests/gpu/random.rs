//! Random products against sums in f64: every type, place in memory, epilogue and kind of data, by our kernels alone and beside cuBLAS, whole and in
//! pieces. A failure names the seed of its product: `TILEGEMM_TEST_SEED=<seed> TILEGEMM_TEST_CASES=1` runs this product alone.

use crate::cases::{self, Data, Variant};
use crate::device::{Element, Gpu, Operands};
use crate::oracle::{self, Slack};
use crate::shard::side_by_side;
use crate::{gguf, groups, narrow, Test};
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::kernel::{Fusion, Role};
use candle_tilegemm::launch;
use candle_tilegemm::problem::{BiasAxis, Types};
use candle_tilegemm::{workspace, Activation, F32Mode, Format, Layout, Problem};
use float8::F8E4M3;
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The policies of random products: with and without cuBLAS, a workspace, copies of operands, and one order of sums.
const POLICIES: [fn() -> Policy; 6] = [
    Policy::default,
    Policy::own,
    || Policy::default().with_workspace(0),
    || Policy::own().with_workspace(0),
    || Policy::own().with_copies(),
    || Policy::default().with_batch_invariance(true),
];

pub fn tests() -> Vec<(String, Test)> {
    let of = |name: &str, count: usize, one: fn(&Gpu, &mut StdRng) -> Result<(), String>| -> (String, Test) {
        (format!("random_products_{name}"), Box::new(move |gpu| each(count, |rng| one(gpu, rng))))
    };
    let mut tests = vec![
        of("f16", 800, whole::<f16, f16>),
        of("bf16", 1000, whole::<bf16, bf16>),
        of("f32", 1000, whole::<f32, f32>),
        of("f64", 300, whole::<f64, f64>),
        of("f16_f32", 350, whole::<f16, f32>),
        of("bf16_f32", 350, whole::<bf16, f32>),
        of("f8e4m3_bf16", 150, whole::<F8E4M3, bf16>),
        of("f8e4m3_f32", 150, whole::<F8E4M3, f32>),
        of("groups_f16", 150, |gpu, rng| groups::random::<f16, f16>(gpu, policy(rng), rng)),
        of("groups_bf16", 250, |gpu, rng| groups::random::<bf16, bf16>(gpu, policy(rng), rng)),
        of("blocks_f32", 250, |gpu, rng| gguf::random::<f32>(gpu, policy(rng), rng)),
        of("blocks_bf16", 250, |gpu, rng| gguf::random::<bf16>(gpu, policy(rng), rng)),
        of("narrow_f32", 150, |gpu, rng| narrow::random::<f32, f32>(gpu, policy(rng), rng)),
        of("narrow_f16_f32", 150, |gpu, rng| narrow::random::<f16, f32>(gpu, policy(rng), rng)),
        of("narrow_bf16", 250, |gpu, rng| narrow::random::<bf16, bf16>(gpu, policy(rng), rng)),
    ];
    type InPieces = fn(&Gpu, usize) -> Result<(), String>;
    let in_pieces: [(&str, usize, InPieces); 3] = [
        ("f16", 250, |gpu, count| in_pieces::<f16>(gpu, count)),
        ("bf16", 250, |gpu, count| in_pieces::<bf16>(gpu, count)),
        ("f32", 500, |gpu, count| in_pieces::<f32>(gpu, count)),
    ];
    for (format, count, test) in in_pieces {
        let name = format!("random_products_in_pieces_{format}");
        let test: Test = {
            let name = name.clone();
            Box::new(move |gpu| with_a_small_workspace(&name, || test(gpu, count)))
        };
        tests.push((name, test));
    }
    tests
}

fn policy(rng: &mut StdRng) -> Policy {
    POLICIES.choose(rng).map_or_else(Policy::default, |policy| policy())
}

fn seed() -> Result<u64, String> {
    let Ok(value) = std::env::var("TILEGEMM_TEST_SEED") else { return Ok(0) };
    value.parse().map_err(|_| format!("TILEGEMM_TEST_SEED={value} is not understood; expected a whole number"))
}

/// Runs so many random products, or `TILEGEMM_TEST_CASES`.
fn each(count: usize, one: impl Fn(&mut StdRng) -> Result<(), String> + Sync) -> Result<(), String> {
    let (first, count) = (seed()?, cases::few_cases()?.unwrap_or(count));
    let seeds: Vec<u64> = (first..first + count as u64).collect();
    let try_one = |seed: &u64| one(&mut StdRng::seed_from_u64(*seed)).map_err(|error| format!("seed {seed}: {error}"));
    side_by_side(&seeds, try_one).map(drop)
}

/// Mostly small, often a multiple of 8 or of 64.
fn extent(most: usize, rng: &mut StdRng) -> usize {
    match rng.random_range(0..5) {
        0 => rng.random_range(1..=16),
        1 => 64 * rng.random_range(1..=most.div_ceil(64)),
        2 | 3 => 8 * rng.random_range(1..=most / 8),
        _ => rng.random_range(1..=most),
    }
}

/// The first of `usual` mostly, else one of the others.
fn mostly<T: Copy>(usual: T, others: &[T], rng: &mut StdRng) -> T {
    if rng.random_bool(0.6) {
        usual
    } else {
        *others.choose(rng).unwrap_or(&usual)
    }
}

fn variant(rng: &mut StdRng) -> Variant {
    let beta = mostly(0.0, &[1.0, -2.0, 0.5], rng);
    let batch = mostly([1, 1], &[[1, 2], [1, 5], [2, 3]], rng);
    let in_place = beta != 0.0 && rng.random();
    Variant {
        batch,
        broadcast_a: rng.random_bool(0.2),
        broadcast_b: rng.random_bool(0.3),
        broadcast_c: !in_place && rng.random_bool(0.2),
        padding: mostly(0, &[1, 2, 4, 8, 16, 24], rng),
        offset: mostly(0, &[1, 2, 3, 4, 8, 16], rng),
        alpha: mostly(1.0, &[-0.5, 0.125, 0.0], rng),
        beta,
        bias: mostly(None, &[Some(BiasAxis::M), Some(BiasAxis::N)], rng),
        activation: mostly(Activation::Identity, &Activation::ALL, rng),
        column_major_d: rng.random_bool(0.1),
        in_place,
    }
}

/// A random product of these types with M, N and K up to `most`, its operands' offset and its data.
fn product<T: Element, Out: Element>(most: [usize; 3], rng: &mut StdRng) -> (Problem, usize, Data) {
    let layout = *[Layout::NT, Layout::NN, Layout::TN, Layout::TT].choose(rng).unwrap_or(&Layout::NT);
    let variant = variant(rng);
    let [m, n, mut k] = most.map(|most| extent(most, rng));
    if rng.random_bool(0.05) {
        k = *[0, 1, 2048].choose(rng).unwrap_or(&k);
    }
    let m = if rng.random_bool(0.3) { m.min(rng.random_range(1..=16)) } else { m };
    let mut problem = cases::problem(m, n, k, layout, Types::new(T::KERNEL_DTYPE, Out::KERNEL_DTYPE), variant);
    problem.f32_mode = *F32Mode::ALL.choose(rng).unwrap_or(&problem.f32_mode);
    // Views: every second column of a wider matrix, and one line for all.
    let views = [(&mut problem.a, [m, k]), (&mut problem.b, [k, n])];
    for (operand, [rows, columns]) in views.into_iter().filter(|_| variant.batch == [1, 1]) {
        match rng.random_range(0..16) {
            0 => (operand.row_stride, operand.col_stride) = (2 * columns as i64 + 1, 2),
            1 => (operand.row_stride, operand.col_stride) = (3, 3 * rows as i64),
            2 if operand.col_stride == 1 => operand.row_stride = 0,
            2 => operand.col_stride = 0,
            _ => {}
        }
    }
    (problem, variant.offset, *[Data::Normal, Data::Integers, Data::NonFinite].choose(rng).unwrap_or(&Data::Normal))
}

/// The product of a seed, in 16 bits or in f32.
pub fn one(gpu: &Gpu, seed: u64) -> Result<(), String> {
    let rng = &mut StdRng::seed_from_u64(seed);
    match seed % 3 {
        0 => whole::<f32, f32>(gpu, rng),
        1 => whole::<f16, f16>(gpu, rng),
        _ => whole::<bf16, bf16>(gpu, rng),
    }
}

fn whole<T: Element, Out: Element>(gpu: &Gpu, rng: &mut StdRng) -> Result<(), String> {
    let most = if rng.random_bool(0.03) { [1400, 1400, 400] } else { [260, 400, 500] };
    let (problem, offset, data) = product::<T, Out>(most, rng);
    let policy = policy(rng);
    let fusion = match rng.random() {
        true => Dispatcher::new(gpu.info.clone()).fuse(&problem, policy).map_err(|e| e.to_string())?,
        false => Fusion::Full,
    };
    let operands = cases::operands::<T, Out>(&problem, offset, data, rng.random());
    run(gpu, &problem, &operands, data, policy, fusion)
}

/// The product by the choice of the dispatcher, whose kernel does so much of the epilogue; an elementwise kernel does the rest, as in the op.
pub fn run<T: Element, Out: Element>(
    gpu: &Gpu,
    problem: &Problem,
    operands: &Operands<T, Out>,
    data: Data,
    policy: Policy,
    fusion: Fusion,
) -> Result<(), String> {
    let text = |error: candle_tilegemm::Error| error.to_string();
    let (epilogue, passes) = problem.epilogue.keep(fusion);
    let (plan, queue) = gpu.plan(policy, &problem.with(|p| p.epilogue = epilogue))?;
    let alone = gpu.alone(&plan);
    let launched = gpu.with_operands(problem.epilogue.in_place, operands, |pointers, _| {
        // SAFETY: the buffers hold what the problem spans, and live until D has been read.
        unsafe {
            launch::launch(&plan, pointers, queue).map_err(text)?;
            launch::finish(problem, fusion, pointers, queue.stream).map_err(text)
        }
    });
    drop(alone);
    let is_tf32 = problem.is_f32() && problem.f32_mode == F32Mode::Tf32;
    let is_vendor = plan.kernel.role == Role::Vendor;
    // A result in 16 bits is rounded once, unless cuBLAS adds to it.
    let rounds_twice = match Out::UNIT_ROUNDOFF > 1e-4 {
        true => is_vendor && problem.epilogue.in_place,
        false => passes > 0 || plan.packing.is_some() || is_vendor,
    };
    let slack = Slack {
        // Two inputs are rounded to 11 bits each; of products of fp8 tensor cores keep some 13 bits of the largest.
        inputs: match problem.a.format {
            _ if is_tf32 => 2f64.powi(-10),
            Format::F8E4M3 => 2f64.powi(-11),
            _ => 0.0,
        },
        rounds_twice,
        exact: data == Data::Integers && problem.epilogue.is_linear(),
    };
    launched.and_then(|got| oracle::check_within(problem, operands, &got, slack)).map_err(|error| {
        let (name, config) = (plan.name(), plan.config);
        format!("{problem}, {data:?}, by {name} {config}, {passes} elementwise, {policy:?}: {error}\n{problem:?}")
    })
}

/// MiB of the workspace of products in pieces.
const SMALL: u64 = 2;

/// Runs a test in a process whose streams have a small workspace: this one, or a process of its own.
fn with_a_small_workspace(name: &str, test: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    if workspace::bytes().map_err(|e| e.to_string())? == SMALL << 20 {
        return test();
    }
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let output = Command::new(program).args(["--exact", name]).env("TILEGEMM_WORKSPACE", SMALL.to_string()).output();
    let output = output.map_err(|e| e.to_string())?;
    match output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed") {
        true => Ok(()),
        false => Err(format!("in a process of its own: {}", String::from_utf8_lossy(&output.stdout))),
    }
}

/// Products whose kernel or whose copies need more memory than the workspace has.
fn in_pieces<T: Element>(gpu: &Gpu, count: usize) -> Result<(), String> {
    let dispatcher = Dispatcher::new(gpu.info.clone());
    let bytes = workspace::bytes().map_err(|e| e.to_string())?;
    let drawn = AtomicUsize::new(0);
    each(count, |rng| loop {
        let drawn = drawn.fetch_add(1, Ordering::Relaxed);
        if drawn > 400 * count {
            return Err(format!("of {drawn} products few are computed in pieces"));
        }
        let (problem, offset, data) = product::<T, T>([1200, 3000, 400], rng);
        let policy = if rng.random() { Policy::own() } else { Policy::own().with_copies() }.with_workspace(bytes);
        let is_in_pieces = dispatcher.plan(&problem, policy).is_ok_and(|plan| plan.workspace.best > bytes);
        if is_in_pieces && problem.flops() < 5e8 {
            let operands = cases::operands::<T, T>(&problem, offset, data, rng.random());
            return run(gpu, &problem, &operands, data, policy, Fusion::Full);
        }
    })
}
