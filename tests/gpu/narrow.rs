//! Products with narrow weights, against sums in f64 of the numbers that the host reads: by every kernel for one B that takes such weights, and on
//! copies of the weights in 16 bits.

use crate::bad_rows::{compare, spoil, Bad};
use crate::codes::{self, Kind as Codes, Weights};
use crate::device::{by_types, Choice, Element, Gpu};
use crate::numbers::{Kind, Numbers};
use crate::oracle::{agree, dot, wide, GUARD};
use crate::shard::side_by_side;
use crate::{built, Test};
use candle::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candle_tilegemm::dispatch::Policy;
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::launch::{self, Pointers};
use candle_tilegemm::problem::{power_of_two_in, BiasAxis, Epilogue, Operand, Scale, Types};
use candle_tilegemm::{Activation, Format, Problem};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rayon::prelude::*;

pub fn tests() -> Vec<(String, Test)> {
    // groups.rs has the kernels for groups of rows.
    let is_narrow = |kernel: &&KernelDesc| kernel.types.has_narrow_b();
    let kernels = || built().filter(is_narrow).filter(|kernel| !kernel.needs_groups() && !kernel.needs_gates());
    let beside = |kernel: &'static KernelDesc| -> (String, Test) {
        let test: Test = Box::new(move |gpu| by_types!(kernel.types, beside_a_bad_row(gpu, kernel)));
        (format!("{kernel}_narrow_beside_a_bad_row"), test)
    };
    let beside: Vec<(String, Test)> = kernels().map(beside).collect();
    let ways = kernels().map(|kernel| (Way::Kernel(kernel), kernel.types, format!("{kernel}_narrow")));
    let wide = |types: &Types| types.b == Format::U4;
    let mut of_a: Vec<Types> = built().filter(is_narrow).map(|kernel| kernel.types).filter(wide).collect();
    of_a.sort_by_key(|types| (types.a, types.d));
    of_a.dedup();
    let formats = || Format::ALL.into_iter().filter(|format| format.is_narrow());
    let copies = of_a.into_iter().flat_map(|types| formats().map(move |b| types.with_b(b)));
    let copies = copies.map(|types| {
        let name = format!("copies_{}_{}_{}_narrow", types.a, types.b, types.d);
        (Way::Copies, types, name)
    });
    let test = |(way, types, name): (Way, Types, String)| -> (String, Test) {
        (name, Box::new(move |gpu| by_types!(types, every_case(gpu, way, types.b))))
    };
    ways.chain(copies).map(test).chain(beside).collect()
}

/// How products run.
#[derive(Clone, Copy)]
enum Way {
    Kernel(&'static KernelDesc),
    /// On a copy of the weights, by our kernels.
    Copies,
    /// By the choice of the dispatcher.
    Chosen(Policy),
}

impl Way {
    /// Whether a kernel may round weights times their factors to A's 16 bits.
    fn folds(self) -> bool {
        match self {
            Way::Kernel(kernel) => {
                let [rows, _, unit] = kernel.tile;
                let by_group = rows == 256 && unit == 128 || unit == 32 && kernel.types.b == Format::U4;
                kernel.family == "sm90_narrow_gemm" && by_group
            }
            Way::Copies => false,
            Way::Chosen(_) => true,
        }
    }
}

/// What is varied beside the sizes and the factors.
#[derive(Debug, Clone, Copy)]
struct Case {
    codes: Codes,
    /// Bytes before the first code, elements between rows of A, and blocks between rows of W.
    offset: usize,
    padding: usize,
    gap: usize,
    bias: bool,
    activation: Activation,
    beta: f64,
    gates_c: bool,
    /// An infinity and a NaN in A.
    non_finite: bool,
    /// One number of each row of A, at another k for each: D has numbers of W.
    one_hot: bool,
}

const PLAIN: Case = Case {
    codes: Codes::Usual,
    offset: 0,
    padding: 0,
    gap: 0,
    bias: false,
    activation: Activation::Identity,
    beta: 0.0,
    gates_c: false,
    non_finite: false,
    one_hot: false,
};
const CASES: [Case; 9] = [
    PLAIN,
    Case { codes: Codes::Any, ..PLAIN },
    Case { codes: Codes::Any, one_hot: true, ..PLAIN },
    Case { padding: 8, gap: 1, bias: true, activation: Activation::Silu, ..PLAIN },
    Case { beta: 0.5, bias: true, ..PLAIN },
    Case { non_finite: true, ..PLAIN },
    Case { one_hot: true, padding: 3, ..PLAIN },
    Case { offset: 4, padding: 1, ..PLAIN },
    Case { beta: 0.5, bias: true, activation: Activation::Silu, gates_c: true, ..PLAIN },
];
const ROWS: [usize; 13] = [1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 65, 100, 130];
const COLUMNS: [usize; 5] = [1, 8, 24, 129, 320];
/// Whole groups and blocks, and none.
const DEPTHS: [usize; 7] = [512, 128, 100, 32, 2880, 1030, 17];

fn every_case<T: Element, Out: Element>(gpu: &Gpu, way: Way, b: Format) -> Result<(), String> {
    let mut products: Vec<([usize; 3], usize, Case)> = Vec::new();
    for (at, m) in ROWS.into_iter().enumerate() {
        for (columns, n) in COLUMNS.into_iter().enumerate() {
            let (k, scale) = (DEPTHS[(at + columns) % 7], 5 * at + columns);
            products.push(([m, n, k], scale, PLAIN));
            products.push(([m, n, DEPTHS[(at + 3 * columns) % 7]], scale + 1, CASES[(at + 2 * columns) % 9]));
        }
    }
    // A deep K, and many columns; the longest first.
    let deep = [
        ([1, 40, 14336], 1, PLAIN),
        ([5, 40, 8192], 3, CASES[3]),
        ([8, 40, 8192], 2, CASES[5]),
        ([1, 2250, 4096], 2, CASES[1]),
        ([2, 2112, 4064], 1, CASES[4]),
        ([16, 1100, 2880], 3, CASES[1]),
        ([3, 40, 14336], 4, CASES[8]),
        ([50, 300, 4096], 5, CASES[5]),
        ([161, 129, 1024], 1, CASES[3]),
        ([258, 136, 768], 2, CASES[5]),
        ([300, 264, 2048], 3, PLAIN),
    ];
    products.splice(0..0, deep);
    let try_product = |&(sizes, scale, case): &([usize; 3], usize, Case)| {
        let scales = codes::scales(b, [sizes[1], sizes[2]]);
        run::<T, Out>(gpu, way, b, sizes, scales[scale % scales.len()], case).map(usize::from)
    };
    match side_by_side(&products, try_product)?.into_iter().sum::<usize>() {
        tried @ 0..10 => Err(format!("only {tried} products to try")),
        _ => Ok(()),
    }
}

/// A random product by the choice of the dispatcher.
pub fn random<T: Element, Out: Element>(gpu: &Gpu, policy: Policy, rng: &mut StdRng) -> Result<(), String> {
    if !built().any(|kernel| kernel.types.has_narrow_b()) {
        return Ok(());
    }
    let formats: Vec<Format> = Format::ALL.into_iter().filter(|format| format.is_narrow()).collect();
    let b = *formats.choose(rng).unwrap_or(&Format::U4);
    let rows = [8, 64, 200][rng.random_range(0..3)];
    let sizes = [rng.random_range(1..=rows), rng.random_range(1..=300), rng.random_range(1..=2048)];
    let scale = *codes::scales(b, [sizes[1], sizes[2]]).choose(rng).unwrap_or(&None);
    let case = Case {
        offset: [0, 0, 1, 4, 8, 16][rng.random_range(0..6)],
        padding: [0, 0, 1, 8][rng.random_range(0..4)],
        gap: rng.random_range(0..2),
        bias: rng.random(),
        activation: Activation::ALL[rng.random_range(0..Activation::ALL.len())],
        beta: if rng.random() { 0.5 } else { 0.0 },
        gates_c: rng.random(),
        ..CASES[rng.random_range(0..CASES.len())]
    };
    run::<T, Out>(gpu, Way::Chosen(policy), b, sizes, scale, case).map(drop)
}

/// One kernel over a few cases, for compute-sanitizer.
pub fn few(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    by_types!(kernel.types, some(gpu, kernel))
}

fn some<T: Element, Out: Element>(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    let mut tried = 0;
    for (at, (m, case)) in [(1, CASES[3]), (7, CASES[1]), (40, CASES[4]), (270, CASES[3])].into_iter().enumerate() {
        for k in [256, 100] {
            let scales = codes::scales(kernel.types.b, [72, k]);
            // The first factors that the kernel takes.
            for scale in scales.iter().cycle().skip(2 * at + 1).take(scales.len()) {
                if run::<T, Out>(gpu, Way::Kernel(kernel), kernel.types.b, [m, 72, k], *scale, case)? {
                    tried += 1;
                    break;
                }
            }
        }
    }
    if tried == 0 {
        return Err("no product to try".into());
    }
    Ok(())
}

/// One bad row of A changes no bit of the others, in every configuration.
fn beside_a_bad_row<T: Element, Out: Element>(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    let (n, k, b) = (72, 512, kernel.types.b);
    let mut tried = 0;
    for (turn, m) in [2, 7, 17, 64, 130, 300].into_iter().enumerate() {
        let scales = codes::scales(b, [n, k]);
        let problems = scales.iter().cycle().skip(2 * turn + 1).take(scales.len());
        let problems = problems.map(|scale| {
            Problem::narrow([m, n, k], T::KERNEL_DTYPE, b, *scale).with(|p| p.d.format = Out::KERNEL_DTYPE)
        });
        let takes = |problem: &Problem| kernel.supports(&problem.canonical().problem, &gpu.info).is_ok();
        // With the first factors that the kernel takes.
        let Some(problem) = problems.into_iter().find(takes) else { continue };
        let mut rng = StdRng::seed_from_u64(m as u64);
        let mut x = Numbers::<T>::new(Kind::Normal, &mut rng).take(m * k);
        let weights = Weights::random(&problem, 1, Codes::Usual, &mut rng);
        let (row, kept, of_d) = (m / 2, x.clone(), vec![Out::from_f64(0.0); m * n]);
        for config in kernel.configurations(&problem.canonical().problem, &gpu.info) {
            let name = if config.is_default() { kernel.name.into() } else { format!("{kernel}@{config}") };
            let run = |x: &Vec<T>| {
                let operands = On { weights: &weights, offset: 0, x, bias: &of_d, c: &of_d };
                operands.launch(gpu, Choice::Named(&name), &problem).map(|(d, _)| d)
            };
            let good = run(&x)?;
            for &bad in Bad::of(T::KERNEL_DTYPE) {
                spoil(&mut x[row * k..][..k], bad);
                compare(&good, &run(&x)?, n, |i| i == row, bad).map_err(|e| format!("{name}, {problem}: {e}"))?;
                x.copy_from_slice(&kept);
            }
            tried += 1;
        }
    }
    if tried == 0 {
        return Err("no product to try".into());
    }
    Ok(())
}

/// The numbers of W that a copy in this format has.
fn rounded(numbers: &[f32], format: Format) -> Vec<f32> {
    let round = |x: &f32| match format {
        Format::F16 => f16::from_f32(*x).to_f32(),
        _ if x.is_finite() => bf16::from_f32(*x).to_f32().clamp(bf16::MIN.to_f32(), bf16::MAX.to_f32()),
        _ => *x,
    };
    numbers.iter().map(round).collect()
}

/// Whether the kernel takes the product; then its D is compared with the sums.
fn run<T: Element, Out: Element>(
    gpu: &Gpu,
    way: Way,
    b: Format,
    [m, n, k]: [usize; 3],
    scale: Option<Scale>,
    case: Case,
) -> Result<bool, String> {
    let mut rng = StdRng::seed_from_u64((m * 1009 + n * 31 + k) as u64);
    let mut problem = Problem::narrow([m, n, k], T::KERNEL_DTYPE, b, scale);
    problem.d.format = Out::KERNEL_DTYPE;
    problem.a.row_stride += case.padding as i64;
    problem.b.col_stride += 32 * case.gap as i64;
    problem.b.pointer_align = power_of_two_in(case.offset as u64);
    let mut epilogue = Epilogue::new(1.0, case.beta);
    (epilogue.bias, epilogue.activation) = (case.bias.then_some(BiasAxis::N), case.activation);
    epilogue.c = (case.beta != 0.0).then(|| Operand::row_major(Out::KERNEL_DTYPE, n, [0, 0]));
    epilogue.gates_c = case.gates_c;
    problem.epilogue = epilogue;
    if matches!(way, Way::Kernel(kernel) if kernel.supports(&problem.canonical().problem, &gpu.info).is_err()) {
        return Ok(false);
    }
    // Dense kernels leave gates of C to a kernel of their own.
    if matches!(way, Way::Copies) && case.gates_c {
        return Ok(false);
    }
    let stride = k + case.padding;
    let mut x = Numbers::<T>::new(Kind::Normal, &mut rng).take(m * stride);
    let mut normals = Numbers::<Out>::new(Kind::Normal, &mut rng);
    let (bias, c) = (normals.take(n), normals.take(m * n));
    if case.one_hot {
        x.fill(T::from_f64(0.0));
        (0..m).for_each(|i| x[i * stride + (7 * i + i / k) % k] = T::from_f64(1.0));
    }
    if case.non_finite {
        x[(m / 2) * stride + k - 1] = T::from_f64(f64::INFINITY);
        x[(m - 1) * stride + k / 2] = T::from_f64(f64::NAN);
    }
    let weights = Weights::random(&problem, 1, case.codes, &mut rng);
    let wrong = |e: String| format!("{problem} {case:?}: {e}");
    let operands = On { weights: &weights, offset: case.offset, x: &x, bias: &bias, c: &c };
    let launch = |choice: Choice| operands.launch(gpu, choice, &problem).map_err(wrong);
    let (got, copied) = match way {
        Way::Kernel(kernel) => launch(Choice::Named(kernel.name))?,
        Way::Copies => launch(Choice::By(Policy::own().with_copies()))?,
        Way::Chosen(policy) => launch(Choice::By(policy))?,
    };
    if matches!(way, Way::Copies) && !copied {
        return Err(wrong("runs without a copy of B".into()));
    }
    let is_reference = matches!(way, Way::Kernel(kernel) if kernel.role == Role::LastResort);
    let is_f32 = T::KERNEL_DTYPE == Format::F32;
    let of_a = T::KERNEL_DTYPE.in_products_with(b);
    let numbers = weights.numbers(&problem, 0);
    let numbers = wide(&if copied { rounded(&numbers, of_a) } else { numbers });
    // f32 sums, on tensor cores cut off; activations of f32 and weights of a kernel may be rounded to 16 bits.
    let of_sums = f32::UNIT_ROUNDOFF * (k as f64 + 8.0) * if is_reference { 1.0 } else { 2.0 };
    // Weights times their factors in bf16 are off by up to 2^-8, as those of a copy are.
    let folds = T::KERNEL_DTYPE == Format::BF16 && !copied && way.folds();
    let rounds = if is_reference { 0 } else { usize::from(is_f32) + usize::from(!copied) + usize::from(folds) };
    let of_sum = of_sums + rounds as f64 * 1.01 / 256.0;
    let activations: Vec<f64> = x.iter().map(|x| x.number()).collect();
    // An element of D for this sum, and how far a result may be off.
    let element = |place: usize, (sum, size): (f64, f64)| {
        let bias = if case.bias { bias[place % n].number() } else { 0.0 };
        let c = if case.beta == 0.0 { 0.0 } else { case.beta * c[place].number() };
        let activated = case.activation.apply(sum + bias);
        let gates_c = case.gates_c && case.beta != 0.0;
        let expected = if gates_c { activated * c } else { activated + c };
        let of_gate = of_sum * size + f32::UNIT_ROUNDOFF * 8.0 * bias.abs() + f64::from(f32::MIN_POSITIVE);
        let around = match gates_c {
            true => of_gate * c.abs() + f32::UNIT_ROUNDOFF * 8.0 * expected.abs(),
            false => of_gate + f32::UNIT_ROUNDOFF * 8.0 * c.abs(),
        };
        let tolerance = if expected.is_finite() { Out::UNIT_ROUNDOFF * expected.abs() * 1.01 + around } else { 0.0 };
        (expected, tolerance)
    };
    let row = |i: usize| &activations[i * stride..][..k];
    let fits = |got: f64, (expected, tolerance): (f64, f64)| {
        // A sum beyond the largest number of the type is an infinity.
        let bounds = [expected - tolerance, expected + tolerance].map(|bound| Out::from_f64(bound).number());
        agree(got, expected, tolerance) || bounds.contains(&got)
    };
    let check = |place: usize, got: f64| -> Result<(), String> {
        let (i, j) = (place / n, place % n);
        let (sum, size) = dot(row(i), &numbers[j * k..][..k]);
        let expected = element(place, (sum, size));
        if fits(got, expected) {
            return Ok(());
        }
        // Parts of such sums may be beyond the largest number, and a kernel may multiply sums by a factor where a number of W would be.
        let exact = dot(row(i), &weights.exact_row(&problem, 0, j));
        let is_huge = exact.1.is_finite() && exact.1 > 2f64.powi(126);
        if !is_reference && !copied && (fits(got, element(place, exact)) || (is_huge && !got.is_finite())) {
            return Ok(());
        }
        if is_huge && !got.is_finite() {
            return Ok(());
        }
        Err(format!("D[{i},{j}] is {got}, expected {} within {:.2e}", expected.0, expected.1))
    };
    let check_all = |got: &[Out]| {
        let (d, guard) = got.split_at(m * n);
        if let Some(written) = guard.iter().find(|x| !x.number().is_nan()) {
            return Err(format!("wrote {} behind D", written.number()));
        }
        d.par_iter().enumerate().try_for_each(|(place, got)| check(place, got.number()))
    };
    check_all(&got).map_err(wrong)?;
    if let Way::Kernel(kernel) = way {
        // The configurations that the family does not choose, too.
        let configs = kernel.configurations(&problem.canonical().problem, &gpu.info);
        for config in configs.iter().filter(|_| configs.len() > 1) {
            let (got, _) = launch(Choice::Named(&format!("{kernel}@{config}")))?;
            check_all(&got).map_err(|error| wrong(format!("{config}: {error}")))?;
        }
    }
    Ok(true)
}

/// Operands on the host.
struct On<'a, T, Out> {
    weights: &'a Weights,
    /// Bytes before the first code.
    offset: usize,
    x: &'a Vec<T>,
    bias: &'a Vec<Out>,
    c: &'a Vec<Out>,
}

impl<T: Element, Out: Element> On<'_, T, Out> {
    /// D and the guard behind D, and whether the product ran on a copy of B.
    fn launch(&self, gpu: &Gpu, choice: Choice, problem: &Problem) -> Result<(Vec<Out>, bool), String> {
        let text = |e: candle::Error| e.to_string();
        let (plan, queue) = gpu.plan(choice, problem)?;
        let _alone = gpu.alone(&plan);
        // Bytes around them that would be NaN as codes and as factors.
        let upload = |offset: usize, bytes: &[u8]| {
            let memory = [&vec![0xff; offset][..], bytes, &[0xff; GUARD]].concat();
            gpu.device.clone_htod(&memory).map_err(text)
        };
        let Weights { codes, factors, zeros } = self.weights;
        let (codes, factors, zeros) = (upload(self.offset, codes)?, upload(0, factors)?, upload(0, zeros)?);
        let x = gpu.device.clone_htod(self.x).map_err(text)?;
        let [bias, c] = [self.bias, self.c].map(|values| gpu.device.clone_htod(values));
        let (bias, c) = (bias.map_err(text)?, c.map_err(text)?);
        let d = vec![Out::from_f64(f64::NAN); problem.m * problem.n + GUARD];
        let d: CudaSlice<Out> = gpu.device.clone_htod(&d).map_err(text)?;
        let stream = gpu.device.cuda_stream();
        let bytes = |slice: &CudaSlice<u8>, offset: usize| slice.device_ptr(&stream).0 + offset as u64;
        let at = |slice: &CudaSlice<Out>| slice.device_ptr(&stream).0;
        let pointers = Pointers::new(x.device_ptr(&stream).0 as _, bytes(&codes, self.offset) as _, at(&d) as _);
        let pointers = pointers.with_c(at(&c) as _).with_bias(at(&bias) as _);
        let pointers = pointers.with_scale_of_b(bytes(&factors, 0) as _, bytes(&zeros, 0) as _);
        // SAFETY: the buffers hold what the problem spans, and live until the copy below has waited for the stream.
        unsafe { launch::launch(&plan, pointers, queue) }.map_err(|e| e.to_string())?;
        Ok((gpu.device.clone_dtoh(&d).map_err(text)?, plan.packing.is_some_and(|packing| packing.b)))
    }
}
