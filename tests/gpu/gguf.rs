//! Products with the weights of GGUF files, against sums in f64 of the numbers that candle reads from the blocks, or this crate.

use crate::blocks::random as random_blocks;
use crate::device::{Choice, Element, Gpu};
use crate::numbers::{Kind, Numbers};
use crate::oracle::{agree, dot, wide, GUARD};
use crate::shard::side_by_side;
use crate::{built, Test};
use candle::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candle::Device;
use candle_tilegemm::dispatch::Policy;
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::launch::{self, Pointers};
use candle_tilegemm::nn::QWeights;
use candle_tilegemm::problem::{power_of_two_in, BiasAxis, Epilogue, Operand};
use candle_tilegemm::{Activation, Format, Layout, Problem};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use rayon::prelude::*;

pub fn tests() -> Vec<(String, Test)> {
    // groups.rs has the kernels for groups of rows.
    let kernels = built().filter(|kernel| kernel.types.b.is_gguf_block() && !kernel.needs_groups());
    let kernels = kernels.filter(|kernel| kernel.types.a == kernel.types.d);
    let ways = kernels.map(|kernel| (Way::Kernel(kernel), kernel.types.a, kernel.types.b, format!("{kernel}_blocks")));
    let copies = Format::blocks()
        .flat_map(|b| [Format::F32, Format::BF16].map(|a| (Way::Copies, a, b, format!("copies_{a}_{b}_blocks"))));
    let test = |(way, a, b, name): (Way, Format, Format, String)| -> (String, Test) {
        let test: Test = Box::new(move |gpu| match a {
            Format::F16 => every_case::<f16>(gpu, way, [a, b]),
            Format::BF16 => every_case::<bf16>(gpu, way, [a, b]),
            _ => every_case::<f32>(gpu, way, [a, b]),
        });
        (name, test)
    };
    ways.chain(copies).map(test).collect()
}

/// How products run.
#[derive(Clone, Copy)]
enum Way {
    Kernel(&'static KernelDesc),
    /// On a copy of the weights in bf16, by our kernels.
    Copies,
    /// By the choice of the dispatcher.
    Chosen(Policy),
}

impl Way {
    /// Whether weights and activations are rounded to bf16.
    fn rounds_twice(self) -> bool {
        match self {
            Way::Kernel(kernel) => kernel.family == "sm90_gguf_gemm" && kernel.tile[0] > 192,
            Way::Copies | Way::Chosen(_) => true,
        }
    }
}

/// The bytes of blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Weights {
    /// Random bits, with scales as a model has them.
    Bounded,
    /// Random bits, scales included: infinities, NaN, subnormal and huge numbers.
    Any,
}

pub fn blocks(format: Format, count: usize, weights: Weights, rng: &mut StdRng) -> Result<Vec<u8>, String> {
    if weights == Weights::Bounded {
        return Ok(random_blocks(format, count, rng));
    }
    let mut blocks = vec![0; count * format.block().bytes];
    rng.fill_bytes(&mut blocks);
    if format == Format::MXFP4 {
        // With powers of two from 2^73 on sums overflow that are finite in f64; below 2^-54 weights in f16 lose bits (docs/gguf.md).
        blocks
            .chunks_mut(format.block().bytes)
            .filter(|block| !(73..200).contains(&block[0]) && block[0] < 255)
            .for_each(|block| block[0] = 73 + block[0] % 73);
    }
    Ok(blocks)
}

/// A block of weights that are not zero, of a scale times a code, 1, less a minimum that is the same number in f16: in f16 such a weight is zero.
fn cancelling(format: Format, block: &mut [u8]) {
    let scale = 1.0 + 2f32.powi(-10);
    let mut put = |at: usize, number: f32| block[at..at + 2].copy_from_slice(&f16::from_f32(number).to_le_bytes());
    match format {
        Format::Q4K | Format::Q5K => {
            put(0, scale);
            put(2, 63.0 * scale);
            block[4..8].fill(0xff);
            block[8..12].fill(0x01);
            block[12..16].fill(0x1f);
            block[16..].fill(0x11);
            if format == Format::Q5K {
                block[16..48].fill(0);
            }
        }
        Format::Q2K => {
            put(80, scale);
            put(82, 15.0 * scale);
            block[..16].fill(0x1f);
            block[16..80].fill(0x55);
        }
        _ => {}
    }
}

/// The numbers of `n` rows of blocks, as candle reads them, or as this crate does, which tests/op/gguf.rs tests.
pub fn numbers(format: Format, blocks: &[u8], n: usize) -> Result<Vec<f32>, String> {
    let text = |e: candle::Error| e.to_string();
    let k = blocks.len() / format.block().bytes * format.block().elements / n;
    let weights = QWeights::from_bytes(format, blocks, (n, k), &Device::Cpu);
    weights
        .and_then(|weights| weights.dequantize(&Device::Cpu))
        .and_then(|tensor| tensor.flatten_all()?.to_vec1())
        .map_err(text)
}

/// What is varied beside the sizes.
#[derive(Debug, Clone, Copy)]
struct Case {
    weights: Weights,
    /// Bytes before the first block, and elements between rows of A.
    offset: usize,
    padding: usize,
    bias: bool,
    activation: Activation,
    beta: f64,
    gates_c: bool,
    /// An infinity and a NaN in A.
    non_finite: bool,
    /// Numbers of A times powers of two from 2^-12 to 2^11.
    wide: bool,
    /// The last block of each row of W has weights that nearly cancel.
    cancels: bool,
}

const PLAIN: Case = Case {
    weights: Weights::Bounded,
    offset: 0,
    padding: 0,
    bias: false,
    activation: Activation::Identity,
    beta: 0.0,
    gates_c: false,
    non_finite: false,
    wide: false,
    cancels: false,
};
const CASES: [Case; 8] = [
    PLAIN,
    Case { weights: Weights::Any, ..PLAIN },
    Case { offset: 2, ..PLAIN },
    Case { offset: 4, padding: 8, bias: true, activation: Activation::Silu, ..PLAIN },
    Case { beta: 0.5, bias: true, ..PLAIN },
    Case { non_finite: true, ..PLAIN },
    Case { beta: 0.5, bias: true, activation: Activation::Silu, gates_c: true, ..PLAIN },
    Case { weights: Weights::Any, wide: true, ..PLAIN },
];
const ROWS: [usize; 13] = [1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 65, 100, 130];
const COLUMNS: [usize; 5] = [1, 8, 24, 129, 320];

fn every_case<T: Element>(gpu: &Gpu, way: Way, types: [Format; 2]) -> Result<(), String> {
    let block = types[1].block().elements;
    let mut products: Vec<([usize; 3], Case)> = Vec::new();
    for (at, m) in ROWS.into_iter().enumerate() {
        for (columns, n) in COLUMNS.into_iter().enumerate() {
            let of_k = [1, 2, 3, 5, 512 / block * 4][(at + columns) % 5];
            let case = CASES[(at + 2 * columns) % CASES.len()];
            products.extend([PLAIN, case].map(|case| ([m, n, of_k * block], case)));
        }
    }
    // Deep K: sums of many blocks, and parts of K. With the larger N, a block has several units of 16 rows of W.
    let [odd_k, long_k] = [3584 - block, 14336];
    let deep = [
        (1, 40, 8192, PLAIN),
        (5, 40, 8192, CASES[3]),
        (8, 40, 8192, CASES[5]),
        (40, 40, 8192, CASES[2]),
        (1, 6355, 4096, CASES[1]),
        (2, 6355, odd_k, CASES[2]),
        (4, 2250, long_k, CASES[3]),
        (1, 1100, long_k, CASES[5]),
        // Warps that have the whole K of a row, and two of them.
        (1, 6355, 1024, PLAIN),
        (1, 2112, 512, CASES[5]),
        (2, 4224, 1024, Case { non_finite: true, ..PLAIN }),
        (2, 2112, 2048, PLAIN),
        (12, 4501, odd_k, CASES[2]),
        (3, 40, long_k, CASES[6]),
        (50, 300, 8192, CASES[7]),
        // Edges of tiles of many rows.
        (161, 129, 1024, CASES[7]),
        (193, 72, 1536, CASES[3]),
        (258, 40, 768, CASES[5]),
        // With few and with many parts of K.
        (60, 40, 1024, Case { non_finite: true, cancels: true, ..PLAIN }),
        (60, 200, 2048, Case { non_finite: true, cancels: true, ..PLAIN }),
        (60, 40, 8192, Case { non_finite: true, cancels: true, ..PLAIN }),
    ];
    // The longest first.
    products.splice(0..0, deep.map(|(m, n, k, case)| ([m, n, k], case)));
    let try_product = |&(sizes, case): &_| run::<T>(gpu, way, types, sizes, case).map(usize::from);
    match side_by_side(&products, try_product)?.into_iter().sum() {
        tried @ 0..20 => Err(format!("only {tried} products to try")),
        _ => Ok(()),
    }
}

/// A random product by the choice of the dispatcher.
pub fn random<T: Element>(gpu: &Gpu, policy: Policy, rng: &mut StdRng) -> Result<(), String> {
    let formats: Vec<Format> = Format::ALL.into_iter().filter(|format| format.is_gguf_block()).collect();
    let format = formats[rng.random_range(0..formats.len())];
    let rows = [8, 64, 200][rng.random_range(0..3)];
    let k = format.block().elements * rng.random_range(1..=2048 / format.block().elements);
    let case = Case {
        offset: 2 * rng.random_range(0..=4),
        padding: [0, 0, 1, 8][rng.random_range(0..4)],
        bias: rng.random(),
        activation: Activation::ALL[rng.random_range(0..Activation::ALL.len())],
        beta: if rng.random() { 0.5 } else { 0.0 },
        gates_c: rng.random(),
        ..CASES[rng.random_range(0..CASES.len())]
    };
    let (m, n) = (rng.random_range(1..=rows), rng.random_range(1..=300));
    run::<T>(gpu, Way::Chosen(policy), [T::KERNEL_DTYPE, format], [m, n, k], case).map(drop)
}

/// One kernel over a few cases, for compute-sanitizer.
pub fn few(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    let types = [kernel.types.a, kernel.types.b];
    let k = 2 * kernel.types.b.block().elements.max(128);
    let mut tried = 0;
    let long_k = 3584 - kernel.types.b.block().elements;
    let small = [(1, CASES[3]), (7, CASES[0]), (40, CASES[4]), (270, CASES[3])].map(|(m, case)| ([m, 72, k], case));
    let others = [([2, 6355, long_k], CASES[2]), ([1, 2112, 512], CASES[0]), ([2, 2112, 512], CASES[5])];
    for (sizes, case) in small.into_iter().chain(others) {
        tried += usize::from(match kernel.types.a {
            Format::F16 => run::<f16>(gpu, Way::Kernel(kernel), types, sizes, case),
            Format::BF16 => run::<bf16>(gpu, Way::Kernel(kernel), types, sizes, case),
            _ => run::<f32>(gpu, Way::Kernel(kernel), types, sizes, case),
        }?);
    }
    if tried == 0 {
        return Err("no product to try".into());
    }
    Ok(())
}

/// Whether the kernel takes the product; then its D is compared with the sums.
fn run<T: Element>(
    gpu: &Gpu,
    way: Way,
    [a, b]: [Format; 2],
    [m, n, k]: [usize; 3],
    case: Case,
) -> Result<bool, String> {
    let seed = (m * 1009 + n * 31 + k) as u64;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut problem = Problem::dense(m, n, k, 1, Layout::NT, a).with(|p| p.b.format = b);
    problem.a.row_stride += case.padding as i64;
    // Blocks of an odd number of bytes lie at any byte.
    let offset = case.offset + usize::from(case.offset > 0 && b.block().bytes % 2 == 1);
    problem.b.pointer_align = power_of_two_in(offset as u64);
    let mut epilogue = Epilogue::new(1.0, case.beta);
    (epilogue.bias, epilogue.activation) = (case.bias.then_some(BiasAxis::N), case.activation);
    epilogue.c = (case.beta != 0.0).then(|| Operand::row_major(a, n, [0, 0]));
    epilogue.gates_c = case.gates_c;
    problem.epilogue = epilogue;
    if matches!(way, Way::Kernel(kernel) if kernel.supports(&problem.canonical().problem, &gpu.info).is_err()) {
        return Ok(false);
    }
    // Copies read words of 4 bytes where blocks are multiples of 4 bytes. Dense kernels leave gates of C to a kernel of their own.
    let splits_words = b.block().bytes.is_multiple_of(4) && !offset.is_multiple_of(4);
    if matches!(way, Way::Copies) && (splits_words || case.gates_c) {
        return Ok(false);
    }
    let mut normals = Numbers::<T>::new(Kind::Normal, &mut rng);
    let stride = k + case.padding;
    let (mut x, bias, c) = (normals.take(m * stride), normals.take(n), normals.take(m * n));
    if case.wide {
        x.iter_mut().for_each(|x| *x = T::from_f64(x.to_f64() * 2f64.powi(rng.random_range(-12..12))));
    }
    if case.non_finite {
        x[(m / 2) * stride + k - 1] = T::from_f64(f64::INFINITY);
        x[(m - 1) * stride + k / 2] = T::from_f64(f64::NAN);
    }
    let mut bytes = blocks(b, n * k / b.block().elements, case.weights, &mut rng)?;
    if case.cancels {
        bytes.chunks_exact_mut(b.bytes(k)).for_each(|row| cancelling(b, &mut row[b.bytes(k) - b.block().bytes..]));
    }
    let weights = wide(&numbers(b, &bytes, n)?);
    let wrong = |e: String| format!("{problem} {case:?}: {e}");
    let launch =
        |choice: Choice| on_the_gpu(gpu, way, choice, &problem, offset, &bytes, [&x, &bias, &c]).map_err(wrong);
    let got = match way {
        Way::Kernel(kernel) => launch(Choice::Named(kernel.name))?,
        Way::Copies => launch(Choice::By(Policy::own().with_copies()))?,
        Way::Chosen(policy) => launch(Choice::By(policy))?,
    };
    // Each element of D, and how far a result may be off.
    let activations: Vec<f64> = x.iter().map(|x| x.to_f64()).collect();
    let expected = |place: usize| {
        let (i, j) = (place / n, place % n);
        let (sum, size) = dot(&activations[i * stride..][..k], &weights[j * k..][..k]);
        let bias = if case.bias { bias[j].to_f64() } else { 0.0 };
        let c = if case.beta == 0.0 { 0.0 } else { case.beta * c[i * n + j].to_f64() };
        let activated = case.activation.apply(sum + bias);
        let gates_c = case.gates_c && case.beta != 0.0;
        let expected = if gates_c { activated * c } else { activated + c };
        // The reference kernel adds in f32; other kernels round activations to 16 bits or fewer (docs/gguf.md).
        let of_sum = match way {
            Way::Kernel(kernel) if kernel.role == Role::LastResort => f32::UNIT_ROUNDOFF * (k as f64 + 8.0),
            // One product is nearly the whole sum.
            _ if case.wide && way.rounds_twice() => 1.01 / 128.0,
            _ => 1.0 / 256.0,
        };
        let of_gate = of_sum * size + f32::UNIT_ROUNDOFF * 8.0 * bias.abs() + f64::from(f32::MIN_POSITIVE);
        let around = match gates_c {
            true => of_gate * c.abs() + f32::UNIT_ROUNDOFF * 8.0 * expected.abs(),
            false => of_gate + f32::UNIT_ROUNDOFF * 8.0 * c.abs(),
        };
        let tolerance = if expected.is_finite() { T::UNIT_ROUNDOFF * expected.abs() * 1.01 + around } else { 0.0 };
        (expected, tolerance)
    };
    let expected: Vec<(f64, f64)> = (0..m * n).into_par_iter().map(expected).collect();
    let check_all = |got: &[T]| {
        let (d, guard) = got.split_at(m * n);
        if let Some(written) = guard.iter().find(|x| !x.to_f64().is_nan()) {
            return Err(format!("wrote {} behind D", written.to_f64()));
        }
        d.iter().zip(&expected).enumerate().try_for_each(|(place, (got, &(expected, tolerance)))| {
            // A sum beyond the largest number of the type is an infinity.
            let bounds = [expected - tolerance, expected + tolerance].map(|bound| T::from_f64(bound).to_f64());
            let got = got.to_f64();
            if agree(got, expected, tolerance) || bounds.contains(&got) {
                return Ok(());
            }
            let (i, j) = (place / n, place % n);
            Err(format!("D[{i},{j}] is {got}, expected {expected} within {tolerance:.2e}"))
        })
    };
    check_all(&got).map_err(wrong)?;
    if let Way::Kernel(kernel) = way {
        // The configurations that the family does not choose, too.
        let configs = kernel.configurations(&problem.canonical().problem, &gpu.info);
        for config in configs.iter().filter(|_| configs.len() > 1) {
            let got = launch(Choice::Named(&format!("{kernel}@{config}")))?;
            check_all(&got).map_err(|error| wrong(format!("{config}: {error}")))?;
        }
    }
    Ok(true)
}

/// D and the guard behind D.
fn on_the_gpu<T: Element>(
    gpu: &Gpu,
    way: Way,
    choice: Choice,
    problem: &Problem,
    offset: usize,
    blocks: &[u8],
    [x, bias, c]: [&Vec<T>; 3],
) -> Result<Vec<T>, String> {
    let text = |e: candle::Error| e.to_string();
    let (plan, queue) = gpu.plan(choice, problem)?;
    let _alone = gpu.alone(&plan);
    if matches!(way, Way::Copies) && plan.packing.is_none_or(|packing| !packing.b) {
        return Err(format!("{} runs without a copy of B", plan.kernel));
    }
    // Bytes around the blocks that would be NaN as scales.
    let mut memory = vec![0xff; offset];
    memory.extend_from_slice(blocks);
    memory.resize(memory.len() + GUARD, 0xff);
    let memory = gpu.device.clone_htod(&memory).map_err(text)?;
    let [x, bias, c] = [x, bias, c].map(|values| gpu.device.clone_htod(values));
    let (x, bias, c) = (x.map_err(text)?, bias.map_err(text)?, c.map_err(text)?);
    let d = vec![T::from_f64(f64::NAN); problem.m * problem.n + GUARD];
    let d: CudaSlice<T> = gpu.device.clone_htod(&d).map_err(text)?;
    let stream = gpu.device.cuda_stream();
    let at = |slice: &CudaSlice<T>| slice.device_ptr(&stream).0;
    let first = memory.device_ptr(&stream).0 + offset as u64;
    let pointers = Pointers::new(at(&x) as _, first as _, at(&d) as _).with_c(at(&c) as _).with_bias(at(&bias) as _);
    // SAFETY: the buffers hold what the problem spans, and live until the copy below has waited for the stream.
    unsafe { launch::launch(&plan, pointers, queue) }.map_err(|e| e.to_string())?;
    gpu.device.clone_dtoh(&d).map_err(text)
}
