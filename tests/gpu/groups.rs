//! Products with groups of rows, against sums in f64: edges of tiles, empty groups, stray rows, graphs whose routing changes.

use crate::codes::Kind as Codes;
use crate::device::{by_types, Element, Gpu};
use crate::numbers::normal;
use crate::oracle::{agree, dot, GUARD};
use crate::shard::side_by_side;
use crate::{built, Test};
use bad_rows::beside_a_bad_row;
use candle::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr};
use candle_tilegemm::dispatch::{Dispatcher, Planned, Policy};
use candle_tilegemm::kernel::{Fusion, KernelDesc, Role};
use candle_tilegemm::launch::{self, GroupPointers, Pointers, Queue};
use candle_tilegemm::problem::{BiasAxis, Epilogue, Gate, Operand, Rows, Types};
use candle_tilegemm::{Format, Layout, Problem};
use matrices::{scale, Matrices};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rayon::prelude::*;
use routing::{distributions, routing, Kind, Routing, KINDS};
use std::ptr::null_mut;
use std::sync::Arc;

mod bad_rows;
mod matrices;
mod routing;

pub use bad_rows::spikes;

pub fn tests() -> Vec<(String, Test)> {
    let is_of_bytes = |kernel: &KernelDesc| [Format::F8E4M3, Format::I8].contains(&kernel.types.a);
    let kernels = built().filter(|kernel| kernel.needs_groups() || (kernel.takes_groups() && !is_of_bytes(kernel)));
    kernels
        .flat_map(|kernel| {
            let of = |what: &str, test: fn(&Gpu, &'static KernelDesc) -> Result<(), String>| {
                let test: Test = Box::new(move |gpu| test(gpu, kernel));
                (format!("{kernel}_{what}"), test)
            };
            [
                of("in_groups", |gpu, kernel| by_types!(kernel.types, in_groups(gpu, kernel))),
                of("of_a_graph_is_routed_anew", |gpu, kernel| by_types!(kernel.types, routed_anew(gpu, kernel))),
                of("beside_a_bad_row", |gpu, kernel| by_types!(kernel.types, beside_a_bad_row(gpu, kernel))),
            ]
        })
        .collect()
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Operands of a product with groups; NaN in D and around.
struct Operands<T, Out> {
    a: Vec<T>,
    b: Matrices,
    /// A row for each group.
    bias: Vec<Out>,
    d: Vec<Out>,
}

/// Whether weights are larger than 1, and kernels may round activations, or sums.
fn is_quantised(types: Types) -> bool {
    types.b.is_gguf_block() || types.has_narrow_b() || is_of_fp8(types)
}

/// Whether rows of both operands are codes, whose kernels read them in whole blocks.
fn is_of_fp8(types: Types) -> bool {
    types.a == Format::F8E4M3
}

/// A product with `n` columns of D, and with a K of whole blocks; `turn`: of factors.
fn problem(routing: &Routing, types: Types, kind: Kind, turn: usize, [n, k, padding]: [usize; 3]) -> Problem {
    let m = routing.m;
    let block = if types.has_narrow_b() || is_of_fp8(types) { 32 } else { types.b.block().elements };
    let [k, of_b] = [k, padding].map(|extent| extent.next_multiple_of(block));
    let columns_of_b = if kind.gate.is_some() { 2 * n } else { n };
    Problem::dense(m, columns_of_b, k, 1, Layout::NT, types.a).with(|p| {
        p.a = Operand::row_major(types.a, k + if is_of_fp8(types) { of_b } else { padding }, [0, 0]);
        p.b = Operand::col_major(types.b, k + of_b, [0, ((k + of_b) * columns_of_b + 8 * of_b) as i64]);
        p.b.scale = scale(types, turn, [columns_of_b, k]);
        p.d = Operand::row_major(types.d, n + padding, [0, 0]);
        p.groups = Some(routing.groups);
        p.epilogue = Epilogue::new(if padding > 0 { -0.5 } else { 1.0 }, 0.0);
        if let Some((gate, activation)) = kind.gate {
            (p.epilogue.gate, p.epilogue.activation) = (Some(gate), activation);
        }
    })
}

/// The same with the first factors from `turn` on that the kernel takes; with those of `turn`, if it takes none.
fn taken(gpu: &Gpu, kernel: &KernelDesc, routing: &Routing, kind: Kind, turn: usize, size: [usize; 3]) -> Problem {
    let of_turn = |turn: usize| problem(routing, kernel.types, kind, turn, size);
    let takes = |problem: &Problem| kernel.supports(&problem.canonical().problem, &gpu.info).is_ok();
    (turn..turn + matrices::TURNS).map(of_turn).find(takes).unwrap_or_else(|| of_turn(turn))
}

fn operands<T: Element, Out: Element>(
    problem: &Problem,
    codes: Codes,
    rng: &mut StdRng,
) -> Result<Operands<T, Out>, String> {
    let groups = problem.groups.unwrap();
    let b = Matrices::random::<T>(problem, codes, rng)?;
    // A gate times a sum stays within f16 with small activations.
    let scale = if is_quantised(problem.types()) { 1.0 / 64.0 } else { 1.0 };
    let values: Vec<T> = normal(groups.rows_of_a(problem.m) * problem.a.row_stride as usize, rng);
    let a = values.into_iter().map(|x| T::from_f64(x.number() * scale)).collect();
    let d = vec![Out::from_f64(f64::NAN); problem.m * problem.d.row_stride as usize + GUARD];
    let bias = if problem.epilogue.bias.is_some() { normal(groups.count * problem.n, rng) } else { Vec::new() };
    Ok(Operands { a, b, bias, d })
}

/// The operands on the device.
struct Uploaded<T, Out> {
    stream: Arc<CudaStream>,
    a: CudaSlice<T>,
    b: CudaSlice<u8>,
    /// Factors and zeros.
    beside: [CudaSlice<u8>; 2],
    has_zeros: bool,
    bias: CudaSlice<Out>,
    d: CudaSlice<Out>,
    bounds: CudaSlice<u32>,
    pairs: CudaSlice<u32>,
    scales: CudaSlice<f32>,
}

impl<T: Element, Out: Element> Uploaded<T, Out> {
    fn new(gpu: &Gpu, routing: &Routing, operands: &Operands<T, Out>) -> Result<Self, String> {
        let stream = gpu.device.cuda_stream();
        fn up<X: DeviceRepr>(stream: &Arc<CudaStream>, values: &[X]) -> Result<CudaSlice<X>, String> {
            stream.clone_htod(values).map_err(text)
        }
        let (a, b, d) = (up(&stream, &operands.a)?, up(&stream, &operands.b.bytes)?, up(&stream, &operands.d)?);
        let (bounds, pairs) = (up(&stream, &routing.bounds)?, up(&stream, &routing.pairs)?);
        let scales = up(&stream, &routing.scales)?;
        let guarded = |bytes: &[u8]| up(&stream, &[bytes, &[0xff; GUARD]].concat());
        let beside = [guarded(&operands.b.factors)?, guarded(&operands.b.zeros)?];
        let bias = up(&stream, &[&operands.bias[..], &[Out::from_f64(f64::NAN); GUARD]].concat())?;
        let has_zeros = !operands.b.zeros.is_empty();
        Ok(Self { stream, a, b, beside, has_zeros, bias, d, bounds, pairs, scales })
    }

    fn launch(&self, plan: &Planned, queue: Queue) -> Result<(), String> {
        fn at<X>(slice: &CudaSlice<X>, stream: &Arc<CudaStream>) -> *mut std::ffi::c_void {
            slice.device_ptr(stream).0 as _
        }
        let s = &self.stream;
        let groups = GroupPointers::new(at(&self.bounds, s)).with_lists(at(&self.pairs, s), at(&self.scales, s));
        let pointers = Pointers::new(at(&self.a, s), at(&self.b, s), at(&self.d, s)).with_groups(groups);
        let [factors, zeros] = &self.beside;
        let zeros = if self.has_zeros { at(zeros, s) } else { null_mut() };
        let pointers = pointers.with_bias(at(&self.bias, s)).with_scale_of_b(at(factors, s), zeros);
        // SAFETY: the buffers hold what the problem spans, and live until a copy has waited for the stream.
        unsafe { launch::launch(plan, pointers, queue) }.map_err(text)
    }

    fn result(&self) -> Result<Vec<Out>, String> {
        self.stream.clone_dtoh(&self.d).map_err(text)
    }
}

/// Every row against sums in f64, and everything else against what was there before.
fn check<T: Element, Out: Element>(
    kernel: &KernelDesc,
    problem: &Problem,
    routing: &Routing,
    operands: &Operands<T, Out>,
    got: &[Out],
) -> Result<(), String> {
    let (n, k) = (problem.columns_of_d(), problem.k);
    let (lda, ldb, ldd) = (problem.a.row_stride as usize, problem.b.col_stride as usize, problem.d.row_stride as usize);
    let pairs_per_row = match routing.groups.rows {
        Rows::Listed { pairs_per_row } => pairs_per_row,
        _ => 1,
    };
    // The group, if any, of each row of D that the lists name.
    let mut row_of: Vec<Option<Option<usize>>> = vec![None; problem.m];
    for &(group, pair) in routing.places.iter().flatten() {
        row_of[pair] = Some(group);
    }
    let a: Vec<f64> = operands.a.iter().map(|x| x.number()).collect();
    // Kernels with blocks round activations to bf16 (docs/gguf.md), but the reference kernel.
    let rounds = is_quantised(problem.types()) && kernel.role != Role::LastResort;
    (0..got.len()).into_par_iter().try_for_each(|at| {
        let (row, column) = (at / ldd, at % ldd);
        let group = if column < n { row_of.get(row).copied().flatten() } else { None };
        let value = got[at].to_f64();
        let group = match group {
            Some(Some(group)) => group,
            Some(None) if value == 0.0 => return Ok(()),
            Some(None) => return Err(format!("D[{row}, {column}] of no group is {value}, expected 0")),
            None if value.is_nan() => return Ok(()),
            None => return Err(format!("wrote {value} to row {row}, column {column} of D")),
        };
        let x = &a[row / pairs_per_row * lda..][..k];
        let scale = if routing.groups.scaled { f64::from(routing.scales[row]) } else { 1.0 };
        let accumulator = if Out::UNIT_ROUNDOFF < 1e-12 { Out::UNIT_ROUNDOFF } else { f32::UNIT_ROUNDOFF };
        // Alpha times a column of the product with matrices of these numbers, the error that sums may have, and the sum of magnitudes.
        let product = |b: &[f64], column: usize| {
            let w = &b[group * problem.b.batch_stride[1] as usize + column * ldb..][..k];
            let (sum, size) = dot(x, w);
            let alpha = problem.epilogue.alpha();
            let of_sum = if rounds { size / 256.0 } else { accumulator * (k as f64 + 8.0) * size.max(1.0) };
            (alpha * sum, alpha.abs() * of_sum, size)
        };
        let fits = |b: &[f64]| {
            let (expected, error, size) = match problem.epilogue.gate {
                None => {
                    let (sum, error, size) = product(b, column);
                    let bias = operands.bias.get(group * n + column).map_or(0.0, |bias| bias.to_f64());
                    (sum + bias, error + 4.0 * accumulator * bias.abs(), size)
                }
                Some(gate) => {
                    let halves = gate == Gate::Halves;
                    let (gates, gates_error, _) = product(b, if halves { column } else { 2 * column });
                    let (ups, ups_error, size) = product(b, if halves { n + column } else { 2 * column + 1 });
                    let gate = problem.epilogue.activation.apply(gates);
                    // No activation is steeper than 1.13. The last terms are the activation's own error (csrc/common/activation.hpp).
                    let of_gate = 1.13 * gates_error + 0.5 * Out::UNIT_ROUNDOFF * gate.abs() + 1e-6;
                    (gate * ups, of_gate * ups.abs() + gate.abs() * ups_error, size)
                }
            };
            let expected = scale * expected;
            // Half of the least number of f16 beside the rounding of larger numbers.
            let tolerance = match expected.is_finite() {
                true => 1.01 * Out::UNIT_ROUNDOFF * expected.abs() + 3e-8 + scale * error,
                false => 0.0,
            };
            // Parts of such sums may be beyond the largest number.
            let is_huge = size.is_finite() && size > 2f64.powi(126);
            // A number beyond the largest of the type is an infinity.
            let bounds = [expected - tolerance, expected + tolerance].map(|bound| Out::from_f64(bound).to_f64());
            let is_near = agree(value, expected, tolerance) || bounds.contains(&value);
            let is_fine = is_near || (is_huge && !value.is_finite());
            if is_fine {
                Ok(())
            } else {
                Err((expected, tolerance))
            }
        };
        // A kernel may multiply sums by a factor where a number of W would be beyond the largest one.
        match fits(&operands.b.numbers) {
            Err(_) if operands.b.exact.as_ref().is_some_and(|exact| fits(exact).is_ok()) => Ok(()),
            fits => fits.map_err(|(expected, tolerance)| {
                format!("D[{row}, {column}] of group {group} is {value}, expected {expected} within {tolerance:.2e}")
            }),
        }
    })
}

fn bits<Out: Element>(values: &[Out]) -> Vec<u64> {
    values.iter().map(|x| x.to_f64().to_bits()).collect()
}

/// A random product by the choice of the dispatcher.
pub fn random<T: Element, Out: Element>(gpu: &Gpu, policy: Policy, rng: &mut StdRng) -> Result<(), String> {
    let kind = KINDS[rng.random_range(0..KINDS.len())];
    let mut counts: Vec<usize> = (0..rng.random_range(1..=40))
        .map(|_| if rng.random_bool(0.4) { 0 } else { rng.random_range(1..=60) })
        .collect();
    counts[0] = counts[0].max(1);
    let routing = routing(&counts, kind, rng);
    let mut extent = || if rng.random() { 8 * rng.random_range(1..=30) } else { rng.random_range(1..=200) };
    let (n, k) = (extent(), extent());
    let padding = [0, 8, 3][rng.random_range(0..3)];
    let types =
        Problem::dense(8, 8, 8, 1, Layout::NT, T::KERNEL_DTYPE).with(|p| p.d.format = Out::KERNEL_DTYPE).types();
    let problem = problem(&routing, types, kind, 0, [n, k, padding]);
    let operands = operands::<T, Out>(&problem, Codes::Usual, rng)?;
    let (plan, queue) = gpu.plan(policy, &problem)?;
    let describe = |e: String| format!("{problem}, {kind:?}, by {} {}: {e}", plan.name(), plan.config);
    let uploaded = Uploaded::new(gpu, &routing, &operands)?;
    uploaded.launch(&plan, queue).map_err(describe)?;
    check(plan.kernel, &problem, &routing, &operands, &uploaded.result()?).map_err(describe)
}

/// One kernel over a few distributions of rows, for compute-sanitizer.
pub fn few(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    by_types!(kernel.types, some(gpu, kernel))
}

fn some<T: Element, Out: Element>(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(13);
    let kinds = [KINDS[0], KINDS[3], KINDS[6]].into_iter().filter(|kind| kind.gate.is_none() || kernel.takes_gates());
    for (turn, kind) in kinds.enumerate() {
        let routing = routing(&[3, 0, 17, 1, 40], kind, &mut rng);
        let problem = taken(gpu, kernel, &routing, kind, turn, [136, 72, 8]);
        let operands = operands::<T, Out>(&problem, Codes::Usual, &mut rng)?;
        let (plan, queue) = gpu.plan(kernel.name, &problem)?;
        let uploaded = Uploaded::new(gpu, &routing, &operands)?;
        uploaded.launch(&plan, queue)?;
        check(kernel, &problem, &routing, &operands, &uploaded.result()?)
            .map_err(|e| format!("{problem}, {kind:?}: {e}"))?;
    }
    Ok(())
}

/// All distributions, in every configuration, twice.
fn in_groups<T: Element, Out: Element>(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(11);
    // Blocks have any N, and a K beyond the spans of a block's warps.
    let [odd, deep] = if is_quantised(kernel.types) { [33, 4608] } else { [384, 64] };
    let sizes =
        [[264, 136, 0], [136, 520, 8], [1032, 72, 0], [8, 8, 0], [520, 264, 16], [256, 2056, 0], [odd, deep, 8]];
    let most = (kernel.tile[0] as usize).max(16);
    let mut cases: Vec<(usize, Kind, usize, Vec<usize>)> = Vec::new();
    let fits = |kind: &Kind| kind.gate.is_none() || kernel.takes_gates();
    for (turn, kind) in KINDS.into_iter().filter(fits).enumerate() {
        let of_no_group = (kind.strays > 0).then(|| vec![0; 9]);
        let all = distributions(most, &mut rng).into_iter().chain(of_no_group).enumerate();
        cases.extend(all.map(|(i, counts)| (turn, kind, i, counts)));
    }
    let try_case = |(turn, kind, i, counts): &(usize, Kind, usize, Vec<usize>)| {
        let mut rng = StdRng::seed_from_u64((100 * turn + i) as u64);
        let routing = routing(counts, *kind, &mut rng);
        // Matrices of many groups are small.
        let of_block = kernel.types.b.block().elements.max(32);
        let fits = |[n, k, _]: &&[usize; 3]| counts.len() * n * k.next_multiple_of(of_block) < 6_000_000;
        let size = *sizes.iter().cycle().skip((3 * i + turn) % sizes.len()).find(fits).ok_or("no size fits")?;
        let takes_bias = kernel.fusion != Fusion::None && kind.gate.is_none();
        let problem = taken(gpu, kernel, &routing, *kind, turn + i, size)
            .with(|p| p.epilogue.bias = (takes_bias && (turn + i) % 2 == 1).then_some(BiasAxis::N));
        let codes = if i % 3 == 2 { Codes::Any } else { Codes::Usual };
        let mut operands = operands::<T, Out>(&problem, codes, &mut rng)?;
        // Neither an infinity nor a NaN may spread to other rows.
        operands.a[3] = T::from_f64(f64::INFINITY);
        let last = operands.a.len() - problem.a.row_stride as usize;
        operands.a[last] = T::from_f64(f64::NAN);
        let configurations = kernel.configurations(&problem.canonical().problem, &gpu.info);
        for config in &configurations {
            let name = if *config == Default::default() { kernel.name.into() } else { format!("{kernel}@{config}") };
            let describe = |e: String| format!("{name}, {problem}, {kind:?}, distribution {i}: {e}");
            let (plan, queue) = gpu.plan(name.as_str(), &problem).map_err(describe)?;
            let mut uploaded = Uploaded::new(gpu, &routing, &operands)?;
            uploaded.launch(&plan, queue).map_err(describe)?;
            let got = uploaded.result().map_err(describe)?;
            check(kernel, &problem, &routing, &operands, &got).map_err(describe)?;
            uploaded.stream.memcpy_htod(&operands.d, &mut uploaded.d).map_err(text)?;
            uploaded.launch(&plan, queue)?;
            if bits(&uploaded.result()?) != bits(&got) {
                return Err(describe("another launch has other bits".into()));
            }
        }
        Ok(configurations.len())
    };
    match side_by_side(&cases, try_case)?.into_iter().sum() {
        tried @ 0..30 => Err(format!("only {tried} products")),
        _ => Ok(()),
    }
}

/// A graph reads the routing that the device has when the graph runs, also one that is nonsense.
fn routed_anew<T: Element, Out: Element>(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(12);
    let mut of = |counts: &[usize], strays: usize| routing(counts, Kind { strays, ..KINDS[1] }, &mut rng);
    let first = of(&[40, 0, 3, 157, 0, 0, 12, 1], 0);
    let second = of(&[0, 100, 0, 0, 0, 100, 13, 0], 0);
    // Some rows of no group, and all.
    let third = of(&[0, 60, 0, 9, 0, 0, 0, 0], 144);
    let last = of(&[0; 8], 213);
    let problem = taken(gpu, kernel, &first, KINDS[1], 1, [264, 136, 0]);
    let operands = operands::<T, Out>(&problem, Codes::Usual, &mut rng)?;
    let dispatcher = Dispatcher::new(gpu.info.clone());
    for config in kernel.configurations(&problem.canonical().problem, dispatcher.device()) {
        let name = if config == Default::default() { kernel.name.into() } else { format!("{kernel}@{config}") };
        let (plan, queue) = gpu.plan(name.as_str(), &problem)?;
        let mut uploaded = Uploaded::new(gpu, &first, &operands)?;
        let stream = uploaded.stream.clone();
        uploaded.launch(&plan, queue)?;
        stream.synchronize().map_err(text)?;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(text)?;
        let launched = uploaded.launch(&plan, queue);
        let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        launched?;
        let graph = graph.map_err(text)?.ok_or("nothing was captured")?;
        for routing in [&first, &second, &third, &last, &first] {
            stream.memcpy_htod(&routing.bounds, &mut uploaded.bounds).map_err(text)?;
            stream.memcpy_htod(&routing.pairs, &mut uploaded.pairs).map_err(text)?;
            stream.memcpy_htod(&routing.scales, &mut uploaded.scales).map_err(text)?;
            stream.memcpy_htod(&operands.d, &mut uploaded.d).map_err(text)?;
            graph.launch().map_err(text)?;
            check(kernel, &problem, routing, &operands, &uploaded.result()?).map_err(|e| format!("{name}: {e}"))?;
        }
        // Groups in no order: whatever results, nothing outside of D is written.
        let nonsense: Vec<u32> = (0..problem.m).map(|_| rng.random_range(0..20)).collect();
        stream.memcpy_htod(&nonsense, &mut uploaded.bounds).map_err(text)?;
        graph.launch().map_err(text)?;
        let beyond = &uploaded.result()?[problem.m * problem.d.row_stride as usize..];
        if beyond.iter().any(|x| !x.to_f64().is_nan()) {
            return Err(format!("{name}: groups in no order are written outside of D"));
        }
    }
    Ok(())
}
