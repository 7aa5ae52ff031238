//! No product of a sample takes longer than stock candle's call: few outputs with a long K, odd extents, odd attention scores, a short extent beside a long one,
//! and batches that are one product.
//!
//! The sample is drawn by a seed; no estimate was fitted to these products.

use crate::device::Gpu;
use crate::Test;
use candle::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::launch::{self, Pointers, Queue, VendorCall};
use candle_tilegemm::problem::Operand;
use candle_tilegemm::{Format, Layout, Problem};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::time::Instant;

pub fn tests() -> Vec<(String, Test)> {
    vec![
        ("few_outputs_are_as_fast_as_stock".into(), Box::new(|gpu| as_fast_as_stock(gpu, &few_outputs(60)))),
        ("odd_attention_is_as_fast_as_stock".into(), Box::new(|gpu| as_fast_as_stock(gpu, &odd_attention()))),
        ("short_extents_are_as_fast_as_stock".into(), Box::new(|gpu| as_fast_as_stock(gpu, &short_extents(60)))),
        ("folded_batches_are_as_fast_as_one_product".into(), Box::new(folded_batches)),
    ]
}

const LAYOUTS: [Layout; 4] = [Layout::NN, Layout::NT, Layout::TN, Layout::TT];
const DTYPES: [Format; 4] = [Format::F16, Format::BF16, Format::F32, Format::F64];

/// The products that were up to 2,000 times slower than stock's, and `count` random ones.
fn few_outputs(count: usize) -> Vec<Problem> {
    use Format::{BF16, F32, F64};
    use Layout::{NN, NT};
    let known = [
        (1, 8, 16_384, NN, BF16),
        (1, 1, 1_000_001, NT, BF16),
        (16, 16, 10_001, NT, BF16),
        (4, 4, 10_001, NT, BF16),
        (33, 35, 3001, NT, F32),
        (16, 16, 1001, NT, F32),
        (2, 3, 1_000_000, NN, F32),
        (1, 1, 1_000_000, NT, F64),
        (16, 128, 65_536, NT, F32),
        (1, 1, 1_000_000, NT, F32),
    ];
    let mut rng = StdRng::seed_from_u64(19);
    let mut random = || {
        let mut few = || (2f64.powf(rng.random_range(0.0..6.0))) as usize;
        let (m, n) = (few(), few());
        let k = 10f64.powf(rng.random_range(1.0..6.0)) as usize;
        (m, n, k, *LAYOUTS.choose(&mut rng).unwrap(), *DTYPES.choose(&mut rng).unwrap())
    };
    let drawn: Vec<_> = (0..count).map(|_| random()).filter(|(m, n, k, ..)| (m + n) * k < 30_000_000).collect();
    known.into_iter().chain(drawn).map(|(m, n, k, layout, dtype)| Problem::dense(m, n, k, 1, layout, dtype)).collect()
}

/// Scores and values of sequences that are no multiple of 8.
fn odd_attention() -> Vec<Problem> {
    let mut rng = StdRng::seed_from_u64(20);
    let known = [(24, 209, 80, Format::BF16), (128, 249, 80, Format::F32)];
    let drawn = (0..12).map(|i| {
        let (heads, tokens) = (rng.random_range(8..128), rng.random_range(20..400));
        (heads, tokens, [64, 80, 96, 128][i % 4], [Format::BF16, Format::F16, Format::F32][i % 3])
    });
    let all: Vec<_> = known.into_iter().chain(drawn).collect();
    all.into_iter()
        .flat_map(|(heads, tokens, size, dtype)| {
            let scores = Problem::dense(tokens, tokens, size, heads, Layout::NT, dtype);
            [scores, Problem::dense(tokens, size, tokens, heads, Layout::NN, dtype)]
        })
        .collect()
}

/// M, N or K below 8 beside another beyond 100,000: products that were slower than stock, and `count` random ones.
fn short_extents(count: usize) -> Vec<Problem> {
    use Format::{BF16, F16, F32};
    use Layout::{NN, NT};
    let known = [
        (4, 400_000, 4, NN, F32),
        (4, 400_000, 4, NN, BF16),
        (4, 400_000, 64, NN, F32),
        (1, 151_936, 64, NN, F32),
        (65_536, 1, 128, NN, F32),
        (16, 128, 65_536, NN, F16),
        (400_000, 4, 4, NT, F32),
    ];
    let mut rng = StdRng::seed_from_u64(23);
    let mut random = || loop {
        let mut sizes = [2f64.powf(rng.random_range(0.0..13.0)) as usize; 3];
        let (short, long) = (rng.random_range(0..3), rng.random_range(1..3));
        sizes[short] = rng.random_range(1..8);
        sizes[(short + long) % 3] = 10f64.powf(rng.random_range(5.0..6.5)) as usize;
        let [m, n, k] = sizes;
        if m * k + k * n + m * n < 30_000_000 {
            return (m, n, k, *LAYOUTS.choose(&mut rng).unwrap(), *DTYPES.choose(&mut rng).unwrap());
        }
    };
    let drawn: Vec<_> = (0..count).map(|_| random()).collect();
    known.into_iter().chain(drawn).map(|(m, n, k, layout, dtype)| Problem::dense(m, n, k, 1, layout, dtype)).collect()
}

/// Batches of single rows over matrices of an inner batch: (outer, inner, 1, K) @ (inner, K, N), beside stock's call for the same rows where they lie together.
/// Folding by hand copies the rows to such a place, and the results back. In f32 a row of 100 results ends in the middle of a sector, and neighbours in memory
/// belong to other matrices: such a D takes 1.4 times as long as one whose rows lie together (148 us, 106; an H100).
fn folded_batches(gpu: &Gpu) -> Result<(), String> {
    let dispatcher = Dispatcher::new(gpu.info.clone()).without_tuning();
    let mut slow = Vec::new();
    for (outer, inner, n, k, dtype, times_stock) in [
        (512, 256, 100, 100, Format::F32, 1.5),
        (512, 256, 100, 100, Format::BF16, OF_STOCK),
        (8192, 32, 128, 1024, Format::BF16, OF_STOCK),
        (8192, 32, 128, 1024, Format::F32, OF_STOCK),
    ] {
        let (rows, columns, matrix) = (k as i64, n as i64, (n * k) as i64);
        let asked = Problem::dense(1, n, k, inner, Layout::NN, dtype).with(|p| {
            p.batch = [outer, inner];
            p.a.batch_stride = [rows * inner as i64, rows];
            p.b.batch_stride = [0, matrix];
            p.d.batch_stride = [columns * inner as i64, columns];
        });
        let by_hand = Problem::dense(outer, n, k, inner, Layout::NN, dtype);
        let (ours, one, kernel) = times(gpu, &dispatcher, &asked, &by_hand).map_err(|e| format!("{asked}: {e}"))?;
        println!("{asked}: {kernel} {ours:.1} us, cuBLAS folded by hand {one:.1} us");
        if ours > allowed_us(times_stock, one) {
            slow.push(format!("{asked}: {kernel} takes {ours:.1} us, cuBLAS folded by hand {one:.1} us"));
        }
    }
    none_slow(slow)
}

fn none_slow(slow: Vec<String>) -> Result<(), String> {
    match slow.is_empty() {
        true => Ok(()),
        false => Err(slow.join("\n")),
    }
}

/// How many times stock's time a call may take.
const OF_STOCK: f64 = 1.2;

/// Microseconds that a call may take: so many times stock's and 5 more.
fn allowed_us(times: f64, stock: f64) -> f64 {
    times * stock + 5.0
}

fn as_fast_as_stock(gpu: &Gpu, problems: &[Problem]) -> Result<(), String> {
    let dispatcher = Dispatcher::new(gpu.info.clone()).without_tuning();
    let mut slow = Vec::new();
    for problem in problems {
        let (ours, stock, kernel) = times(gpu, &dispatcher, problem, problem).map_err(|e| format!("{problem}: {e}"))?;
        println!("{problem}: {kernel} {ours:.1} us, stock {stock:.1} us");
        if ours > allowed_us(OF_STOCK, stock) {
            slow.push(format!("{problem}: {kernel} takes {ours:.1} us, stock {stock:.1} us"));
        }
    }
    none_slow(slow)
}

/// Microseconds of the chosen kernel and of candle's call for the same product, and the kernel's name. Medians of nine turns.
fn times(
    gpu: &Gpu,
    dispatcher: &Dispatcher,
    problem: &Problem,
    for_stock: &Problem,
) -> Result<(f64, f64, String), String> {
    let text = |e: candle::Error| e.to_string();
    let stream = gpu.device.cuda_stream();
    stream.context().bind_to_thread().map_err(|e| e.to_string())?;
    let words = |elements: usize| elements * problem.a.format.bytes(1) / 4 + 4;
    // 0x3f800000 to 0x3fffffff and any lower half: numbers from 1 to 2, or near them, in every dtype.
    let numbers = |elements: usize| -> Result<CudaSlice<f32>, String> {
        let mut rng = StdRng::seed_from_u64(elements as u64);
        let mut number = || f32::from_bits(0x3f80_3f80 | rng.random::<u32>() & 0x007f_007f);
        let values: Vec<f32> = (0..words(elements)).map(|_| number()).collect();
        gpu.device.clone_htod(&values).map_err(text)
    };
    let Problem { m, n, k, batch, .. } = *problem;
    let span = |operand: &Operand, extents: [usize; 2]| -> usize {
        let [outer, inner] = operand.batch_stride;
        let strides = [outer, inner, operand.row_stride, operand.col_stride];
        let steps = batch.into_iter().chain(extents).zip(strides);
        steps.map(|(extent, stride)| (extent - 1) * stride as usize).sum::<usize>() + 1
    };
    let (a, b) = (numbers(span(&problem.a, [m, k]))?, numbers(span(&problem.b, [k, n]))?);
    let d = numbers(span(&problem.d, [m, n]))?;
    let at = |slice: &CudaSlice<f32>| slice.device_ptr(&stream).0;
    let pointers = Pointers::new(at(&a) as _, at(&b) as _, at(&d) as _);
    let handle = gpu.device.cublas_handle();
    let queue = Queue::new(stream.cu_stream().cast(), (*handle.handle()).cast());
    let plan = dispatcher.plan(problem, Policy::default()).map_err(|e| e.to_string())?;
    let stock = VendorCall::by_candle(for_stock).map_err(|e| e.to_string())?;
    // SAFETY: the buffers hold what the problem spans and live until the last turn has waited for the stream.
    let ours = || unsafe { launch::launch(&plan, pointers, queue) }.map_err(|e| e.to_string());
    // SAFETY: as above.
    let stock = || unsafe { stock.run(pointers, queue.cublas) }.map_err(|e| e.to_string());
    let turn = |calls: u32, call: &dyn Fn() -> Result<(), String>| -> Result<f64, String> {
        stream.synchronize().map_err(|e| e.to_string())?;
        let start = Instant::now();
        (0..calls).try_for_each(|_| call())?;
        stream.synchronize().map_err(|e| e.to_string())?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(calls))
    };
    let (mut own_us, mut stock_us) = (Vec::new(), Vec::new());
    // 30 calls, or as many as take 10 ms.
    turn(1, &ours)?;
    turn(1, &stock)?;
    let calls = (10_000.0 / turn(1, &ours)?.max(turn(1, &stock)?)).clamp(1.0, 30.0) as u32;
    for _ in 0..9 {
        own_us.push(turn(calls, &ours)?);
        stock_us.push(turn(calls, &stock)?);
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok((median(own_us), median(stock_us), plan.kernel.name.to_string()))
}
