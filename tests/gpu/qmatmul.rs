//! `nn::QLinear`, and `QMatMul` of candle on our kernels, against sums in f64 of the numbers that candle or this crate reads from the blocks.

use crate::blocks::random;
use crate::device::Gpu;
use crate::oracle::{dot, wide};
use crate::Test;
#[cfg(feature = "interpose-kernels")]
use candle::cuda_backend::{cudarc::driver::DevicePtr, kernels::ffi};
use candle::quantized::QMatMul;
#[cfg(feature = "interpose-kernels")]
use candle::Error;
use candle::{DType, Device, Module, Result, Tensor};
use candle_tilegemm::nn::{QLinear, QWeights};
#[cfg(feature = "interpose-kernels")]
use candle_tilegemm::{internal::blocks::ggml_type, interpose};
use candle_tilegemm::{Activation, Format};
use rand::rngs::StdRng;
#[cfg(feature = "interpose-kernels")]
use rand::Rng;
use rand::SeedableRng;
#[cfg(feature = "interpose-kernels")]
use std::ptr::{null, null_mut};

pub fn tests() -> Vec<(String, Test)> {
    let layer = |format: Format| -> (String, Test) {
        let name = format!("qlinear_{format}");
        (name, Box::new(move |gpu| layers(gpu, format).map_err(|error| error.to_string())?))
    };
    #[allow(unused_mut)]
    let mut tests: Vec<(String, Test)> = Format::blocks().map(layer).collect();
    #[cfg(feature = "interpose-kernels")]
    {
        let format = |format: Format| -> (String, Test) {
            (format!("qmatmul_{format}"), Box::new(move |gpu| products(gpu, format)))
        };
        tests.extend(Format::blocks().filter(|format| ggml_type(*format).is_some()).map(format));
        tests.extend([
            ("qmatmul_on_many_threads".into(), Box::new(on_many_threads) as Test),
            ("qmatmul_that_cannot_run_is_nan".into(), Box::new(failures)),
        ]);
    }
    tests
}

/// Weights of random blocks with bounded factors, on the device and as numbers.
fn weights(device: &Device, format: Format, [n, k]: [usize; 2], rng: &mut StdRng) -> Result<(QWeights, Vec<f32>)> {
    let bytes = random(format, n * k / format.block().elements, rng);
    let weights = QWeights::from_bytes(format, bytes, (n, k), &Device::Cpu)?;
    let numbers = weights.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1()?;
    Ok((weights.to_device(device)?, numbers))
}

/// candle's product, in a format that candle has.
fn of_candle(weights: &QWeights) -> Option<Result<QMatMul>> {
    weights.as_qtensor().map(|tensor| QMatMul::from_arc(tensor.clone()))
}

/// The largest difference of y from `epilogue`(sum in f64, place), beside the rounding of y, over the sum of |w x|.
fn worst_of(x: &Tensor, w: &[f32], y: &Tensor, epilogue: impl Fn(f64, usize) -> f64) -> Result<f64> {
    let k = x.dim(candle::D::Minus1)?;
    let unit = match y.dtype() {
        DType::BF16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-24),
    };
    let (x, w, y, n) = (wide(&flat(x)?), wide(w), flat(y)?, w.len() / k);
    let mut worst = 0.0f64;
    for (place, y) in y.iter().enumerate() {
        let (row, column) = (&x[place / n * k..][..k], &w[place % n * k..][..k]);
        let (sum, size) = dot(row, column);
        let expected = epilogue(sum, place);
        let error = ((f64::from(*y) - expected).abs() - unit * expected.abs()).max(0.0) / size;
        worst = worst.max(if error.is_nan() { f64::INFINITY } else { error });
    }
    Ok(worst)
}

fn flat(t: &Tensor) -> Result<Vec<f32>> {
    t.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

#[cfg(feature = "interpose-kernels")]
fn worst(x: &Tensor, w: &[f32], y: &Tensor) -> Result<f64> {
    worst_of(x, w, y, |sum, _| sum)
}

/// The layer with a bias, an activation, a residual and a gated tensor.
fn layers(gpu: &Gpu, format: Format) -> Result<std::result::Result<(), String>> {
    let device = Device::Cuda(gpu.device.clone());
    let mut rng = StdRng::seed_from_u64(9);
    let [n, k] = [72, 1024];
    let (weight, numbers) = weights(&device, format, [n, k], &mut rng)?;
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let bias = Tensor::randn(0f32, 1f32, n, &device)?.to_dtype(dtype)?;
        for shape in [vec![1, k], vec![2, 5, k], vec![100, k]] {
            let x = Tensor::randn(0f32, 0.1f32, shape.as_slice(), &device)?.to_dtype(dtype)?;
            let mut of_y = shape.clone();
            *of_y.last_mut().unwrap() = n;
            let residual = Tensor::randn(0f32, 1f32, of_y.as_slice(), &device)?.to_dtype(dtype)?;
            let (b, c) = (flat(&bias)?, flat(&residual)?);
            for activation in [Activation::Identity, Activation::Silu] {
                let layer = QLinear::from_blocks(weight.clone(), Some(bias.clone()))?.with_activation(activation);
                let after = |sum: f64, place: usize| activation.apply(sum + f64::from(b[place % n]));
                let y = layer.forward(&x)?;
                let beside = layer.forward_residual(&x, &residual)?;
                let gated = layer.forward_gated(&x, &residual)?;
                let errors = [
                    worst_of(&x, &numbers, &y, after)?,
                    worst_of(&x, &numbers, &beside, |sum, place| after(sum, place) + f64::from(c[place]))?,
                    // A gated number has the error of its gate times the number that is gated: some 4 at most.
                    worst_of(&x, &numbers, &gated, |sum, place| after(sum, place) * f64::from(c[place]))? / 4.0,
                ];
                let is_right = errors.iter().all(|error| *error <= 2f64.powi(-7));
                if !is_right || y.dims() != of_y || y.dtype() != dtype {
                    return Ok(Err(format!("{shape:?} in {dtype:?}, {activation:?}: {errors:?}")));
                }
            }
        }
    }
    // What does not fit has candle's words.
    let wrong = Tensor::zeros((1, k + 32), DType::F32, &device)?;
    let words = |result: Result<Tensor>| {
        result.map(|_| ()).map_err(|error| error.to_string().lines().next().unwrap_or("").to_string())
    };
    let ours = words(QLinear::from_blocks(weight.clone(), None)?.forward(&wrong));
    let theirs = match of_candle(&weight) {
        Some(product) => words(product?.forward(&wrong)),
        None => ours.clone(),
    };
    Ok(if ours.is_err() && ours == theirs { Ok(()) } else { Err(format!("{ours:?}, candle says {theirs:?}")) })
}

#[cfg(feature = "interpose-kernels")]
fn products(gpu: &Gpu, format: Format) -> std::result::Result<(), String> {
    let run = || -> Result<Vec<String>> {
        let device = Device::Cuda(gpu.device.clone());
        let mut rng = StdRng::seed_from_u64(7);
        let mut wrong = Vec::new();
        for [n, k] in [[96, 512], [33, 4096]] {
            let (weights, numbers) = weights(&device, format, [n, k], &mut rng)?;
            let Some(layer) = of_candle(&weights) else { return Ok(wrong) };
            let layer = layer?;
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                for shape in [vec![1, k], vec![2, k], vec![2, 4, k], vec![9, k], vec![3, 11, k], vec![130, k]] {
                    let x = Tensor::randn(0f32, 1f32, shape.as_slice(), &device)?.to_dtype(dtype)?;
                    let before = interpose::stats();
                    let y = layer.forward(&x)?;
                    let since = interpose::stats().since(&before);
                    let error = worst(&x, &numbers, &y)?;
                    // Rounded weights, activations and results.
                    let most = 2f64.powi(-8) * if dtype == DType::F32 { 1.0 } else { 1.5 };
                    if error > most || (since.gguf, since.failed) != (1, 0) || y.dtype() != dtype {
                        wrong.push(format!("{shape:?} x {n} in {dtype:?}: {error:.2e}, counts {since:?}"));
                    }
                }
            }
        }
        Ok(wrong)
    };
    match run().map_err(|error| error.to_string())? {
        wrong if wrong.is_empty() => Ok(()),
        wrong => Err(wrong.join("\n")),
    }
}

/// candle shares a scratch buffer among threads.
#[cfg(feature = "interpose-kernels")]
fn on_many_threads(gpu: &Gpu) -> std::result::Result<(), String> {
    let run = |seed: u64| -> Result<f64> {
        let device = Device::Cuda(gpu.device.clone());
        let mut rng = StdRng::seed_from_u64(seed);
        let (weights, numbers) = weights(&device, Format::Q4K, [64, 512], &mut rng)?;
        let layer = of_candle(&weights).ok_or_else(|| Error::Msg("candle has q4k".into()))??;
        let mut error = 0.0f64;
        for m in [1, 8, 9, 40].into_iter().cycle().take(40) {
            let x: Vec<f32> = (0..m * 512).map(|_| rng.random_range(-1.0..1.0)).collect();
            let x = Tensor::from_vec(x, (m, 512), &device)?;
            error = error.max(worst(&x, &numbers, &layer.forward(&x)?)?);
        }
        Ok(error)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || run(seed))).collect();
        for thread in threads {
            let error = thread.join().map_err(|_| "a thread panicked")?.map_err(|error| error.to_string())?;
            if error > 2f64.powi(-8) {
                return Err(format!("off by {error:.2e}"));
            }
        }
        Ok(())
    })
}

/// A product whose activations nobody quantised is counted, and its result is NaN.
#[cfg(feature = "interpose-kernels")]
fn failures(gpu: &Gpu) -> std::result::Result<(), String> {
    let stream = gpu.device.cuda_stream();
    let d = stream.clone_htod(&vec![1f32; 2 * 16 + 8]).map_err(|e| e.to_string())?;
    let at = d.device_ptr(&stream).0;
    let before = interpose::stats();
    // SAFETY: the definition looks for the activations before any pointer is read, and fills 2 x 16 numbers of D.
    unsafe {
        ffi::launch_mmvq_gguf_q4_k_f32_plain(null(), 0x10 as _, at as _, 256, 16, 8, 16, 2, stream.cu_stream().cast());
        ffi::launch_mmq_quantize_q8_1_DS4(null(), 0x10 as _, 0x20 as _, 0, 256, 256, 0, 0, 256, 2, 1, 1, null_mut());
        let [none, stream] = [null_mut(), stream.cu_stream().cast()];
        ffi::launch_mmq_gguf_q4_k(none, null(), 0x20 as _, at as _, 256, 16, 2, 1, 16, 900, 1, 1, 32, stream);
    }
    let got = stream.clone_dtoh(&d).map_err(|e| e.to_string())?;
    let since = interpose::stats().since(&before);
    let is_right = got[..32].iter().all(|x| x.is_nan()) && got[32..].iter().all(|x| *x == 1.0);
    match (is_right, since.gguf, since.failed) {
        (true, 0, 2) => Ok(()),
        other => Err(format!("NaN and nothing else, calls on our kernels, failed calls: {other:?}")),
    }
}
