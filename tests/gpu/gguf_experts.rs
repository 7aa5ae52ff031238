//! `candle_nn::moe::moe_gemm_gguf` on our kernels, against sums in f64 of the numbers that candle reads from the blocks.

use crate::device::Gpu;
use crate::gguf::{blocks, numbers, Weights};
use crate::oracle::{dot, wide};
use crate::Test;
use candle::cuda_backend::cudarc::driver::DevicePtr;
use candle::cuda_backend::kernels::ffi;
use candle::quantized::{GgmlDType, QStorage, QTensor};
use candle::{DType, Device, Result, Tensor};
use candle_nn::moe::moe_gemm_gguf;
use candle_tilegemm::{interpose, Format};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::borrow::Cow;
use std::ptr::null;

const FORMATS: [(GgmlDType, Format); 6] = [
    (GgmlDType::Q8_0, Format::Q8_0),
    (GgmlDType::Q4K, Format::Q4K),
    (GgmlDType::Q2K, Format::Q2K),
    (GgmlDType::Q3K, Format::Q3K),
    (GgmlDType::Q5K, Format::Q5K),
    (GgmlDType::Q6K, Format::Q6K),
];

pub fn tests() -> Vec<(String, Test)> {
    let of = |(theirs, ours): (GgmlDType, Format)| -> (String, Test) {
        (format!("gguf_experts_of_candles_layer_{ours}"), Box::new(move |gpu| layer(gpu, theirs, ours)))
    };
    let mut tests: Vec<(String, Test)> = FORMATS.into_iter().map(of).collect();
    tests.push(("gguf_experts_that_cannot_run_are_nan".into(), Box::new(failures)));
    tests
}

/// The pairs whose expert does not exist.
#[derive(Debug, Clone, Copy)]
enum Elsewhere {
    None,
    Some,
    All,
}

fn layer(gpu: &Gpu, theirs: GgmlDType, ours: Format) -> std::result::Result<(), String> {
    if !interpose::gguf_experts_are_active() {
        return Err("candle's calls for experts with quantised weights do not arrive".into());
    }
    let mut rng = StdRng::seed_from_u64(21);
    let before = interpose::stats();
    let mut tried = 0;
    for sizes in [[1, 8, 128, 96, 512], [9, 2, 8, 264, 768], [300, 4, 8, 40, 256], [64, 8, 16, 33, 1024]] {
        for scaled in [false, true] {
            for (is_prefill, dtype) in [(false, DType::F32), (true, DType::F16), (true, DType::BF16)] {
                for elsewhere in [Elsewhere::None, Elsewhere::Some, Elsewhere::All] {
                    let of = (scaled, is_prefill, dtype, elsewhere);
                    let worst = worst(gpu, (theirs, ours), sizes, of, &mut rng).map_err(|error| error.to_string())?;
                    // Activations and weights are rounded to bf16, activations of prefill to `dtype` before.
                    let most = 2f64.powi(-8) + if dtype == DType::BF16 { 2f64.powi(-9) } else { 2f64.powi(-12) };
                    if worst > most {
                        return Err(format!(
                            "{sizes:?}, (scaled, prefill, type, experts elsewhere) {of:?}: {worst:.2e}"
                        ));
                    }
                    tried += 1;
                }
            }
        }
    }
    let since = interpose::stats().since(&before);
    match (since.experts, since.failed) {
        (experts, 0) if experts == tried => Ok(()),
        counts => Err(format!("{tried} products; calls on our kernels, and failed calls: {counts:?}")),
    }
}

/// The largest error over the sum of |w x|, of `tokens` with `top_k` of `experts` each. With factors, each pair has activations of its own.
fn worst(
    gpu: &Gpu,
    (theirs, ours): (GgmlDType, Format),
    [tokens, top_k, experts, n, k]: [usize; 5],
    (scaled, is_prefill, dtype, elsewhere): (bool, bool, DType, Elsewhere),
    rng: &mut StdRng,
) -> Result<f64> {
    let device = Device::Cuda(gpu.device.clone());
    let bytes =
        blocks(ours, experts * n * k / ours.block().elements, Weights::Bounded, rng).map_err(candle::Error::msg)?;
    let storage = QStorage::from_data(Cow::Borrowed(&bytes[..]), &device, theirs)?;
    let weights = QTensor::new(storage, (experts, n, k))?;
    let w = numbers(ours, &bytes, experts * n).map_err(candle::Error::msg)?;
    // Each token's experts, and the pairs by expert.
    let mut of_pair: Vec<usize> = Vec::new();
    for _ in 0..tokens {
        let mut all: Vec<usize> = (0..experts).collect();
        all.shuffle(rng);
        of_pair.extend(&all[..top_k]);
    }
    let m = tokens * top_k;
    for (pair, expert) in of_pair.iter_mut().enumerate() {
        let is_elsewhere = match elsewhere {
            Elsewhere::None => false,
            Elsewhere::Some => pair % 3 == 1,
            Elsewhere::All => true,
        };
        if is_elsewhere {
            *expert = [experts, experts + 1, u32::MAX as usize][pair / 3 % 3];
        }
    }
    let mut pairs: Vec<u32> = (0..m as u32).collect();
    pairs.sort_by_key(|pair| of_pair[*pair as usize]);
    let of_row: Vec<u32> = pairs.iter().map(|pair| of_pair[*pair as usize] as u32).collect();
    let factor = |pair: usize, x: f32| if of_pair[pair] < experts { x } else { f32::NAN };
    let factors: Vec<f32> = (0..m).map(|pair| factor(pair, rng.random_range(0.1..1.5))).collect();
    let rows = if scaled { m } else { tokens };
    let x = Tensor::randn(0f32, 1f32, (rows, k), &Device::Cpu)?;
    let list = |values: Vec<u32>| Tensor::from_vec(values, m, &device);
    let scales = if scaled { Some(Tensor::from_slice(&factors, m, &device)?) } else { None };
    let on_gpu = x.to_device(&device)?;
    crate::elsewhere::poison(&device, m * n)?;
    let y = moe_gemm_gguf(&on_gpu, &weights, &scales, &list(pairs)?, &list(of_row)?, top_k, is_prefill, dtype)?;
    if y.dims() != [m, n] || y.dtype() != DType::F32 {
        candle::bail!("the result is {y:?}");
    }
    let (x, y) = (x.flatten_all()?.to_vec1::<f32>()?, y.flatten_all()?.to_vec1::<f32>()?);
    let (x, w) = (wide(&x), wide(&w));
    let mut worst = 0.0f64;
    for (place, y) in y.iter().enumerate() {
        let (pair, column) = (place / n, place % n);
        if of_pair[pair] >= experts {
            worst = if *y == 0.0 { worst } else { f64::INFINITY };
            continue;
        }
        let row = &x[if scaled { pair } else { pair / top_k } * k..][..k];
        let column = &w[(of_pair[pair] * n + column) * k..][..k];
        let (sum, size) = dot(row, column);
        let factor = if scaled { f64::from(factors[pair]) } else { 1.0 };
        let error = (f64::from(*y) - factor * sum).abs() / (factor * size);
        worst = worst.max(if error.is_nan() { f64::INFINITY } else { error });
    }
    Ok(worst)
}

/// A K of no whole blocks, and formats that do not exist, are counted, and the results are NaN.
fn failures(gpu: &Gpu) -> std::result::Result<(), String> {
    let stream = gpu.device.cuda_stream();
    let d = stream.clone_htod(&vec![1f32; 2 * 16 + 8]).map_err(|e| e.to_string())?;
    let before = interpose::stats();
    for (k, format, of_x) in [(264, 1, None), (256, 6, None), (256, 1, Some(2)), (264, 1, Some(1))] {
        let (at, to) = (d.device_ptr(&stream).0, stream.cu_stream() as i64);
        let none = null::<f32>();
        let lists = none.cast::<i32>();
        // SAFETY: the definitions look at sizes and formats before any pointer, and fill 2 x 16 numbers of D.
        unsafe {
            match of_x {
                None => {
                    ffi::moe_gemm_gguf(none, none.cast(), lists, lists, none, at as _, 4, 1, 2, 16, k, format, to);
                }
                Some(of_x) => {
                    let w = none.cast();
                    ffi::moe_gemm_gguf_prefill(
                        none.cast(),
                        w,
                        lists,
                        lists,
                        none,
                        at as _,
                        4,
                        1,
                        2,
                        16,
                        k,
                        of_x,
                        format,
                        to,
                    );
                }
            }
        }
    }
    let got = stream.clone_dtoh(&d).map_err(|e| e.to_string())?;
    let since = interpose::stats().since(&before);
    let is_right = got[..32].iter().all(|x| x.is_nan()) && got[32..].iter().all(|x| *x == 1.0);
    match (is_right, since.experts, since.failed) {
        (true, 0, 4) => Ok(()),
        other => Err(format!("NaN and nothing else, calls on our kernels, failed calls: {other:?}")),
    }
}
