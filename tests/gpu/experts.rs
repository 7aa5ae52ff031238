//! The layer of experts on the GPU, and candle's own layer on our kernels, against the layer on the CPU.

use crate::device::Gpu;
#[cfg(feature = "gguf")]
use crate::into::products::drawn;
use crate::Test;
use candle::{DType, Device, Result, Tensor};
#[cfg(feature = "gguf")]
use candle_tilegemm::internal::blocks::ggml_type;
use candle_tilegemm::nn::moe::{moe_gemm, FusedMoe, MoeCfg, Routing};
#[cfg(feature = "gguf")]
use candle_tilegemm::nn::QWeights;
use candle_tilegemm::stats;
#[cfg(feature = "gguf")]
use candle_tilegemm::Format;

pub fn tests() -> Vec<(String, Test)> {
    let mut tests: Vec<(String, Test)> =
        vec![("experts_of_the_layer".into(), Box::new(|gpu| compare(gpu, moe_gemm).map_err(|e| e.to_string())))];
    #[cfg(feature = "interpose-kernels")]
    tests.extend([
        ("experts_of_candles_layer".into(), Box::new(candles_layer) as Test),
        ("experts_that_cannot_run_are_nan".into(), Box::new(failures)),
    ]);
    tests.extend([
        ("experts_on_strided_tensors".into(), Box::new(strided) as Test),
        ("experts_are_chosen_and_listed".into(), Box::new(|gpu| routed(gpu).map_err(|e| e.to_string()))),
        ("experts_of_the_fused_layer".into(), Box::new(|gpu| fused(gpu).map_err(|e| e.to_string()))),
        ("experts_of_the_fused_layer_in_a_graph".into(), Box::new(in_a_graph)),
    ]);
    #[cfg(feature = "gguf")]
    tests.push(("experts_in_blocks".into(), Box::new(|gpu| blocks(gpu).map_err(|e| e.to_string()))));
    tests
}

pub type Layer = fn(&Tensor, &Tensor, &Option<Tensor>, &Tensor, &Tensor, usize, bool) -> Result<Tensor>;

/// Pairs sorted by expert, and their experts. Tokens choose experts with a step, so that some experts have no token.
fn routing(tokens: usize, top_k: usize, experts: u32) -> Result<(Tensor, Tensor)> {
    let expert = |pair: u32| (pair * 7 + pair / top_k as u32 * 3) % experts / 2 * 2;
    let mut list: Vec<(u32, u32)> = (0..(tokens * top_k) as u32).map(|pair| (expert(pair), pair)).collect();
    list.sort();
    let column = |of: fn(&(u32, u32)) -> u32| Tensor::from_iter(list.iter().map(of), &Device::Cpu);
    Ok((column(|row| row.1)?, column(|row| row.0)?))
}

/// The largest difference, over the largest number of the expected result.
pub fn difference(got: &Tensor, expected: &Tensor) -> Result<f32> {
    let wide = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F32);
    let (got, expected) = (wide(got)?, wide(expected)?);
    let most = |t: Tensor| t.abs()?.max_all()?.to_scalar::<f32>();
    Ok(most((got - &expected)?)? / most(expected)?.max(f32::MIN_POSITIVE))
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

/// Choices, weights and lists on the GPU are those of the CPU.
fn routed(gpu: &Gpu) -> Result<()> {
    let device = Device::Cuda(gpu.device.clone());
    let sizes = [
        (1, 8, 128),
        (1, 1, 1),
        (3, 5, 5),
        (16, 2, 8),
        (17, 2, 8),
        (300, 8, 256),
        (2113, 8, 100),
        (700, 3, 1024),
        (20_011, 8, 128),
    ];
    for (turn, (tokens, top_k, experts)) in sizes.into_iter().enumerate() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let logits = Tensor::randn(0f32, 1f32, (tokens, experts), &Device::Cpu)?.to_dtype(dtype)?;
            // Tokens with equal logits, and with infinities and a NaN.
            let logits = match turn % 3 {
                0 => logits,
                1 => ((logits * 2.0)?.round()? / 2.0)?,
                _ => {
                    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0];
                    let row: Vec<f32> = odd.into_iter().cycle().take(experts).collect();
                    Tensor::cat(
                        &[
                            &Tensor::from_vec(row, (1, experts), &Device::Cpu)?.to_dtype(dtype)?,
                            &logits.narrow(0, 1, tokens - 1)?,
                        ],
                        0,
                    )?
                }
            };
            for normalise in [true, false] {
                let on_gpu = logits.to_device(&device)?;
                // All experts, and those of the first, a middle and the last rank.
                for part in [0..experts, 0..experts.div_ceil(2), experts / 3..experts.div_ceil(2), experts - 1..experts]
                {
                    let expected = Routing::by_logits_among(&logits, part.clone(), top_k, normalise)?;
                    let got = Routing::by_logits_among(&on_gpu, part.clone(), top_k, normalise)?;
                    same_lists(&got, &expected)?;
                    let numbers = |r: &Routing| r.weights().to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>();
                    for (got, expected) in numbers(&got)?.into_iter().zip(numbers(&expected)?) {
                        let close = (got - expected).abs() <= 1e-5 * expected.abs() + 1e-9;
                        if !(close || got.is_nan() && expected.is_nan()) {
                            candle::bail!("{tokens} tokens, {top_k} of {part:?} of {experts}, {dtype:?}: a weight is {got}, expected {expected}");
                        }
                    }
                }
            }
        }
        // Given experts, one of which does not exist; every other; none that exists.
        let count = (tokens * top_k) as u32;
        let is_elsewhere: [fn(u32, u32) -> bool; 3] = [|p, count| p == count / 2, |p, _| p % 2 == 1, |_, _| true];
        for is_elsewhere in is_elsewhere {
            let elsewhere = |p: u32| [experts as u32, 5000, u32::MAX][p as usize % 3];
            let here = |p: u32| p * 7919 % experts as u32;
            let chosen = (0..count).map(|p| if is_elsewhere(p, count) { elsewhere(p) } else { here(p) }).collect();
            let chosen = Tensor::from_vec(chosen, (tokens, top_k), &Device::Cpu)?;
            let weights = Tensor::ones((tokens, top_k), DType::F32, &Device::Cpu)?;
            let expected = Routing::new(experts, &chosen, &weights)?;
            same_lists(&Routing::new(experts, &chosen.to_device(&device)?, &weights.to_device(&device)?)?, &expected)?;
        }
    }
    Ok(())
}

pub fn same_lists(got: &Routing, expected: &Routing) -> Result<()> {
    let list = |tensor: &Tensor| tensor.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<u32>();
    let same = list(got.first_row())? == list(expected.first_row())?
        && list(got.experts())? == list(expected.experts())?
        && list(got.pairs())? == list(expected.pairs())?;
    match same {
        true => Ok(()),
        false => candle::bail!("the lists of {:?} differ from those of the CPU", expected.experts().shape()),
    }
}

pub fn config([experts, top_k, hidden, inner]: [usize; 4], act: candle_nn::Activation) -> MoeCfg {
    MoeCfg {
        hidden_size: hidden,
        num_experts: experts,
        num_experts_per_tok: top_k,
        moe_intermediate_size: inner,
        norm_topk_prob: true,
        act,
        decoder_sparse_step: None,
    }
}

/// The weights of a layer in `dtype` on the CPU: router, gates and ups, downs.
pub fn layer_weights(cfg: &MoeCfg, dtype: DType) -> Result<[Tensor; 3]> {
    let (experts, hidden, inner) = (cfg.num_experts, cfg.hidden_size, cfg.moe_intermediate_size);
    let draw =
        |shape: &[usize], k: usize| Tensor::randn(0f32, (1.0 / k as f32).sqrt(), shape, &Device::Cpu)?.to_dtype(dtype);
    Ok([
        draw(&[experts, hidden], hidden)?,
        draw(&[experts, 2 * inner, hidden], hidden)?,
        draw(&[experts, hidden, inner], inner)?,
    ])
}

pub fn layer_on(weights: &[Tensor; 3], cfg: &MoeCfg, device: &Device, dtype: DType) -> Result<FusedMoe> {
    let [router, gate_up, down] = weights;
    let up = |t: &Tensor| t.to_device(device)?.to_dtype(dtype);
    FusedMoe::from_weights(up(router)?, up(gate_up)?, up(down)?, cfg)
}

/// The fused layer against the layer on the CPU in f32, with the same experts.
fn fused(gpu: &Gpu) -> Result<()> {
    use candle_nn::Activation::{Gelu, NewGelu, Relu, Silu};
    let device = Device::Cuda(gpu.device.clone());
    for (dtype, tolerance) in [(DType::BF16, 1e-2), (DType::F16, 2e-3), (DType::F32, 1e-5)] {
        for (tokens, sizes, act) in [
            (1, [128, 8, 256, 96], Silu),
            (9, [8, 2, 128, 64], NewGelu),
            (200, [16, 4, 264, 136], Silu),
            (40, [4, 1, 72, 56], Gelu),
            (33, [6, 2, 60, 30], Relu), // no fast kernel: rows are no multiples of 16 bytes
        ] {
            let cfg = config(sizes, act);
            let weights = layer_weights(&cfg, dtype)?;
            let x = Tensor::randn(0f32, 1f32, (tokens, cfg.hidden_size), &Device::Cpu)?.to_dtype(dtype)?;
            let logits = Tensor::randn(0f32, 1f32, (tokens, cfg.num_experts), &Device::Cpu)?;
            let top_k = cfg.num_experts_per_tok;
            let expected = layer_on(&weights, &cfg, &Device::Cpu, DType::F32)?
                .forward_routed(&x.to_dtype(DType::F32)?, &Routing::by_logits(&logits, top_k, true)?)?;
            let layer = layer_on(&weights, &cfg, &device, dtype)?;
            let routing = Routing::by_logits(&logits.to_device(&device)?, top_k, true)?;
            let got = layer.forward_routed(&x.to_device(&device)?, &routing)?;
            let worst = difference(&got, &expected)?;
            if worst.is_nan() || worst > tolerance {
                candle::bail!("{tokens} tokens, {sizes:?}, {act:?}, {dtype:?}: off by {worst}");
            }
            // The whole layer, with the router.
            let x = x.to_device(&device)?.unsqueeze(0)?;
            let y = layer.forward(&x, true)?;
            if y.dims() != x.dims() || y.to_dtype(DType::F32)?.abs()?.sum_all()?.to_scalar::<f32>()?.is_nan() {
                candle::bail!("the layer's result has the shape {:?}", y.dims());
            }
        }
    }
    Ok(())
}

/// A graph of the layer's kernels routes the tokens that are there when the graph runs.
fn in_a_graph(gpu: &Gpu) -> std::result::Result<(), String> {
    use candle::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
    let text = |e: candle::Error| e.to_string();
    let device = Device::Cuda(gpu.device.clone());
    let stream = gpu.device.cuda_stream();
    let cfg = config([16, 4, 256, 128], candle_nn::Activation::Silu);
    let layer = layer_on(&layer_weights(&cfg, DType::BF16).map_err(text)?, &cfg, &device, DType::BF16).map_err(text)?;
    for tokens in [3, 100] {
        let draw = || Tensor::randn(0f32, 1f32, (1, tokens, 256), &device)?.to_dtype(DType::BF16);
        let x = draw().map_err(text)?;
        layer.forward(&x, true).map_err(text)?; // loads modules
        stream.synchronize().map_err(|e| e.to_string())?;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(|e| e.to_string())?;
        let y = layer.forward(&x, true);
        let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        let (y, graph) = (y.map_err(text)?, graph.map_err(|e| e.to_string())?.ok_or("nothing was captured")?);
        for _ in 0..3 {
            let new = draw().map_err(text)?;
            x.slice_set(&new, 0, 0).map_err(text)?;
            graph.launch().map_err(|e| e.to_string())?;
            let expected = layer.forward(&new, true).map_err(text)?;
            let bits = |t: &Tensor| t.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>();
            if bits(&y).map_err(text)? != bits(&expected).map_err(text)? {
                return Err(format!("{tokens} tokens: a graph's result is another than the layer's"));
            }
        }
    }
    Ok(())
}

/// These weights, quantised by candle; in a format that candle does not have, random blocks of the same shape.
#[cfg(feature = "gguf")]
fn in_blocks(weights: &Tensor, format: Format) -> Result<QWeights> {
    match ggml_type(format) {
        Some(format) => Ok(candle::quantized::QTensor::quantize(weights, format)?.into()),
        None => {
            let blocks = drawn::blocks(format, weights.elem_count(), 1);
            QWeights::from_bytes(format, blocks, weights.shape(), &Device::Cpu)
        }
    }
}

/// Layers with experts in blocks against the CPU's layer in f32 with the same numbers, and the functions that write where they are told to, to the bit.
#[cfg(feature = "gguf")]
fn blocks(gpu: &Gpu) -> Result<()> {
    use candle_nn::Activation::{NewGelu, Silu};
    use Format::*;
    let device = Device::Cuda(gpu.device.clone());
    // Kernels round inputs to f16 or bf16, twice in a row, and the result is rounded once.
    for (dtype, tolerance) in [(DType::BF16, 1.2e-2), (DType::F16, 1e-2), (DType::F32, 1e-2)] {
        for (tokens, sizes, formats, act) in [
            (1, [128, 8, 512, 256], [Q4K, Q4K, Q6K], Silu),
            (9, [8, 2, 256, 768], [Q4K, Q6K, Q4K], Silu), // gates and ups are two products
            (200, [16, 4, 768, 256], [Q5K, Q5K, Q8_0], NewGelu),
            (40, [4, 2, 96, 64], [Q4_0, Q4_0, Q5_1], Silu),
            (2, [32, 4, 512, 256], [MXFP4, MXFP4, MXFP4], Silu),
            (70, [16, 4, 256, 544], [MXFP4, MXFP4, IQ4_NL], Silu),
            (300, [8, 2, 256, 768], [IQ4_XS, IQ4_NL, IQ4_XS], Silu),
        ] {
            let cfg = config(sizes, act);
            let [router, gate_up, down] = layer_weights(&cfg, DType::F32)?;
            let inner = cfg.moe_intermediate_size;
            let parts = [gate_up.narrow(1, 0, inner)?, gate_up.narrow(1, inner, inner)?, down];
            let [gate, up, down] = [0, 1, 2].map(|i| in_blocks(&parts[i], formats[i]));
            let (gate, up, down) = (gate?, up?, down?);
            let back = |weights: &QWeights| weights.dequantize(&Device::Cpu);
            let dense = [router.clone(), Tensor::cat(&[back(&gate)?, back(&up)?], 1)?, back(&down)?];
            let layer =
                FusedMoe::from_qweights(router.to_device(&device)?.to_dtype(dtype)?, [&gate, &up, &down], &cfg)?
                    .detached();
            let draw = || Tensor::randn(0f32, 1f32, (tokens, cfg.hidden_size), &Device::Cpu)?.to_dtype(dtype);
            let (x, residual) = (draw()?, draw()?);
            let logits = Tensor::randn(0f32, 1f32, (tokens, cfg.num_experts), &Device::Cpu)?;
            let top_k = cfg.num_experts_per_tok;
            let expected = layer_on(&dense, &cfg, &Device::Cpu, DType::F32)?
                .forward_routed(&x.to_dtype(DType::F32)?, &Routing::by_logits(&logits, top_k, true)?)?;
            let routing = Routing::by_logits(&logits.to_device(&device)?, top_k, true)?;
            let got = layer.forward_routed(&x.to_device(&device)?, &routing)?;
            let worst = difference(&got, &expected)?;
            if worst.is_nan() || worst > tolerance || got.dtype() != dtype {
                candle::bail!("{tokens} tokens, {sizes:?}, {formats:?}, {dtype:?}: off by {worst}");
            }
            // With the router, a residual and a workspace for more tokens.
            let (x, residual) = (x.to_device(&device)?, residual.to_device(&device)?);
            let (workspace, out) = (layer.workspace(tokens + 3)?, x.zeros_like()?);
            layer.forward_residual_into(&x, &residual, &workspace, &out)?;
            let whole = layer.forward_residual(&x.unsqueeze(0)?, &residual.unsqueeze(0)?)?.squeeze(0)?;
            let plain = (layer.forward(&x.unsqueeze(0)?, false)?.squeeze(0)? + &residual)?;
            let bits = |t: &Tensor| t.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>();
            if bits(&out)? != bits(&whole)? || difference(&whole, &plain)? > 1e-2 {
                candle::bail!(
                    "{tokens} tokens, {sizes:?}, {formats:?}, {dtype:?}: results in place, or with a residual"
                );
            }
        }
    }
    Ok(())
}
