//! Experts that are not in the weights, such as those of other GPUs: their rows are zeros and add nothing, whatever memory held before.

use crate::device::Gpu;
use crate::experts::{config, difference, layer_on, layer_weights, Layer};
use crate::Test;
use candle::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle::{DType, Device, Result, Tensor};
use candle_nn::Activation::{Relu, Silu};
use candle_tilegemm::nn::moe::{moe_gemm, Routing};
use candle_tilegemm::problem::Gate;
use candle_tilegemm::{Activation, GroupedGemm};

pub fn tests() -> Vec<(String, Test)> {
    let of = |name: &str, run: fn(&Gpu) -> std::result::Result<(), String>| (name.to_string(), Box::new(run) as Test);
    let mut tests = vec![of("experts_elsewhere_of_the_layer", |gpu| listed(gpu, moe_gemm).map_err(text))];
    #[cfg(feature = "interpose-kernels")]
    tests.push(of("experts_elsewhere_of_candles_layer", |gpu| listed(gpu, candle_nn::moe::moe_gemm).map_err(text)));
    tests.extend([
        of("experts_elsewhere_of_groups", |gpu| grouped(gpu).map_err(text)),
        of("experts_elsewhere_of_the_fused_layer", |gpu| fused(gpu).map_err(text)),
        of("experts_elsewhere_in_a_graph", in_a_graph),
    ]);
    tests
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Which pairs have an expert that does not exist.
#[derive(Debug, Clone, Copy)]
enum Elsewhere {
    /// Two of three.
    Some,
    /// All but the last pair.
    AllButOne,
    All,
}

const ALL: [Elsewhere; 3] = [Elsewhere::Some, Elsewhere::AllButOne, Elsewhere::All];

/// The experts of `count` pairs, of which `experts` exist.
fn chosen(count: usize, experts: usize, elsewhere: Elsewhere) -> Vec<u32> {
    let is_elsewhere = |pair: usize| match elsewhere {
        Elsewhere::Some => !pair.is_multiple_of(3),
        Elsewhere::AllButOne => pair + 1 < count,
        Elsewhere::All => true,
    };
    let experts = experts as u32;
    let none = [experts, experts + 1, u32::MAX, 1 << 31, u32::MAX - 1];
    let of =
        |pair: usize| if is_elsewhere(pair) { none[pair % 5] } else { (7 * pair as u32 + pair as u32 / 5) % experts };
    (0..count).map(of).collect()
}

/// The factor of each pair: NaN where the expert does not exist.
fn factors(chosen: &[u32], experts: usize) -> Vec<f32> {
    let of =
        |(pair, expert): (usize, &u32)| if *expert < experts as u32 { 0.1 + (pair % 9) as f32 / 8.0 } else { f32::NAN };
    chosen.iter().enumerate().map(of).collect()
}

/// Leaves NaN in the memory that the next allocations of up to `count` numbers of 32 bits get.
pub fn poison(device: &Device, count: usize) -> Result<()> {
    let all = [1, 1, 2, 4].map(|part| Tensor::full(f32::NAN, count.div_ceil(part).max(1), device));
    all.into_iter().collect::<Result<Vec<_>>>()?;
    device.synchronize()
}

/// Products by lists of pairs sorted by expert.
fn listed(gpu: &Gpu, layer: Layer) -> Result<()> {
    let device = Device::Cuda(gpu.device.clone());
    let up = |t: &Tensor| t.to_device(&device);
    for (dtype, tolerance) in [(DType::BF16, 8e-3), (DType::F16, 1e-3)] {
        for [tokens, top_k, experts, n, k] in [
            [1, 8, 16, 64, 128],
            [7, 3, 16, 136, 72],
            [300, 4, 8, 520, 264],
            [700, 8, 128, 256, 64],
            [40, 2, 60, 30, 33],
        ] {
            for elsewhere in ALL {
                let m = tokens * top_k;
                let chosen = chosen(m, experts, elsewhere);
                let mut list: Vec<(u32, u32)> = chosen.iter().copied().zip(0..).collect();
                list.sort_unstable();
                let column = |of: fn(&(u32, u32)) -> u32| Tensor::from_iter(list.iter().map(of), &Device::Cpu);
                let (groups, pairs) = (column(|row| row.0)?, column(|row| row.1)?);
                let scales = Tensor::from_vec(factors(&chosen, experts), m, &Device::Cpu)?;
                let w = Tensor::randn(0f32, 1f32, (experts, n, k), &Device::Cpu)?.to_dtype(dtype)?;
                for scales in [None, Some(scales)] {
                    let rows = if scales.is_some() { m } else { tokens };
                    let x = Tensor::randn(0f32, 1f32, (rows, k), &Device::Cpu)?.to_dtype(dtype)?;
                    let expected = moe_gemm(&x, &w, &scales, &pairs, &groups, top_k, true)?;
                    let on_gpu = scales.as_ref().map(up).transpose()?;
                    let operands = [up(&x)?, up(&w)?, up(&pairs)?, up(&groups)?];
                    let [x, w, pairs, groups] = &operands;
                    poison(&device, m * n)?;
                    let got = layer(x, w, &on_gpu, pairs, groups, top_k, true)?;
                    let worst = difference(&got, &expected)?;
                    if worst.is_nan() || worst > tolerance {
                        let scaled = scales.is_some();
                        candle::bail!("{tokens} tokens, {top_k} of {experts}, {n} x {k}, {dtype:?}, {elsewhere:?}, scaled {scaled}: off by {worst}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// Plain and gated products by lists of `Routing`, of activations that are NaN where the expert does not exist, and groups with rows before the first.
fn grouped(gpu: &Gpu) -> Result<()> {
    let device = Device::Cuda(gpu.device.clone());
    let up = |t: &Tensor| t.to_device(&device);
    let mut tried = 0;
    for (dtype, tolerance) in [(DType::BF16, 1e-2), (DType::F16, 2e-3), (DType::F32, 1e-5)] {
        for [tokens, top_k, experts, n, k] in [[2, 8, 32, 64, 96], [90, 3, 8, 144, 72], [1000, 2, 4, 96, 40]] {
            for elsewhere in ALL {
                let m = tokens * top_k;
                let chosen = chosen(m, experts, elsewhere);
                let weights = factors(&chosen, experts);
                // Rows of pairs without an expert are NaN.
                let odd: Vec<f32> = weights.iter().map(|weight| 0.0 * weight).collect();
                let x = (Tensor::randn(0f32, 1f32, (m, k), &Device::Cpu)?.broadcast_add(&Tensor::from_vec(
                    odd,
                    (m, 1),
                    &Device::Cpu,
                )?))?
                .to_dtype(dtype)?;
                let w = Tensor::randn(0f32, 1f32, (experts, n, k), &Device::Cpu)?.to_dtype(dtype)?;
                let (chosen, weights) = (
                    Tensor::from_vec(chosen, (tokens, top_k), &Device::Cpu)?,
                    Tensor::from_vec(weights, (tokens, top_k), &Device::Cpu)?,
                );
                let there = Routing::new(experts, &up(&chosen)?, &up(&weights)?)?;
                let here = Routing::new(experts, &chosen, &weights)?;
                let (on_gpu, w_on_gpu) = (up(&x)?, up(&w)?);
                for gate in
                    [None, Some((Gate::Halves, Activation::Silu)), Some((Gate::Interleaved, Activation::GeluErf))]
                {
                    let product = |routing: &Routing| match gate {
                        Some((gate, activation)) => routing.by_pairs().gate(gate, activation),
                        None => routing.by_pairs(),
                    };
                    let expected = product(&here).forward(&x, &w)?;
                    poison(&device, m * n)?;
                    let got = product(&there).forward(&on_gpu, &w_on_gpu)?;
                    let worst = difference(&got, &expected)?;
                    if worst.is_nan() || worst > tolerance {
                        candle::bail!("{tokens} tokens, {top_k} of {experts}, {n} x {k}, {dtype:?}, {elsewhere:?}, {gate:?}: off by {worst}");
                    }
                    tried += 1;
                }
            }
        }
    }
    // Rows before the first group, and behind the last.
    let x = Tensor::randn(0f32, 1f32, (600, 64), &device)?.to_dtype(DType::BF16)?;
    let w = Tensor::randn(0f32, 1f32, (3, 72, 64), &device)?.to_dtype(DType::BF16)?;
    let first_row = Tensor::new(&[150u32, 150, 160, 170], &device)?;
    poison(&device, 600 * 72)?;
    let y = GroupedGemm::by_first_row(&first_row).forward(&x, &w)?.to_dtype(DType::F32)?.abs()?.sum(1)?;
    for (row, sum) in y.to_vec1::<f32>()?.into_iter().enumerate() {
        if (sum == 0.0) == (150..170).contains(&row) || sum.is_nan() {
            candle::bail!("row {row} of 600, of which 150 to 169 have groups: the sum of |y| is {sum}");
        }
    }
    match tried {
        81 => Ok(()),
        _ => candle::bail!("{tried} comparisons"),
    }
}

/// The weighted sum is that of the experts that exist.
fn fused(gpu: &Gpu) -> Result<()> {
    let device = Device::Cuda(gpu.device.clone());
    for (dtype, tolerance) in [(DType::BF16, 1e-2), (DType::F16, 2e-3), (DType::F32, 1e-5)] {
        // The last sizes have no fast kernel.
        for (tokens, sizes) in
            [(1, [128, 8, 256, 96]), (9, [8, 2, 128, 64]), (400, [16, 4, 264, 136]), (33, [6, 2, 60, 30])]
        {
            let cfg = config(sizes, if sizes[0] == 6 { Relu } else { Silu });
            let [experts, top_k, hidden, inner] = sizes;
            let weights = layer_weights(&cfg, dtype)?;
            let x = Tensor::randn(0f32, 1f32, (tokens, hidden), &Device::Cpu)?.to_dtype(dtype)?;
            for elsewhere in ALL {
                let chosen = chosen(tokens * top_k, experts, elsewhere);
                let factors = Tensor::from_vec(factors(&chosen, experts), (tokens, top_k), &Device::Cpu)?;
                let chosen = Tensor::from_vec(chosen, (tokens, top_k), &Device::Cpu)?;
                let expected = layer_on(&weights, &cfg, &Device::Cpu, DType::F32)?
                    .forward_routed(&x.to_dtype(DType::F32)?, &Routing::new(experts, &chosen, &factors)?)?;
                let layer = layer_on(&weights, &cfg, &device, dtype)?;
                let routing = Routing::new(experts, &chosen.to_device(&device)?, &factors.to_device(&device)?)?;
                let on_gpu = x.to_device(&device)?;
                poison(&device, tokens * top_k * hidden.max(2 * inner))?;
                let worst = difference(&layer.forward_routed(&on_gpu, &routing)?, &expected)?;
                if worst.is_nan() || worst > tolerance {
                    candle::bail!("{tokens} tokens, {sizes:?}, {dtype:?}, {elsewhere:?}: off by {worst}");
                }
            }
        }
    }
    Ok(())
}

/// A graph of routing and layer leaves out the experts that do not exist when the graph runs.
fn in_a_graph(gpu: &Gpu) -> std::result::Result<(), String> {
    let device = Device::Cuda(gpu.device.clone());
    let stream = gpu.device.cuda_stream();
    let [experts, top_k] = [16, 4];
    let cfg = config([experts, top_k, 256, 128], Silu);
    let weights = layer_weights(&cfg, DType::BF16).map_err(text)?;
    let layer = layer_on(&weights, &cfg, &device, DType::BF16).map_err(text)?;
    for tokens in [3, 100] {
        let run = || -> Result<()> {
            let pairs = tokens * top_k;
            let x = Tensor::randn(0f32, 1f32, (tokens, 256), &device)?.to_dtype(DType::BF16)?;
            let all: Vec<u32> = (0..pairs as u32).map(|pair| pair % experts as u32).collect();
            let list = |list: &[u32]| -> Result<[Tensor; 2]> {
                let shape = (tokens, top_k);
                let factors = Tensor::from_vec(factors(list, experts), shape, &device)?;
                Ok([Tensor::from_slice(list, shape, &device)?, factors])
            };
            let [of_tokens, factors] = list(&all)?;
            let forward =
                |chosen: &Tensor, factors: &Tensor| layer.forward_routed(&x, &Routing::new(experts, chosen, factors)?);
            forward(&of_tokens, &factors)?; // loads modules
            stream.synchronize().map_err(candle::Error::wrap)?;
            let begun = stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
            begun.map_err(candle::Error::wrap)?;
            let y = forward(&of_tokens, &factors);
            let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            let (y, graph) = (y?, graph.map_err(candle::Error::wrap)?);
            let graph = graph.ok_or_else(|| candle::Error::msg("nothing was captured"))?;
            let lists = ALL.map(|elsewhere| chosen(pairs, experts, elsewhere));
            for (turn, numbers) in [&all, &lists[0], &lists[2], &lists[1], &all].into_iter().enumerate() {
                let [new, new_factors] = list(numbers)?;
                of_tokens.slice_set(&new, 0, 0)?;
                factors.slice_set(&new_factors, 0, 0)?;
                graph.launch().map_err(candle::Error::wrap)?;
                let bits = |t: &Tensor| t.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>();
                let (got, expected) = (bits(&y)?, bits(&forward(&new, &new_factors)?)?);
                let none = turn == 2 && got.iter().any(|x| *x != 0.0);
                if got != expected || got.iter().any(|x| x.is_nan()) || none {
                    candle::bail!("{tokens} tokens, replay {turn}: the graph's result is another than the layer's");
                }
            }
            Ok(())
        };
        run().map_err(text)?;
    }
    Ok(())
}
