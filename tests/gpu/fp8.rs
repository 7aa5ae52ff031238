//! Products of 8 bits by 8 bits, against sums in f64 of the numbers that the host reads: by every kernel that has such products, with factors of every
//! kind. And the quantiser of activations, against the host.

use crate::bad_rows::{compare, Bad};
use crate::device::{Choice, Element, Gpu};
use crate::numbers::{Kind, Numbers};
use crate::oracle::{agree, dot, GUARD};
use crate::shard::side_by_side;
use crate::{built, Test};
use candle::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candle_tilegemm::dispatch::Policy;
use candle_tilegemm::kernel::{KernelDesc, Math, Role};
use candle_tilegemm::launch::{self, Pointers};
use candle_tilegemm::problem::{BiasAxis, Epilogue, Operand, Scale};
use candle_tilegemm::{Activation, Format, Problem};
use float8::F8E4M3;
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

/// Whether this file tests the kernel: A has 8 bits, and the kernel is none of those that other cards have for fp8.
pub fn is_of_bytes(kernel: &KernelDesc) -> bool {
    let is_fp8 = kernel.types.a == Format::F8E4M3;
    kernel.types.a == Format::I8 || is_fp8 && (kernel.family.starts_with("sm90_") || kernel.types.d == Format::F16)
}

/// `groups.rs` has the kernels for groups of rows.
fn has_cases(kernel: &&'static KernelDesc) -> bool {
    is_of_bytes(kernel) && !kernel.needs_groups()
}

pub fn tests() -> Vec<(String, Test)> {
    let of_kernel = |kernel: &'static KernelDesc| -> (String, Test) {
        (format!("{kernel}_bytes"), Box::new(move |gpu| every_case(gpu, kernel)))
    };
    let mut tests: Vec<(String, Test)> = built().filter(has_cases).map(of_kernel).collect();
    let beside = |kernel: &'static KernelDesc| -> (String, Test) {
        let test: Test = Box::new(move |gpu| match kernel.types.d {
            Format::BF16 => beside_a_bad_row::<bf16>(gpu, kernel),
            Format::F16 => beside_a_bad_row::<f16>(gpu, kernel),
            _ => beside_a_bad_row::<f32>(gpu, kernel),
        });
        (format!("{kernel}_bytes_beside_a_bad_row"), test)
    };
    tests.extend(built().filter(has_cases).map(beside));
    // The reference kernel with factors, and the dispatcher's choice.
    if !tests.is_empty() {
        tests.push(("reference_f8e4m3_bf16_bytes".into(), Box::new(|gpu| every_case(gpu, reference(gpu)?))));
        tests.push(("sums_of_one_sign".into(), Box::new(sums_of_one_sign)));
        for (a, d) in [(Format::F8E4M3, Format::BF16), (Format::I8, Format::BF16), (Format::F8E4M3, Format::F32)] {
            let name = format!("random_products_{a}_{d}_bytes");
            tests.push((name, Box::new(move |gpu| random(gpu, a, d))));
        }
    }
    #[cfg(feature = "layers")]
    tests.push(("quantiser_against_the_host".into(), Box::new(quantiser::against_the_host)));
    tests
}

fn reference(gpu: &Gpu) -> Result<&'static KernelDesc, String> {
    let is_it = |kernel: &&KernelDesc| {
        let types = kernel.types;
        let is_last = kernel.role == Role::LastResort && kernel.arch.runs_on(gpu.info.capability);
        is_last && (types.a, types.b, types.d) == (Format::F8E4M3, Format::F8E4M3, Format::BF16)
    };
    built().filter(is_it).max_by_key(|kernel| kernel.arch.capability).ok_or_else(|| "there is no reference".into())
}

/// Which codes there are.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Codes {
    /// Of N(0, 1), or whole numbers up to 127.
    Signed,
    /// Of magnitudes of N(0, 1).
    Positive,
    /// Any but NaN, with a NaN in a row of A and in a row of W.
    Any,
}

/// What is varied beside the sizes and the factors.
#[derive(Debug, Clone, Copy)]
struct Case {
    codes: Codes,
    /// Bytes between lines beyond multiples of 16, and elements between rows of D.
    padding: usize,
    gap: usize,
    bias: Option<BiasAxis>,
    activation: Activation,
    alpha: f64,
    beta: f64,
}

const PLAIN: Case = Case {
    codes: Codes::Signed,
    padding: 0,
    gap: 0,
    bias: None,
    activation: Activation::Identity,
    alpha: 1.0,
    beta: 0.0,
};
const CASES: [Case; 6] = [
    PLAIN,
    Case { codes: Codes::Any, ..PLAIN },
    Case { padding: 16, gap: 1, bias: Some(BiasAxis::N), activation: Activation::Silu, ..PLAIN },
    Case { beta: 0.5, alpha: -0.5, bias: Some(BiasAxis::M), gap: 8, ..PLAIN },
    Case { codes: Codes::Positive, ..PLAIN },
    Case { padding: 48, gap: 3, ..PLAIN },
];

const KINDS: usize = 7;
/// Factors of A and W: none, of tensors, of rows, of blocks by either stride of A, and of one operand; those of the place `kind`.
fn scales([m, n, k]: [usize; 3], kind: usize) -> [Option<Scale>; 2] {
    const ALL: u32 = u32::MAX;
    let f32 = Format::F32;
    let of_rows = Some(Scale::new(f32, [1, ALL], [1, 0]));
    let blocks = Some(Scale::of_blocks(f32, [128, 128], k));
    match kind {
        0 => [None, None],
        1 => [Some(Scale::of_tensor(f32)); 2],
        2 => [of_rows, Some(Scale::of_rows(f32))],
        3 => [Some(Scale::new(f32, [1, 128], [1, m.next_multiple_of(4) as i64])), blocks],
        4 => [Some(Scale::new(f32, [1, 128], [k.div_ceil(128) as i64, 1])), blocks],
        5 => [of_rows, Some(Scale::of_tensor(f32))],
        // With a gap between the factors of rows of W.
        _ => [None, Some(Scale::new(f32, [ALL, 1], [0, if n > 1 { 3 } else { 1 }]))],
    }
}

/// An operand in lines of K: its codes, and its factors with their place.
#[derive(Clone)]
struct Bytes {
    codes: Vec<u8>,
    stride: usize,
    factors: Vec<f32>,
}

impl Bytes {
    fn random(format: Format, [lines, k]: [usize; 2], padding: usize, codes: Codes, rng: &mut StdRng) -> Self {
        let stride = k.next_multiple_of(16) + padding;
        let normal = |rng: &mut StdRng| -> f32 { StandardNormal.sample(rng) };
        let code = |rng: &mut StdRng| match (format, codes) {
            (Format::I8, Codes::Positive) => rng.random_range(0..=127u8),
            (Format::I8, _) => rng.next_u32() as u8,
            (_, Codes::Signed) => F8E4M3::from_f32(normal(rng)).to_bits(),
            (_, Codes::Positive) => F8E4M3::from_f32(normal(rng).abs()).to_bits(),
            (_, Codes::Any) => rng.random_range(0..0x7fu8) | if rng.random() { 0x80 } else { 0 },
        };
        // What lies behind K is none of a product's: NaN in fp8.
        let mut all = vec![0xff; lines * stride];
        for line in all.chunks_mut(stride) {
            line[..k].fill_with(|| code(rng));
        }
        if codes == Codes::Any && format == Format::F8E4M3 {
            all[lines / 2 * stride + k - 1] = if rng.random() { 0x7f } else { 0xff };
        }
        Self { codes: all, stride, factors: Vec::new() }
    }

    /// Draws factors, for `scale` of an operand of rows x columns.
    fn with_factors(mut self, scale: Option<Scale>, extents: [usize; 2], rng: &mut StdRng) -> Self {
        if let Some(scale) = scale {
            let count = scale.index([0, 0], extents.map(|extent| extent - 1)) + 1;
            self.factors = (0..count).map(|_| 2f32.powf(rng.random_range(-3.0..1.0))).collect();
        }
        self
    }

    /// A line, without and with its factors, which lie where `at` says.
    fn line(&self, format: Format, line: usize, k: usize, at: impl Fn(usize) -> Option<usize>) -> Vec<f64> {
        let value = |code: u8| match format {
            Format::I8 => f64::from(code as i8),
            _ => F8E4M3::from_bits(code).to_f64(),
        };
        let codes = &self.codes[line * self.stride..][..k];
        let factor = |place: usize| at(place).map_or(1.0, |at| f64::from(self.factors[at]));
        codes.iter().enumerate().map(|(place, code)| value(*code) * factor(place)).collect()
    }
}

/// One kernel over a few cases, for compute-sanitizer.
pub fn few(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    let mut tried = 0;
    for (at, m) in [1, 7, 40, 150].into_iter().enumerate() {
        for kind in [2, 3, 0] {
            tried += usize::from(of_kernel(gpu, kernel, [m, 136, 272], kind, CASES[at])?);
        }
    }
    if tried == 0 {
        return Err("no product to try".into());
    }
    Ok(())
}

const ROWS: [usize; 14] = [1, 2, 5, 8, 9, 16, 31, 64, 65, 100, 128, 129, 200, 300];
const COLUMNS: [usize; 6] = [1, 8, 72, 129, 320, 515];
const DEPTHS: [usize; 8] = [16, 17, 128, 100, 272, 1000, 1104, 2064];

fn every_case(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    let mut products: Vec<([usize; 3], usize, Case)> = vec![
        ([64, 300, 8208], 3, PLAIN),
        ([1, 2250, 4096], 2, PLAIN),
        ([256, 1000, 4112], 4, PLAIN),
        ([512, 4104, 1040], 3, PLAIN),
        ([1100, 2600, 272], 2, CASES[3]),
        ([3000, 1031, 144], 1, CASES[2]),
        ([700, 3000, 400], 4, PLAIN),
    ];
    for (at, m) in ROWS.into_iter().enumerate() {
        for (columns, n) in COLUMNS.into_iter().enumerate() {
            let k = DEPTHS[(at + 3 * columns) % DEPTHS.len()];
            products.push(([m, n, k], (at + columns) % KINDS, PLAIN));
            let other = DEPTHS[(2 * at + columns + 1) % DEPTHS.len()];
            products.push(([m, n, other], (at + 2 * columns + 3) % KINDS, CASES[(at + columns) % CASES.len()]));
        }
    }
    let try_one = |&(sizes, kind, case): &_| of_kernel(gpu, kernel, sizes, kind, case).map(usize::from);
    match side_by_side(&products, try_one)?.into_iter().sum() {
        tried @ 0..40 => Err(format!("only {tried} products to try")),
        _ => Ok(()),
    }
}

/// A random product by the choice of the dispatcher.
fn random(gpu: &Gpu, a: Format, d: Format) -> Result<(), String> {
    let seeds: Vec<u64> = (0..150).collect();
    let one = |seed: &u64| {
        let mut rng = StdRng::seed_from_u64(*seed);
        let most = [8, 64, 400][rng.random_range(0..3)];
        let sizes = [rng.random_range(1..=most), rng.random_range(1..=600), rng.random_range(1..=3000)];
        let case = CASES[rng.random_range(0..CASES.len())];
        let policy = if rng.random() { Policy::own() } else { Policy::default() };
        let kind = rng.random_range(0..KINDS);
        let fast = rng.random_range(0..4) == 0;
        run(gpu, Choice::By(policy), None, [a, d], sizes, kind, case, fast)
            .map(drop)
            .map_err(|error| format!("seed {seed}: {error}"))
    };
    side_by_side(&seeds, one).map(drop)
}

/// Sums of 16384 products of one sign are within 2^-9 of their sum where they go to f32 every 128 of K, and the tensor cores' own are not.
fn sums_of_one_sign(gpu: &Gpu) -> Result<(), String> {
    let case = Case { codes: Codes::Positive, ..PLAIN };
    let kernels: Vec<_> = built().filter(has_cases).filter(|kernel| kernel.types.a == Format::F8E4M3).collect();
    let mut tried = 0;
    for kernel in kernels.iter().filter(|kernel| kernel.math == Math::Native) {
        for (m, kind) in [(8, 1), (64, 3), (200, 1), (200, 3)] {
            tried += usize::from(of_kernel(gpu, kernel, [m, 200, 16384], kind, case)?);
        }
    }
    let fast = |kernel: &&&KernelDesc| kernel.math == Math::FastAccum && kernel.family == "sm90_fp8_gemm";
    if let Some(kernel) = kernels.iter().find(fast) {
        let types = [kernel.types.a, kernel.types.d];
        let outcome =
            run(gpu, Choice::Named(kernel.name), Some(2f64.powi(-9)), types, [200, 200, 16384], 1, case, true);
        if outcome.is_ok() {
            return Err(format!("{kernel}: fast sums are as exact as sums in f32, and this test shows nothing"));
        }
    }
    if tried < 4 && !kernels.is_empty() {
        return Err(format!("only {tried} products to try"));
    }
    Ok(())
}

/// A row whose codes or factors are NaN or the largest changes no bit of the others, in every configuration.
fn beside_a_bad_row<Out: Element>(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    let ([format, d], fast) = ([kernel.types.a, kernel.types.d], kernel.math == Math::FastAccum);
    let (n, k, mut tried) = (136, 272, 0);
    for m in [2, 9, 64, 129, 300] {
        // Factors of rows, of blocks, and none.
        for kind in [2, 3, 0] {
            let problem = problem([format, d], [m, n, k], kind, PLAIN, fast);
            if kernel.supports(&problem.canonical().problem, &gpu.info).is_err() {
                continue;
            }
            let mut rng = StdRng::seed_from_u64((m + kind) as u64);
            let mut operand = |lines: usize, scale, extents| {
                Bytes::random(format, [lines, k], 0, PLAIN.codes, &mut rng).with_factors(scale, extents, &mut rng)
            };
            let (a, w) = (operand(m, problem.a.scale, [m, k]), operand(n, problem.b.scale, [k, n]));
            let (row, of_d) = (m / 2, vec![Out::from_f64(0.0); m * n]);
            // Codes of fp8 may be NaN; those of int8, and other factors, may be the largest.
            let mut spoilt: Vec<(Bad, Bytes)> = Vec::new();
            for (bad, code) in [(Bad::Nan, 0x7f), (Bad::Huge, if format == Format::I8 { 0x7f } else { 0x7e })] {
                if format != Format::I8 || bad == Bad::Huge {
                    let mut a = a.clone();
                    a.codes[row * a.stride..][..k].fill(code);
                    spoilt.push((bad, a));
                }
            }
            for (bad, factor) in [(Bad::Nan, f32::NAN), (Bad::Infinities, f32::INFINITY), (Bad::Overflow, f32::MAX)] {
                if let Some(scale) = problem.a.scale {
                    let mut a = a.clone();
                    (0..k).for_each(|p| a.factors[scale.index([0, 0], [row, p]) as usize] = factor);
                    spoilt.push((bad, a));
                }
            }
            for config in kernel.configurations(&problem.canonical().problem, &gpu.info) {
                let name = if config.is_default() { kernel.name.into() } else { format!("{kernel}@{config}") };
                let (plan, queue) = gpu.plan(Choice::Named(&name), &problem)?;
                let good = launch(gpu, &plan, queue, [&a, &w], &of_d, &of_d)?;
                for (bad, spoilt) in &spoilt {
                    let got = launch(gpu, &plan, queue, [spoilt, &w], &of_d, &of_d)?;
                    compare(&good, &got, n, |i| i == row, *bad).map_err(|e| format!("{name}, {problem}: {e}"))?;
                }
                tried += 1;
            }
        }
    }
    if tried == 0 {
        return Err("no product to try".into());
    }
    Ok(())
}

/// Whether the kernel takes the product; then its D, in every configuration, is compared with the sums.
fn of_kernel(
    gpu: &Gpu,
    kernel: &'static KernelDesc,
    sizes: [usize; 3],
    kind: usize,
    case: Case,
) -> Result<bool, String> {
    let [a, d] = [kernel.types.a, kernel.types.d];
    let fast = kernel.math == Math::FastAccum;
    let problem = problem([a, d], sizes, kind, case, fast).canonical().problem;
    if kernel.supports(&problem, &gpu.info).is_err() {
        return Ok(false);
    }
    let bound = bound(kernel, sizes[2], case.codes);
    for config in kernel.configurations(&problem, &gpu.info) {
        let name = if config.is_default() { kernel.name.into() } else { format!("{kernel}@{config}") };
        run(gpu, Choice::Named(&name), Some(bound), [a, d], sizes, kind, case, fast)
            .map_err(|error| format!("{config}: {error}"))?;
    }
    Ok(true)
}

/// How far a sum may be off, over the sum of magnitudes: the tensor cores keep some 13 bits of sums of 128 products, and of all of K, one product after the
/// other. Sums of one sign have an error of one sign each time.
fn bound(kernel: &KernelDesc, k: usize, codes: Codes) -> f64 {
    let of_f32 = f32::UNIT_ROUNDOFF * (k as f64 + 8.0);
    let of_cores = 2f64.powi(-13);
    match () {
        _ if kernel.role == Role::LastResort => of_f32,
        _ if kernel.types.a == Format::I8 => 4.0 * f32::UNIT_ROUNDOFF,
        _ if kernel.math == Math::FastAccum => of_cores * (2.5 + k as f64 / 4.0),
        _ if codes == Codes::Signed => 2.5 * of_cores,
        _ => 16.0 * of_cores,
    }
}

fn problem([a, d]: [Format; 2], [m, n, k]: [usize; 3], kind: usize, case: Case, fast: bool) -> Problem {
    let [of_a, of_w] = scales([m, n, k], kind);
    let mut problem = Problem::narrow([m, n, k], a, a, of_w);
    problem.a.scale = of_a;
    for stride in [&mut problem.a.row_stride, &mut problem.b.col_stride] {
        *stride = (k.next_multiple_of(16) + case.padding) as i64;
    }
    problem.d = Operand::row_major(d, n + case.gap, [0, 0]);
    let mut epilogue = Epilogue::new(case.alpha, case.beta);
    (epilogue.bias, epilogue.activation) = (case.bias, case.activation);
    epilogue.c = (case.beta != 0.0).then_some(problem.d);
    (problem.epilogue, problem.fast_accumulation) = (epilogue, fast);
    problem
}

#[allow(clippy::too_many_arguments)]
fn run(
    gpu: &Gpu,
    choice: Choice,
    bound: Option<f64>,
    types: [Format; 2],
    sizes: [usize; 3],
    kind: usize,
    case: Case,
    fast: bool,
) -> Result<(), String> {
    match types[1] {
        Format::BF16 => run_in::<bf16>(gpu, choice, bound, types, sizes, kind, case, fast),
        Format::F16 => run_in::<f16>(gpu, choice, bound, types, sizes, kind, case, fast),
        _ => run_in::<f32>(gpu, choice, bound, types, sizes, kind, case, fast),
    }
}

#[allow(clippy::too_many_arguments)]
fn run_in<Out: Element>(
    gpu: &Gpu,
    choice: Choice,
    bound: Option<f64>,
    types: [Format; 2],
    sizes: [usize; 3],
    kind: usize,
    case: Case,
    fast: bool,
) -> Result<(), String> {
    let ([m, n, k], format) = (sizes, types[0]);
    let mut rng = StdRng::seed_from_u64((m * 1009 + n * 31 + k + kind) as u64);
    let problem = problem(types, sizes, kind, case, fast);
    let wrong = |error: String| format!("{problem} {case:?}: {error}");
    let a = Bytes::random(format, [m, k], case.padding, case.codes, &mut rng);
    let a = a.with_factors(problem.a.scale, [m, k], &mut rng);
    let w = Bytes::random(format, [n, k], case.padding, case.codes, &mut rng);
    let w = w.with_factors(problem.b.scale, [k, n], &mut rng);
    let columns = n + case.gap;
    let mut normals = Numbers::<Out>::new(Kind::Normal, &mut rng);
    let (bias, c) = (normals.take(m.max(n)), normals.take(m * columns));
    let (plan, queue) = gpu.plan(choice, &problem)?;
    let bound = bound.unwrap_or_else(|| self::bound(plan.kernel, k, case.codes));
    let got = launch(gpu, &plan, queue, [&a, &w], &bias, &c).map_err(wrong)?;
    let (of_a, of_w) = (problem.a.scale, problem.b.scale);
    let at = |scale: Option<Scale>, place: [usize; 2]| scale.map(|scale| scale.index([0, 0], place) as usize);
    let rows: Vec<Vec<f64>> = (0..m).map(|i| a.line(format, i, k, |p| at(of_a, [i, p]))).collect();
    let of_column = |j: usize| -> Result<(), String> {
        let column = w.line(format, j, k, |p| at(of_w, [p, j]));
        for (i, row) in rows.iter().enumerate() {
            let (sum, size) = dot(row, &column);
            let bias = case.bias.map_or(0.0, |axis| bias[if axis == BiasAxis::M { i } else { j }].number());
            let c = if case.beta == 0.0 { 0.0 } else { case.beta * c[i * columns + j].number() };
            let expected = case.activation.apply(case.alpha * sum + bias) + c;
            // No activation is steeper than 1.13.
            let of_sum = 1.13 * case.alpha.abs() * size * (bound + 4.0 * f32::UNIT_ROUNDOFF);
            let of_rest = f32::UNIT_ROUNDOFF * 8.0 * (bias.abs() + c.abs()) + f64::from(f32::MIN_POSITIVE);
            let tolerance = Out::UNIT_ROUNDOFF * expected.abs() * 1.01 + of_sum + of_rest;
            let tolerance = if expected.is_finite() { tolerance } else { 0.0 };
            let got = got[i * columns + j].number();
            let bounds = [expected - tolerance, expected + tolerance].map(|bound| Out::from_f64(bound).number());
            if !agree(got, expected, tolerance) && !bounds.contains(&got) {
                return Err(format!("D[{i},{j}] is {got}, expected {expected} within {tolerance:.2e} of {size:.2e}"));
            }
        }
        Ok(())
    };
    (0..n).into_par_iter().try_for_each(of_column).map_err(wrong)?;
    let written =
        got.iter().enumerate().find(|(at, x)| (at / columns >= m || at % columns >= n) && !x.number().is_nan());
    match written {
        Some((at, x)) => Err(wrong(format!("wrote {} outside of D, at element {at}", x.number()))),
        None => Ok(()),
    }
}

/// D, and what lies behind it.
fn launch<Out: Element>(
    gpu: &Gpu,
    plan: &candle_tilegemm::dispatch::Planned,
    queue: launch::Queue,
    [a, w]: [&Bytes; 2],
    bias: &Vec<Out>,
    c: &Vec<Out>,
) -> Result<Vec<Out>, String> {
    let text = |e: candle::Error| e.to_string();
    let upload = |bytes: &[u8]| gpu.device.clone_htod(&[bytes, &[0xff; GUARD]].concat()).map_err(text);
    let factors = |list: &[f32]| gpu.device.clone_htod(&[list, &[f32::NAN; GUARD]].concat()).map_err(text);
    let (codes_a, codes_w) = (upload(&a.codes)?, upload(&w.codes)?);
    let (factors_a, factors_w) = (factors(&a.factors)?, factors(&w.factors)?);
    let (bias, in_c) = (gpu.device.clone_htod(bias).map_err(text)?, gpu.device.clone_htod(c).map_err(text)?);
    let d: CudaSlice<Out> = gpu.device.clone_htod(&vec![Out::from_f64(f64::NAN); c.len() + GUARD]).map_err(text)?;
    let stream = gpu.device.cuda_stream();
    let at = |slice: &CudaSlice<Out>| slice.device_ptr(&stream).0;
    let bytes = |slice: &CudaSlice<u8>| slice.device_ptr(&stream).0;
    let floats = |slice: &CudaSlice<f32>| slice.device_ptr(&stream).0;
    let pointers = Pointers::new(bytes(&codes_a) as _, bytes(&codes_w) as _, at(&d) as _);
    let pointers = pointers.with_c(at(&in_c) as _).with_bias(at(&bias) as _);
    let pointers = pointers.with_scale_of_a(floats(&factors_a) as _);
    let pointers = pointers.with_scale_of_b(floats(&factors_w) as _, std::ptr::null());
    // SAFETY: the buffers hold what the problem spans, and live until the copy below has waited for the stream.
    unsafe { launch::launch(plan, pointers, queue) }.map_err(|e| e.to_string())?;
    gpu.device.clone_dtoh(&d).map_err(text)
}

#[cfg(feature = "layers")]
mod quantiser;
