//! The layer of experts on the GPU, and candle's own layer on our kernels, against the layer on the CPU.

use crate::device::Gpu;
use crate::Test;
use candle::{DType, Device, Result, Tensor};
use candle_tilegemm::nn::moe::moe_gemm;
use candle_tilegemm::stats;

pub fn tests() -> Vec<(String, Test)> {
    let mut tests: Vec<(String, Test)> =
        vec![("experts_of_the_layer".into(), Box::new(|gpu| compare(gpu, moe_gemm).map_err(|e| e.to_string())))];
    #[cfg(feature = "interpose-kernels")]
    tests.extend([
        ("experts_of_candles_layer".into(), Box::new(candles_layer) as Test),
        ("experts_that_cannot_run_are_nan".into(), Box::new(failures)),
    ]);
    tests.extend([("experts_on_strided_tensors".into(), Box::new(strided) as Test)]);
    tests
}

type Layer = fn(&Tensor, &Tensor, &Option<Tensor>, &Tensor, &Tensor, usize, bool) -> Result<Tensor>;

/// Pairs sorted by expert, and their experts. Tokens choose experts with a step, so that some experts have no token.
fn routing(tokens: usize, top_k: usize, experts: u32) -> Result<(Tensor, Tensor)> {
    let expert = |pair: u32| (pair * 7 + pair / top_k as u32 * 3) % experts / 2 * 2;
    let mut list: Vec<(u32, u32)> = (0..(tokens * top_k) as u32).map(|pair| (expert(pair), pair)).collect();
    list.sort();
    let column = |of: fn(&(u32, u32)) -> u32| Tensor::from_iter(list.iter().map(of), &Device::Cpu);
    Ok((column(|row| row.1)?, column(|row| row.0)?))
}

/// The largest difference, over the largest number of the expected result.
fn difference(got: &Tensor, expected: &Tensor) -> Result<f32> {
    let wide = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F32);
    let (got, expected) = (wide(got)?, wide(expected)?);
    let most = |t: Tensor| t.abs()?.max_all()?.to_scalar::<f32>();
    Ok(most((got - &expected)?)? / most(expected)?)
}

fn compare(gpu: &Gpu, layer: Layer) -> Result<()> {
    let device = Device::Cuda(gpu.device.clone());
    let mut tried = 0;
    for (dtype, tolerance) in [(DType::BF16, 8e-3), (DType::F16, 1e-3)] {
        for (tokens, top_k, experts, n, k) in
            [(1, 2, 8, 64, 128), (7, 3, 16, 136, 72), (300, 4, 8, 520, 264), (40, 2, 60, 30, 33)]
        {
            let (pairs, groups) = routing(tokens, top_k, experts)?;
            let of_down = Tensor::rand(0.1f32, 1f32, tokens * top_k, &Device::Cpu)?;
            for scales in [None, Some(of_down)] {
                let rows = if scales.is_some() { tokens * top_k } else { tokens };
                let x = Tensor::randn(0f32, 1f32, (rows, k), &Device::Cpu)?.to_dtype(dtype)?;
                let w = Tensor::randn(0f32, 1f32, (experts as usize, n, k), &Device::Cpu)?.to_dtype(dtype)?;
                let expected = moe_gemm(&x, &w, &scales, &pairs, &groups, top_k, true)?;
                let up = |t: &Tensor| t.to_device(&device);
                let on_gpu = scales.as_ref().map(up).transpose()?;
                for is_prefill in [true, false] {
                    let got = layer(&up(&x)?, &up(&w)?, &on_gpu, &up(&pairs)?, &up(&groups)?, top_k, is_prefill)?;
                    let worst = difference(&got, &expected)?;
                    if worst.is_nan() || worst > tolerance || got.dims() != expected.dims() || got.dtype() != dtype {
                        candle::bail!("{tokens} tokens, {top_k} of {experts}, {n} x {k}, {dtype:?}: off by {worst}");
                    }
                    tried += 1;
                }
            }
        }
    }
    match tried {
        32 => Ok(()),
        _ => candle::bail!("{tried} comparisons"),
    }
}

/// Start offsets and strides, which candle's own layer ignores.
fn strided(gpu: &Gpu) -> std::result::Result<(), String> {
    let run = || -> Result<f32> {
        let device = Device::Cuda(gpu.device.clone());
        let (pairs, groups) = routing(33, 2, 8)?;
        let wide = Tensor::randn(0f32, 1f32, (35, 400), &Device::Cpu)?.to_dtype(DType::BF16)?;
        let weights = Tensor::randn(0f32, 1f32, (9, 272, 136), &Device::Cpu)?.to_dtype(DType::BF16)?;
        let part = |x: &Tensor, w: &Tensor| -> Result<(Tensor, Tensor)> {
            Ok((x.narrow(0, 2, 33)?.narrow(1, 128, 136)?, w.narrow(0, 1, 8)?.narrow(1, 8, 264)?))
        };
        let (x, w) = part(&wide, &weights)?;
        let expected = moe_gemm(&x, &w, &None, &pairs, &groups, 2, true)?;
        let (x, w) = part(&wide.to_device(&device)?, &weights.to_device(&device)?)?;
        let list = |t: &Tensor| Tensor::cat(&[t, t], 0)?.to_device(&device)?.narrow(0, 66, 66);
        let got = moe_gemm(&x, &w, &None, &list(&pairs)?, &list(&groups)?, 2, true)?;
        difference(&got, &expected)
    };
    let calls = || stats::gemms().iter().filter(|c| c.kernel.contains("grouped")).map(|c| c.calls).sum::<u64>();
    let before = calls();
    match run().map_err(|e| e.to_string())? {
        worst if worst <= 8e-3 && (calls() > before || gpu.info.capability != 90) => Ok(()),
        worst => Err(format!("off by {worst}, {} calls of the kernel for groups", calls() - before)),
    }
}

#[cfg(feature = "interpose-kernels")]
fn candles_layer(gpu: &Gpu) -> std::result::Result<(), String> {
    use candle_tilegemm::interpose;
    if !interpose::experts_are_active() {
        return Err("candle's calls for experts do not arrive".into());
    }
    let before = interpose::stats();
    compare(gpu, candle_nn::moe::moe_gemm).map_err(|e| e.to_string())?;
    let since = interpose::stats().since(&before);
    match (since.experts, since.failed) {
        (32, 0) => Ok(()),
        counts => Err(format!("calls on our kernels, and failed calls: {counts:?}")),
    }
}

/// A call with an unknown type is counted, and its result is NaN.
#[cfg(feature = "interpose-kernels")]
fn failures(gpu: &Gpu) -> std::result::Result<(), String> {
    use candle::cuda_backend::cudarc::driver::DevicePtr;
    use candle::cuda_backend::kernels::ffi::moe_gemm_wmma;
    use candle_tilegemm::interpose;
    let stream = gpu.device.cuda_stream();
    let d = stream.clone_htod(&vec![half::bf16::ONE; 2 * 16 + 8]).map_err(|e| e.to_string())?;
    let at = d.device_ptr(&stream).0;
    let before = interpose::stats();
    let null = std::ptr::null::<f32>();
    // SAFETY: the definition looks at the type before any pointer, and fills 2 x 16 numbers of D.
    unsafe {
        moe_gemm_wmma(
            null.cast(),
            null.cast(),
            null.cast(),
            null.cast(),
            null,
            at as _,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            4,
            2,
            2,
            16,
            8,
            7,
            false,
            stream.cu_stream() as i64,
        )
    };
    let got = stream.clone_dtoh(&d).map_err(|e| e.to_string())?;
    let since = interpose::stats().since(&before);
    let is_right = got[..32].iter().all(|x| x.is_nan()) && got[32..].iter().all(|x| *x == half::bf16::ONE);
    match (is_right, since.experts, since.failed) {
        (true, 0, 1) => Ok(()),
        other => Err(format!("NaN and nothing else, calls on our kernels, failed calls: {other:?}")),
    }
}
