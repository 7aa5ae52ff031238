//! One bad row of A beside good ones: the others keep their bits and nearly their time, and the row itself has what IEEE 754 says. `groups/bad_rows.rs`,
//! `narrow.rs` and `fp8.rs` have the same for their kernels.

use crate::device::{by_types, Element, Gpu, Operands};
use crate::gguf::{self, Weights};
use crate::numbers::normal;
use crate::{built, cases, gated as gates, groups, plain, Test};
use candle::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candle_tilegemm::kernel::KernelDesc;
use candle_tilegemm::launch::{self, Pointers};
use candle_tilegemm::{Config, Format, Layout, Problem};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::SeedableRng;
use std::time::{Duration, Instant};

pub fn tests() -> Vec<(String, Test)> {
    let mut tests: Vec<(String, Test)> =
        vec![("bad_rows_of_dense_kernels".into(), Box::new(dense)), ("bad_rows_of_blocks".into(), Box::new(blocks))];
    tests.push(("bad_rows_of_gated_kernels".into(), Box::new(gated)));
    for format in Format::ALL.into_iter().filter(|format| format.is_gguf_block()) {
        tests.push((format!("spikes_{format}"), Box::new(move |gpu| spikes(gpu, format))));
        tests.push((format!("spikes_of_experts_{format}"), Box::new(move |gpu| groups::spikes(gpu, format))));
    }
    tests
}

/// What measures time.
pub fn timed() -> Vec<(String, Test)> {
    vec![("bad_rows_of_blocks_cost_little".into(), Box::new(cost))]
}

/// Rows to 300, around the edges of tiles.
const ROWS: [usize; 24] =
    [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 128, 129, 160, 161, 193, 257, 300];

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bad {
    Nan,
    Infinities,
    OneInfinity,
    /// Finite numbers, whose sums are beyond the largest number of the type.
    Overflow,
    /// Numbers beyond f16, whose sums are within f32. In f16: large numbers.
    Huge,
}

const ALL: [Bad; 5] = [Bad::Nan, Bad::Infinities, Bad::OneInfinity, Bad::Overflow, Bad::Huge];

impl Bad {
    /// The kinds that a type has: fp8 has no infinity, and its sums do not overflow.
    pub fn of(format: Format) -> &'static [Bad] {
        if format == Format::F8E4M3 {
            &[Bad::Nan, Bad::Huge]
        } else {
            &ALL
        }
    }

    /// Whether no number of a bad row is finite.
    fn spreads(self) -> bool {
        !matches!(self, Bad::Overflow | Bad::Huge)
    }
}

pub fn spoil<T: Element>(row: &mut [T], bad: Bad) {
    let infinity = T::from_f64(f64::INFINITY);
    let [most, huge] = match T::KERNEL_DTYPE {
        Format::F16 => [6e4, 1e4],
        Format::F8E4M3 => [448.0; 2],
        _ => [3e38, 1e30],
    };
    match bad {
        Bad::Nan => row.fill(T::from_f64(f64::NAN)),
        Bad::Infinities => row.fill(infinity),
        Bad::OneInfinity => row[row.len() / 2] = infinity,
        Bad::Overflow => row.fill(T::from_f64(most)),
        Bad::Huge => row.fill(T::from_f64(huge)),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Whether all rows of `n` numbers but the bad ones have the bits of a product without these, and whether a bad row has a number that no bad row can have.
pub fn compare<Out: Element>(
    good: &[Out],
    got: &[Out],
    n: usize,
    is_bad: impl Fn(usize) -> bool,
    bad: Bad,
) -> Result<(), String> {
    for (at, (good, got)) in good.iter().zip(got).enumerate() {
        let (i, j, good, got) = (at / n, at % n, good.number(), got.number());
        match is_bad(i) {
            false if good.to_bits() != got.to_bits() => {
                return Err(format!("beside {bad:?}, D[{i},{j}] is {got} in place of {good}"));
            }
            true if got.is_finite() && bad.spreads() => {
                return Err(format!("row {i} is {bad:?}, and D[{i},{j}] is {got}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Every kernel for one B of A's type.
fn dense(gpu: &Gpu) -> Result<(), String> {
    let mut tried = 0;
    // fp8 has no infinity.
    for kernel in built().filter(plain).filter(|kernel| kernel.types.a != Format::F8E4M3) {
        tried += by_types!(kernel.types, dense_kernel(gpu, kernel))?;
    }
    if tried < 100 {
        return Err(format!("only {tried} products to try"));
    }
    Ok(())
}

fn dense_kernel<T: Element, Out: Element>(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<usize, String> {
    let mut rng = StdRng::seed_from_u64(21);
    let mut tried = 0;
    let [_, n, k] = cases::sizes_near(gpu, kernel, [8, 96, 256]);
    for m in ROWS {
        let problem = cases::problem(m, n, k, kernel.layout, kernel.types, cases::Variant::PLAIN)
            .with(|p| p.f32_mode = cases::f32_mode(kernel));
        if kernel.supports(&problem.canonical().problem, &gpu.info).is_err() {
            continue;
        }
        let row = m / 2;
        let mut operands = Operands {
            a: normal::<T>(m * k, &mut rng),
            b: normal::<T>(k * n, &mut rng),
            c: Vec::<Out>::new(),
            bias: Vec::new(),
            d: vec![Out::from_f64(f64::NAN); m * n],
            offsets: [0; 4],
        };
        let good = gpu.run(kernel.name, &problem, &operands)?;
        let of_row = |a: &[T]| -> Vec<T> { (0..k).map(|p| a[at(&problem, row, p)]).collect() };
        let kept = of_row(&operands.a);
        for bad in ALL {
            let mut spoilt = kept.clone();
            spoil(&mut spoilt, bad);
            (0..k).for_each(|p| operands.a[at(&problem, row, p)] = spoilt[p]);
            let got = gpu.run(kernel.name, &problem, &operands)?;
            compare(&good, &got, n, |i| i == row, bad).map_err(|e| format!("{kernel}, {problem}: {e}"))?;
            tried += 1;
        }
    }
    Ok(tried)
}

/// The place of A[i, p] among A's numbers.
fn at(problem: &Problem, i: usize, p: usize) -> usize {
    i * problem.a.row_stride as usize + p * problem.a.col_stride as usize
}

/// Every dense kernel of gated products.
fn gated(gpu: &Gpu) -> Result<(), String> {
    for kernel in built().filter(|kernel| kernel.needs_gates()) {
        by_types!(kernel.types, gated_kernel(gpu, kernel)).map_err(|e| format!("{kernel}: {e}"))?;
    }
    Ok(())
}

fn gated_kernel<T: Element, Out: Element>(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    for (turn, m) in [2, 17, 64, 129, 300].into_iter().enumerate() {
        let problem = gates::gated(kernel, [m, 72, 264], turn);
        let mut operands = cases::operands::<T, Out>(&problem, 0, cases::Data::Normal, turn as u64);
        let (row, kept, stride) = (m / 2, operands.a.clone(), problem.a.row_stride as usize);
        for config in kernel.configurations(&problem.canonical().problem, &gpu.info) {
            let name = format!("{kernel}@{config}");
            let good = gpu.run(name.as_str(), &problem, &operands)?;
            for bad in ALL {
                spoil(&mut operands.a[row * stride..][..problem.k], bad);
                let got = gpu.run(name.as_str(), &problem, &operands)?;
                operands.a.copy_from_slice(&kept);
                compare(&good, &got, problem.d.row_stride as usize, |i| i == row, bad)
                    .map_err(|e| format!("{config}, {problem}: {e}"))?;
            }
        }
    }
    Ok(())
}

/// A product with blocks, on the device.
struct Blocks<T> {
    problem: Problem,
    x: Vec<T>,
    w: CudaSlice<u8>,
    numbers: Vec<f32>,
}

impl<T: Element> Blocks<T> {
    fn new(gpu: &Gpu, [a, b]: [Format; 2], [m, n, k]: [usize; 3]) -> Result<Self, String> {
        let mut rng = StdRng::seed_from_u64(22);
        let problem = Problem::dense(m, n, k, 1, Layout::NT, a).with(|p| p.b.format = b);
        let mut bytes = gguf::blocks(b, n * k / b.block().elements, Weights::Bounded, &mut rng)?;
        let numbers = gguf::numbers(b, &bytes, n)?;
        bytes.resize(bytes.len() + 256, 0xff);
        let w = gpu.device.clone_htod(&bytes).map_err(text)?;
        Ok(Self { problem, x: normal(m * k, &mut rng), w, numbers })
    }

    /// D, and with `time` the time of a launch in a graph.
    fn run(&self, gpu: &Gpu, kernel: &str, x: &[T], time: bool) -> Result<(Vec<T>, Duration), String> {
        let (plan, queue) = gpu.plan(kernel, &self.problem)?;
        let x = gpu.device.clone_htod(x).map_err(text)?;
        let d = vec![T::from_f64(f64::NAN); self.problem.m * self.problem.n];
        let d: CudaSlice<T> = gpu.device.clone_htod(&d).map_err(text)?;
        let stream = gpu.device.cuda_stream();
        let pointers = Pointers::new(
            x.device_ptr(&stream).0 as _,
            self.w.device_ptr(&stream).0 as _,
            d.device_ptr(&stream).0 as _,
        );
        // SAFETY: the buffers hold what the problem spans, and live until the copy below has waited for the stream.
        let launch = || unsafe { launch::launch(&plan, pointers, queue) }.map_err(text);
        launch()?;
        let mut took = Duration::MAX;
        if time {
            const LAUNCHES: u32 = 50;
            stream.synchronize().map_err(text)?;
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(text)?;
            let launched = (0..LAUNCHES).try_for_each(|_| launch());
            let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            launched?;
            let graph = graph.map_err(text)?.ok_or("nothing was captured")?;
            for _ in 0..5 {
                stream.synchronize().map_err(text)?;
                let began = Instant::now();
                graph.launch().map_err(text)?;
                stream.synchronize().map_err(text)?;
                took = took.min(began.elapsed() / LAUNCHES);
            }
        }
        Ok((gpu.device.clone_dtoh(&d).map_err(text)?, took))
    }
}

/// The kernels for one B of blocks.
fn of_blocks() -> impl Iterator<Item = &'static KernelDesc> {
    let kernels = built().filter(|kernel| kernel.types.b.is_gguf_block() && !kernel.needs_groups());
    kernels.filter(|kernel| kernel.types.a == kernel.types.d)
}

fn blocks(gpu: &Gpu) -> Result<(), String> {
    for kernel in of_blocks() {
        match kernel.types.a {
            Format::F16 => blocks_of::<f16>(gpu, kernel),
            Format::BF16 => blocks_of::<bf16>(gpu, kernel),
            _ => blocks_of::<f32>(gpu, kernel),
        }?;
    }
    Ok(())
}

/// The kernel in each of its configurations.
fn every_configuration(gpu: &Gpu, kernel: &KernelDesc, problem: &Problem) -> Vec<String> {
    let configurations = kernel.configurations(&problem.canonical().problem, &gpu.info);
    let name = |config: Config| if config.is_default() { kernel.name.into() } else { format!("{kernel}@{config}") };
    configurations.into_iter().map(name).collect()
}

fn blocks_of<T: Element>(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    let (n, k) = (72, 512);
    for m in ROWS.into_iter().step_by(2).chain([2]) {
        let product = Blocks::<T>::new(gpu, [kernel.types.a, kernel.types.b], [m, n, k])?;
        if kernel.supports(&product.problem.canonical().problem, &gpu.info).is_err() {
            continue;
        }
        for name in every_configuration(gpu, kernel, &product.problem) {
            for row in if m == 2 { 0..2 } else { m / 2..m / 2 + 1 } {
                bad_row_of_blocks(gpu, &name, &product, row)
                    .map_err(|e| format!("{name}, {}: {e}", product.problem))?;
            }
        }
    }
    Ok(())
}

fn bad_row_of_blocks<T: Element>(gpu: &Gpu, name: &str, product: &Blocks<T>, row: usize) -> Result<(), String> {
    let (n, k) = (product.problem.n, product.problem.k);
    let (good, _) = product.run(gpu, name, &product.x, false)?;
    for bad in ALL {
        let mut x = product.x.clone();
        spoil(&mut x[row * k..][..k], bad);
        let (got, _) = product.run(gpu, name, &x, false)?;
        compare(&good, &got, n, |i| i == row, bad)?;
        let of_row = &got[row * n..][..n];
        if let Bad::OneInfinity = bad {
            // The sign of the weight at the infinity decides.
            for (j, got) in of_row.iter().enumerate() {
                let expected = f64::from(product.numbers[j * k + k / 2]) * f64::INFINITY;
                let got = got.to_f64();
                if got.to_bits() != expected.to_bits() && !(got.is_nan() && expected.is_nan()) {
                    return Err(format!("D[{row},{j}] of one infinity is {got}, expected {expected}"));
                }
            }
        }
    }
    Ok(())
}

/// What a bad row beside good ones costs at most. Infinities take longest: weights at their places are read one by one. Where sums overflow, the scales of W are
/// read once more; where they do not, nothing is.
fn cost(gpu: &Gpu) -> Result<(), String> {
    let kernels = of_blocks().filter(|kernel| kernel.types.a == Format::F32 && kernel.family != "reference");
    let formats = [Format::Q8_0, Format::Q4_0, Format::Q4K];
    let mut dearest = ALL.map(|bad| (0.0, format!("{bad:?}: nothing")));
    for kernel in kernels.filter(|kernel| formats.contains(&kernel.types.b)) {
        for [m, n, k] in [[63, 96, 1024], [16, 4096, 4096], [300, 96, 1024], [200, 4096, 4096]] {
            let product = Blocks::<f32>::new(gpu, [Format::F32, kernel.types.b], [m, n, k])?;
            if m > 63 && kernel.family == "gguf_gemv" {
                continue;
            }
            let (_, good) = product.run(gpu, kernel.name, &product.x, true)?;
            for (bad, dearest) in ALL.into_iter().zip(&mut dearest) {
                let mut x = product.x.clone();
                spoil(&mut x[m / 2 * k..][..k], bad);
                let (_, took) = product.run(gpu, kernel.name, &x, true)?;
                let share = took.as_secs_f64() / good.as_secs_f64();
                if share > dearest.0 {
                    *dearest =
                        (share, format!("{kernel}, {}: {took:?} with {bad:?}, {good:?} without", product.problem));
                }
                let most = match bad {
                    Bad::Nan | Bad::Huge => 3,
                    Bad::Overflow => 5,
                    Bad::Infinities | Bad::OneInfinity => 8,
                };
                if took > most * good + Duration::from_micros(10) {
                    return Err(format!("{kernel}, {}: {took:?} with {bad:?}, {good:?} without", product.problem));
                }
            }
        }
    }
    dearest.iter().for_each(|(share, what)| println!("{share:.1} times: {what}"));
    Ok(())
}

/// The magnitude of each weight's parts: |scale times code| and |minimum|. Without codes, a block has the minima alone.
pub fn magnitudes(format: Format, bytes: &[u8], n: usize) -> Result<Vec<f64>, String> {
    let codes = match format {
        Format::Q4_1 | Format::Q5_1 => 4..format.block().bytes,
        Format::Q2K => 16..80,
        Format::Q4K | Format::Q5K => 16..format.block().bytes,
        _ => 0..0,
    };
    let weights = gguf::numbers(format, bytes, n)?;
    if codes.is_empty() {
        return Ok(weights.into_iter().map(|w| f64::from(w).abs()).collect());
    }
    let mut without = bytes.to_vec();
    without.chunks_exact_mut(format.block().bytes).for_each(|block| block[codes.clone()].fill(0));
    let minima = gguf::numbers(format, &without, n)?;
    let parts = |(w, min): (f32, f32)| f64::from(w - min).abs() + f64::from(min).abs();
    Ok(weights.into_iter().zip(minima).map(parts).collect())
}

/// One activation of each row 10^2 to 10^7 times the others, by every kernel of a format that has A in f32: the error is below 2^-7 of the sum of the magnitudes of
/// scales times codes and of minima (docs/gguf.md).
fn spikes(gpu: &Gpu, format: Format) -> Result<(), String> {
    let (n, k) = (48, 1024);
    for kernel in of_blocks().filter(|kernel| kernel.types.b == format && kernel.types.a == Format::F32) {
        for (m, spike) in
            [(1, 1e2), (1, 3e6), (2, 1e5), (5, 1e3), (16, 1e4), (17, 3e6), (40, 1e5), (64, 3e6), (100, 1e7), (200, 1e6)]
        {
            let mut product = Blocks::<f32>::new(gpu, [Format::F32, format], [m, n, k])?;
            for i in 0..m {
                product.x[i * k + (i * 389 + 7) % k] *= spike;
            }
            let mut rng = StdRng::seed_from_u64(22);
            let bytes = gguf::blocks(format, n * k / format.block().elements, Weights::Bounded, &mut rng)?;
            let sizes = magnitudes(format, &bytes, n)?;
            for name in every_configuration(gpu, kernel, &product.problem) {
                let (got, _) = product.run(gpu, &name, &product.x, false)?;
                for (at, got) in got.iter().enumerate() {
                    let (x, of_w) = (&product.x[at / n * k..][..k], at % n * k);
                    let (mut sum, mut size) = (0.0, 0.0);
                    for (p, x) in x.iter().enumerate() {
                        sum += f64::from(*x) * f64::from(product.numbers[of_w + p]);
                        size += f64::from(x.abs()) * sizes[of_w + p];
                    }
                    let error = (f64::from(*got) - sum).abs();
                    if error.is_nan() || error > size / 128.0 {
                        let problem = product.problem;
                        return Err(format!(
                            "{name}, {problem}, spikes of {spike:e}: {got}, expected {sum} within {}",
                            size / 128.0
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}
