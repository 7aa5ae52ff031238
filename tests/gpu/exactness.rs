//! How exact the kernels are that multiply f32 by parts: errors against f64 beside those of cuBLAS's SGEMM, what is not finite,
//! and what is exact.

use crate::cases::{self, Variant};
use crate::data::{Kind, SIZE};
use crate::device::{Choice, Gpu, Operands};
use crate::oracle::{dot, wide};
use crate::shard::side_by_side;
use crate::Test;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::{KernelDesc, Math, Rejection, Role};
use candle_tilegemm::problem::Operand;
use candle_tilegemm::{Format, Layout, Problem};
use rand::rngs::StdRng;
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

pub fn tests() -> Vec<(String, Test)> {
    let mut tests: Vec<(String, Test)> = Vec::new();
    // One test, so that one process computes the cases.
    tests.push(("f32_is_as_exact_as_sgemm".into(), Box::new(f32_is_as_exact_as_sgemm)));
    for kernel in crate::built().filter(|kernel| kernel.math == Math::Bf16x6) {
        tests.push((format!("{kernel}_special_values"), Box::new(move |gpu| special_values(gpu, kernel))));
        tests.push((format!("{kernel}_keeps_what_is_exact"), Box::new(move |gpu| keeps_what_is_exact(gpu, kernel))));
    }
    tests
}

/// Around the places where the way to add up changes, and what models have.
const DEPTHS: [usize; 11] = [64, 96, 100, 124, 128, 256, 512, 2044, 2048, 2052, 8192];
/// Those that are tried with few rows, too.
const DEPTHS_OF_FEW: [usize; 5] = [64, 100, 128, 512, 2052];

/// Numbers of few rows, beside `SIZE`, for kernels that split operands on their way: these kernels have tiles for few rows.
fn few_rows(kernel: &KernelDesc) -> &'static [usize] {
    match kernel.workspace(&dense(kernel, SIZE, SIZE, 512)).least {
        0 => &[16, 32, 64],
        _ => &[],
    }
}

/// Whether the kernel takes sums of this length. Every list of lengths here ends with some that every kernel takes.
fn takes(gpu: &Gpu, kernel: &KernelDesc, k: usize) -> bool {
    let problem = dense(kernel, SIZE, SIZE, k).canonical().problem;
    !matches!(kernel.supports(&problem, &gpu.info), Err(Rejection::ShortSums { .. }))
}

/// `SIZE` rows (or columns, for side 1) of `k` numbers.
fn vectors(kind: Kind, side: u64, k: usize) -> Vec<f32> {
    (0..SIZE).into_par_iter().flat_map_iter(|index| kind.vector(side, k, index)).collect()
}

/// Numbers, and what their products are.
struct Case {
    kind: Kind,
    k: usize,
    a: Vec<f32>,
    b: Vec<f32>,
    /// A @ B and |A| @ |B| in f64.
    exact: Vec<(f64, f64)>,
}

impl Case {
    fn new(kind: Kind, k: usize) -> Self {
        let (a, b) = (vectors(kind, 0, k), vectors(kind, 1, k));
        let (wide_a, wide_b) = (wide(&a), wide(&b));
        let exact = wide_a.par_chunks(k).flat_map_iter(|a| wide_b.chunks(k).map(move |b| dot(a, b))).collect();
        Self { kind, k, a, b, exact }
    }

    /// The largest error over |A| @ |B|, and the root of the mean square, of the first rows, which `d` has.
    fn errors(&self, d: &[f32]) -> [f64; 2] {
        self.kind.errors(d, self.exact.iter().copied())
    }
}

/// Every kind at every depth.
fn all_cases() -> Vec<Case> {
    Kind::OF_F32.into_iter().flat_map(|kind| DEPTHS.map(|k| Case::new(kind, k))).collect()
}

/// The product of rows of A and columns of B, both given K by K, as `kernel` computes it in its layout.
fn product(gpu: &Gpu, name: &str, problem: &Problem, a: &[f32], b: &[f32]) -> Result<Vec<f32>, String> {
    gpu.run(name, problem, &operands(problem, a, b))
}

fn operands(problem: &Problem, a: &[f32], b: &[f32]) -> Operands<f32> {
    let lay_out = |values: &[f32], line_stride: i64, k_stride: i64| {
        let mut out = vec![f32::NAN; values.len()];
        for (line, values) in values.chunks(problem.k).enumerate() {
            for (p, &value) in values.iter().enumerate() {
                out[(line as i64 * line_stride + p as i64 * k_stride) as usize] = value;
            }
        }
        out
    };
    Operands {
        a: lay_out(a, problem.a.row_stride, problem.a.col_stride),
        b: lay_out(b, problem.b.col_stride, problem.b.row_stride),
        c: vec![f32::NAN],
        bias: vec![f32::NAN],
        d: vec![f32::NAN; problem.m * problem.n],
        offsets: [0; 4],
    }
}

fn dense(kernel: &KernelDesc, m: usize, n: usize, k: usize) -> Problem {
    cases::problem(m, n, k, kernel.layout, Format::F32, Variant::PLAIN)
}

/// The name of cuBLAS's SGEMM.
fn sgemm(layout: Layout) -> &'static str {
    let is_sgemm = |k: &&KernelDesc| k.role == Role::Vendor && k.types.a == Format::F32 && k.layout == layout;
    KERNELS.iter().find(is_sgemm).map_or("none", |kernel| kernel.name)
}

fn f32_is_as_exact_as_sgemm(gpu: &Gpu) -> Result<(), String> {
    let kernels: Vec<_> = crate::built().filter(|kernel| kernel.math == Math::Bf16x6).collect();
    let cases = all_cases();
    let one = |kernel: &&KernelDesc| is_as_exact(gpu, kernel, &cases).map_err(|error| format!("{kernel}: {error}"));
    side_by_side(&kernels, one)?;
    unaligned_is_as_exact(gpu, &cases).map_err(|error| format!("unaligned: {error}"))
}

/// Root mean square at most SGEMM's; the maximum, which is a matter of luck, at most a fifth above it. Of few rows the former is
/// a matter of luck, too, and the latter more so: SGEMM's own, of 16 rows and K = 64, is 1.7e-7 here and 2.6e-7 of other numbers.
fn is_as_exact(gpu: &Gpu, kernel: &KernelDesc, cases: &[Case]) -> Result<(), String> {
    let sgemm = sgemm(kernel.layout);
    let mut worse = Vec::new();
    for case in cases.iter().filter(|case| takes(gpu, kernel, case.k)) {
        let Case { kind, k, ref a, ref b, .. } = *case;
        let few = if DEPTHS_OF_FEW.contains(&k) { few_rows(kernel) } else { &[] };
        for &rows in [SIZE].iter().chain(few) {
            let problem = dense(kernel, rows, SIZE, k);
            let errors = |name: &str| Ok::<_, String>(case.errors(&product(gpu, name, &problem, &a[..rows * k], b)?));
            let ([most, rms], [sgemm_most, sgemm_rms]) = (errors(kernel.name)?, errors(sgemm)?);
            let [luck, most_luck] = if rows < SIZE { [1.02, 1.5] } else { [1.0, 1.2] };
            if most > most_luck * sgemm_most || rms > luck * sgemm_rms {
                let errors = format!("{most:.2e}/{rms:.2e}, SGEMM {sgemm_most:.2e}/{sgemm_rms:.2e}");
                worse.push(format!("{kind}, {rows} rows, K {k}: {errors}"));
            }
        }
    }
    if worse.is_empty() {
        Ok(())
    } else {
        Err(format!("largest error and root mean square over |A| @ |B|: {}", worse.join("; ")))
    }
}

/// What the mode `accurate` takes where operands are not aligned and cuBLAS is off, beside SGEMM of the same numbers.
fn unaligned_is_as_exact(gpu: &Gpu, cases: &[Case]) -> Result<(), String> {
    let dispatcher = Dispatcher::new(gpu.info.clone()).without_tuning();
    let mut worse = Vec::new();
    for case in cases.iter().filter(|case| [100, 128, 512, 2044, 8192].contains(&case.k)) {
        for (rows, layout) in [3, 33, 129, SIZE].into_iter().flat_map(|rows| [(rows, Layout::NT), (rows, Layout::NN)]) {
            let aligned = cases::problem(rows, SIZE, case.k, layout, Format::F32, Variant::PLAIN);
            let by_one = |operand: Operand| operand.with(|o| o.pointer_align = 4);
            let problem = aligned.with(|p| {
                p.a = by_one(aligned.a);
                p.b = by_one(aligned.b);
            });
            let mut operands = operands(&problem, &case.a[..rows * case.k], &case.b);
            operands.a.insert(0, f32::NAN);
            operands.b.insert(0, f32::NAN);
            operands.offsets = [1, 1, 0, 0];
            let errors = |choice: Choice| Ok::<_, String>(case.errors(&gpu.run(choice, &problem, &operands)?));
            let plan = dispatcher.plan(&problem, Policy::own()).map_err(|e| e.to_string())?;
            let (kernel, on_copies) = (plan.kernel, plan.packing.is_some());
            let [most, rms] = errors(if on_copies { Policy::own().with_copies().into() } else { kernel.name.into() })?;
            let [sgemm_most, sgemm_rms] = errors(sgemm(layout).into())?;
            // The root mean square of few results whose size varies by 1e30 is a matter of luck.
            let luck = if rows < 16 { 1.1 } else { 1.02 };
            if most > 1.5 * sgemm_most || rms > luck * sgemm_rms {
                let errors = format!("{most:.2e}/{rms:.2e}, SGEMM {sgemm_most:.2e}/{sgemm_rms:.2e}");
                worse.push(format!("{}, {problem}, {kernel}: {errors}", case.kind));
            }
        }
    }
    if worse.is_empty() {
        Ok(())
    } else {
        Err(format!("largest error and root mean square over |A| @ |B|: {}", worse.join("; ")))
    }
}

/// What a kernel writes into the workspace of its stream, it finds there in a graph, too. Each test has a stream of its own, and
/// those of the first eight have a workspace of their own.
pub fn workspaces_in_graphs(gpu: &Gpu) -> Result<(), String> {
    for kernel in crate::built().filter(|kernel| matches!(kernel.math, Math::Tf32 | Math::Bf16x6)) {
        let f32_mode = cases::f32_mode(kernel);
        let problem = dense(kernel, 300, 264, 296).with(|p| p.f32_mode = f32_mode);
        let mut rng = StdRng::seed_from_u64(3);
        let mut normal = |count: usize| (0..count).map(|_| StandardNormal.sample(&mut rng)).collect::<Vec<f32>>();
        let operands = operands(&problem, &normal(300 * 296), &normal(264 * 296));
        let expected = gpu.run(kernel.name, &problem, &operands)?;
        let got = gpu.run_captured(kernel.name, &problem, &operands)?;
        if let Some(i) = got.iter().zip(&expected).position(|(got, expected)| got.to_bits() != expected.to_bits()) {
            return Err(format!("{kernel}: element {i} of D is {}, {} without a graph", got[i], expected[i]));
        }
    }
    Ok(())
}

/// Infinities, NaN, zeros times infinity and numbers that round to infinity in bf16, alone in a row and not.
fn special_values(gpu: &Gpu, kernel: &KernelDesc) -> Result<(), String> {
    const MOST: f32 = f32::MAX;
    // Few rows are the first of all; few rows beside the columns make another product, too.
    let few = few_rows(kernel).iter().copied().map(|rows| (rows, 264));
    let lengths = [64, 100, 160, 520, 2052].into_iter().filter(|k| takes(gpu, kernel, *k));
    for (rows, n, k) in
        few.chain([(384, 264), (384, 1600)]).flat_map(|(rows, n)| lengths.clone().map(move |k| (rows, n, k)))
    {
        let m = 384;
        let problem = dense(kernel, rows, n, k);
        let mut rng = StdRng::seed_from_u64(5);
        let mut normal = |count: usize| (0..count).map(|_| StandardNormal.sample(&mut rng)).collect::<Vec<f32>>();
        let (mut a, mut b) = (normal(m * k), normal(n * k));
        let inf = f32::INFINITY;
        let in_a = [(3, 5, inf), (4, 5, inf), (4, 6, -inf), (10, 7, f32::NAN), (133, 60, inf), (134, 60, 1e-45)];
        let in_b = [(20, 9, -inf), (30, 5, 0.0), (31, 5, -0.0), (40, 5, 1.0), (41, 5, 1e-30), (50, 11, f32::NAN)];
        in_a.into_iter().for_each(|(row, p, x)| a[row * k + p] = x);
        in_b.into_iter().for_each(|(column, p, x)| b[column * k + p] = x);
        b[200 * k..202 * k].fill(0.0);
        // Rows with one number.
        for (i, x) in [MOST, -MOST, 3.39e38, 3.3895e38, 1e38, 3.4e38].into_iter().enumerate() {
            a[(60 + i) * k..(61 + i) * k].fill(0.0);
            a[(60 + i) * k + 33 + i] = x;
        }
        for column in (0..100).filter(|column| ![20, 50].contains(column)) {
            b[column * k + 33..column * k + 39].copy_from_slice(&[0.5, 1.0, 1.0, 0.25, 4.0, 1.0]);
        }
        // Rows whose parts of sums stay finite.
        for p in 0..k {
            a[70 * k + p] = if p % 2 == 0 { -3e35 } else { 3e35 };
        }
        a[71 * k..72 * k].fill(0.0);
        let d = product(gpu, kernel.name, &problem, &a[..rows * k], &b)?;
        let (a, b) = (wide(&a), wide(&b));
        for (index, &got) in d.iter().enumerate() {
            let (row, column) = (index / n, index % n);
            let (exact, size) = dot(&a[row * k..(row + 1) * k], &b[column * k..(column + 1) * k]);
            let expected = exact as f32;
            // As near to the largest number as that it depends on the last bit.
            let over = exact.abs() / f64::from(MOST);
            let either = (0.999..1.001).contains(&over) && over != 1.0;
            let is_right = if exact.is_nan() {
                got.is_nan()
            } else if expected.is_infinite() {
                got == expected || either
            } else {
                (f64::from(got) - exact).abs() <= 2e-6 * size + 1e-42 || either
            };
            if !is_right {
                return Err(format!("{problem}: D[{row}, {column}] is {got}, expected {exact}"));
            }
        }
    }
    Ok(())
}

/// A times a permutation gives the numbers of A, bit by bit; small whole numbers give whole numbers (cases.rs has these, too).
fn keeps_what_is_exact(gpu: &Gpu, kernel: &KernelDesc) -> Result<(), String> {
    let rows = few_rows(kernel).iter().copied().chain([200]);
    let lengths = [64, 128, 300, 1024].into_iter().filter(|k| takes(gpu, kernel, *k));
    for (rows, k) in rows.flat_map(|rows| lengths.clone().map(move |k| (rows, k))) {
        let problem = dense(kernel, rows, k, k);
        let mut rng = StdRng::seed_from_u64(9);
        let any = |_| StandardNormal.sample(&mut rng);
        let a: Vec<f32> = (0..rows * k).map(any).map(|x: f32| x * 1e-20).collect();
        let column_of = |p: usize| (p * 7 + 3) % k; // 7 divides no K of these
        let mut b = vec![0.0; k * k];
        (0..k).for_each(|p| b[column_of(p) * k + p] = 1.0);
        let d = product(gpu, kernel.name, &problem, &a, &b)?;
        for row in 0..rows {
            for p in 0..k {
                let (got, expected) = (d[row * k + column_of(p)], a[row * k + p]);
                if got.to_bits() != expected.to_bits() {
                    return Err(format!("{problem}: {expected:e} in row {row} became {got:e}"));
                }
            }
        }
    }
    Ok(())
}
