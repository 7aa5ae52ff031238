//! Experts with narrow weights.

use super::{of_size, QUANTIZERS};
use crate::into::products::{exact, randn, same, unit};
use candle::{bail, DType, Device, Result, Tensor};
use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg, Routing};
use candle_tilegemm::nn::narrow::{ExpertGate, Granularity, QuantWeight, Quantizer};
use candle_tilegemm::nn::{GateFunction, QuantExperts};
use candle_tilegemm::problem::Gate;

/// Experts, against those on the CPU: their biases and gates, orders of columns, experts that are elsewhere, and factors that two experts share.
pub fn experts(device: &Device) -> Result<()> {
    let [count, hidden, inner, tokens] = [4, 64, 32, 9];
    let clamped = ExpertGate::Clamped { alpha: 1.702, limit: 7.0 };
    let silu = ExpertGate::Function(GateFunction::SwiGlu);
    let logits = randn(&[tokens, count], DType::F32, device)?;
    let routing = Routing::by_logits(&logits, 2, true)?;
    // No expert has all of these tokens, one expert has none, and one is elsewhere.
    let chosen: Vec<u32> =
        (0..tokens as u32).flat_map(|token| [token % 2, [3, u32::MAX][token as usize % 2]]).collect();
    let chosen = Tensor::from_vec(chosen, (tokens, 2), device)?;
    let given = Routing::new(count, &chosen, &Tensor::full(0.5f32, (tokens, 2), device)?)?;
    for (i, to) in QUANTIZERS.into_iter().chain([Quantizer::Fp8(Granularity::Block([48, 32]))]).enumerate() {
        let weight = |n: usize, k: usize| -> Result<QuantWeight> {
            QuantWeight::quantize(&randn(&[n, k], DType::F32, &Device::Cpu)?.affine(0.2, 0.0)?, to)
        };
        let bias = |n: usize| randn(&[count, n], DType::F32, &Device::Cpu);
        let biases = if i % 2 == 0 { [Some(bias(2 * inner)?), Some(bias(hidden)?)] } else { [None, None] };
        let (places, gate) = if i % 3 == 0 { (Gate::Interleaved, clamped) } else { (Gate::Halves, silu) };
        let weights = [weight(count * 2 * inner, hidden)?, weight(count * hidden, inner)?];
        let on_cpu = QuantExperts::new([count, hidden, inner], weights, biases, places, gate)?;
        let there = on_cpu.to_device(device)?;
        if there.weights().is_some() != device.is_cpu() || there.device_weights().is_none() != device.is_cpu() {
            bail!("{to:?}: experts on the CPU are on the host, and others are not");
        }
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let x = randn(&[tokens, hidden], dtype, device)?;
            for routing in [&routing, &given] {
                let y = there.forward(&x, routing)?;
                let [experts, shares] = [routing.experts(), routing.weights()].map(|list| list.to_device(&Device::Cpu));
                let on_host = Routing::new(count, &experts?, &shares?)?;
                let expected = exact(&on_cpu.forward(&x.to_device(&Device::Cpu)?.to_dtype(DType::F32)?, &on_host)?)?;
                let largest = expected.iter().fold(0f64, |most, y| most.max(y.abs()));
                // Two products, whose numbers may be rounded to 16 bits.
                let off = unit(dtype) * 1.1 + if device.is_cpu() { 1e-5 } else { 2f64.powi(-7) };
                let got = exact(&y)?;
                let is_off = |(x, y): (&f64, &f64)| x.is_nan() || (x - y).abs() > off * largest;
                if let Some(at) = got.iter().zip(&expected).position(is_off) {
                    bail!("{to:?} in {dtype:?}: number {at} is {}, expected {}", got[at], expected[at]);
                }
            }
        }
    }
    Ok(())
}

/// A layer with so many experts, hidden and inner numbers, of which a token has two.
pub fn two_of([count, hidden, inner]: [usize; 3]) -> MoeCfg {
    MoeCfg {
        hidden_size: hidden,
        num_experts: count,
        num_experts_per_tok: 2,
        moe_intermediate_size: inner,
        norm_topk_prob: true,
        act: candle_nn::Activation::Silu,
        decoder_sparse_step: None,
    }
}

/// A layer of experts with a router is the experts for its choice, also into a tensor that exists.
pub fn layer_of_experts(device: &Device) -> Result<()> {
    let [count, hidden, inner] = [4, 64, 32];
    let weight = |n: usize, k: usize| -> Result<QuantWeight> {
        QuantWeight::quantize(&randn(&[n, k], DType::F32, &Device::Cpu)?.affine(0.2, 0.0)?, Quantizer::Mxfp4)
    };
    let weights = [weight(count * 2 * inner, hidden)?, weight(count * hidden, inner)?];
    let gate = ExpertGate::Function(GateFunction::SwiGlu);
    let plain = QuantExperts::new([count, hidden, inner], weights.clone(), [None, None], Gate::Halves, gate)?;
    let bias = |n: usize| randn(&[count, n], DType::F32, &Device::Cpu);
    let (biases, gate) =
        ([Some(bias(2 * inner)?), Some(bias(hidden)?)], ExpertGate::Clamped { alpha: 1.702, limit: 1.5 });
    let clamped = QuantExperts::new([count, hidden, inner], weights, biases, Gate::Interleaved, gate)?;
    let cfg = two_of([count, hidden, inner]);
    // The bias alone decides: experts 1 and 3.
    let bias = Tensor::new(&[0f32, 90.0, 0.0, 88.0], device)?;
    let cases = [(&plain, None), (&clamped, Some(&bias))];
    for (dtype, (experts, bias)) in cases.into_iter().flat_map(|case| [(DType::F32, case), (DType::BF16, case)]) {
        let router = randn(&[count, hidden], dtype, device)?;
        let mut layer = FusedMoe::from_narrow(router.clone(), experts, &cfg)?;
        if let Some(bias) = bias {
            layer = layer.with_router_bias(bias)?;
            chosen_by_bias(&layer, experts, &randn(&[5, hidden], dtype, device)?, (&router, bias))?;
        }
        let workspace = layer.workspace(40)?;
        for tokens in [1, 5, 40] {
            let what = format!("{tokens} tokens in {dtype:?}");
            let (x, c) = (randn(&[tokens, hidden], dtype, device)?, randn(&[tokens, hidden], dtype, device)?);
            let y = layer.forward(&x.unsqueeze(0)?, false)?.squeeze(0)?;
            let out = y.zeros_like()?;
            layer.forward_into(&x, &workspace, &out)?;
            same(&what, &out, &y)?;
            let added = layer.forward_residual(&x.unsqueeze(0)?, &c.unsqueeze(0)?)?.squeeze(0)?;
            let place = c.copy()?;
            layer.forward_residual_into(&x, &place, &workspace, &place)?;
            same(&format!("{what}, in place"), &place, &added)?;
            if exact(&y)?.iter().all(|y| *y == 0.0) {
                bail!("{what}: nothing is computed");
            }
        }
    }
    Ok(())
}

/// The layer gives what its experts give for logits with the bias.
fn chosen_by_bias(
    layer: &FusedMoe,
    experts: &QuantExperts,
    x: &Tensor,
    (router, bias): (&Tensor, &Tensor),
) -> Result<()> {
    let logits = x.to_dtype(DType::F32)?.matmul(&router.to_dtype(DType::F32)?.t()?)?.broadcast_add(bias)?;
    let routing = Routing::by_logits(&logits, 2, true)?;
    let mut chosen = routing.experts().flatten_all()?.to_vec1::<u32>()?;
    chosen.sort_unstable();
    if chosen != [[1; 5], [3; 5]].concat() {
        bail!("experts {chosen:?}; the bias asks for 1 and 3");
    }
    let expected = experts.to_device(x.device())?.forward(x, &routing)?;
    let (got, expected) = (exact(&layer.forward(&x.unsqueeze(0)?, false)?)?, exact(&expected)?);
    let largest = expected.iter().fold(0f64, |most, y| most.max(y.abs()));
    let is_off = |(x, y): (&f64, &f64)| x.is_nan() || (x - y).abs() > 2f64.powi(-6) * largest;
    match got.iter().zip(&expected).position(is_off) {
        Some(at) => bail!("a router with a bias: number {at} is {}, expected {}", got[at], expected[at]),
        None => Ok(()),
    }
}

/// Clamped gates of numbers at and beyond the limit, infinities and NaN: what is gated is the bias, an expert for each pair.
pub fn clamped_gates(device: &Device) -> Result<()> {
    const INF: f32 = f32::INFINITY;
    let numbers = [-INF, -100.0, -7.5, -1.0, 0.0, 0.5, 6.9, 7.0, 7.1, 90.0, INF, f32::NAN];
    let pairs: Vec<[f32; 2]> = numbers.iter().flat_map(|gate| numbers.map(|up| [*gate, up])).collect();
    let (count, hidden, inner) = (pairs.len(), 32, 32);
    let weight = |n: usize, k: usize, number: f32| {
        QuantWeight::quantize(&Tensor::full(number, (n, k), &Device::Cpu)?, Quantizer::Mxfp4)
    };
    // The mean of equal numbers.
    let weights = [weight(count * 2 * inner, hidden, 0.0)?, weight(count * hidden, inner, 1.0 / 32.0)?];
    let gate = ExpertGate::Clamped { alpha: 1.702, limit: 7.0 };
    for places in [Gate::Halves, Gate::Interleaved] {
        let of = |[gate, up]: &[f32; 2]| match places {
            Gate::Interleaved => [*gate, *up].repeat(32),
            _ => [[*gate; 32], [*up; 32]].concat(),
        };
        let bias = Tensor::from_vec(pairs.iter().flat_map(of).collect::<Vec<f32>>(), (count, 2 * inner), &Device::Cpu)?;
        let experts = QuantExperts::new([count, hidden, inner], weights.clone(), [Some(bias), None], places, gate)?;
        let experts = experts.to_device(device)?;
        let chosen = Tensor::arange(0u32, count as u32, device)?.unsqueeze(1)?;
        let routing = Routing::new(count, &chosen, &Tensor::ones((count, 1), DType::F32, device)?)?;
        let got = exact(&experts.forward(&Tensor::ones((count, hidden), DType::F32, device)?, &routing)?)?;
        for (i, [gate, up]) in pairs.iter().enumerate() {
            let (gate, up) = (f64::from(*gate), f64::from(*up));
            // As `min` has it, but NaN stays NaN.
            let gate = if gate > 7.0 { 7.0 } else { gate };
            let steep = if gate == f64::NEG_INFINITY { 0.0 } else { gate / (1.0 + (-1.702 * gate).exp()) };
            let expected = (up.clamp(-7.0, 7.0) + 1.0) * steep;
            for x in &got[i * hidden..(i + 1) * hidden] {
                let is_near = (x - expected).abs() <= 2f64.powi(-7) * expected.abs() + 1e-30;
                if !(is_near || x.is_nan() && expected.is_nan()) {
                    bail!("{places:?}, {:?}: {x}, expected {expected}", pairs[i]);
                }
            }
        }
    }
    Ok(())
}

/// One expert that has the rows of all tokens, against sums in f64 of the numbers that its weights stand for: the others' groups are empty.
pub fn all_to_one_expert(device: &Device) -> Result<()> {
    let [count, hidden, inner, chosen] = [4, 64, 32, 2];
    for to in QUANTIZERS {
        let weight = |n: usize, k: usize| -> Result<QuantWeight> {
            QuantWeight::quantize(&randn(&[n, k], DType::F32, &Device::Cpu)?.affine(0.2, 0.0)?, to)
        };
        let weights = [weight(count * 2 * inner, hidden)?, weight(count * hidden, inner)?];
        let biases = [2 * inner, hidden].map(|n| randn(&[count, n], DType::F32, &Device::Cpu));
        let [b1, b2] = biases.each_ref().map(|bias| exact(bias.as_ref().unwrap()));
        let [w1, w2] = weights.each_ref().map(QuantWeight::dequantize);
        let biases = biases.map(Result::ok);
        let gate = ExpertGate::Function(GateFunction::SwiGlu);
        let experts = QuantExperts::new([count, hidden, inner], weights, biases, Gate::Halves, gate)?;
        let experts = experts.to_device(device)?;
        let (b1, b2) = (b1?, b2?);
        let product =
            |w: &[f32], x: &[f64], bias: f64| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>() + bias;
        let expert = |x: &[f64]| -> Vec<f64> {
            let row = |n: usize| {
                let n = chosen * 2 * inner + n;
                product(&w1[n * hidden..][..hidden], x, b1[n])
            };
            let between: Vec<f64> = (0..inner).map(|j| row(j) / (1.0 + (-row(j)).exp()) * row(inner + j)).collect();
            let rows = chosen * hidden..(chosen + 1) * hidden;
            rows.map(|n| product(&w2[n * inner..][..inner], &between, b2[n])).collect()
        };
        for (tokens, dtype) in [(1, DType::BF16), (9, DType::F32), (70, DType::BF16), (70, DType::F16)] {
            let x = randn(&[tokens, hidden], dtype, device)?;
            let all = Tensor::full(chosen as u32, (tokens, 1), device)?;
            let routing = Routing::new(count, &all, &Tensor::full(0.5f32, (tokens, 1), device)?)?;
            let got = exact(&experts.forward(&x, &routing)?)?;
            let expected: Vec<f64> = exact(&x)?.chunks(hidden).flat_map(expert).map(|y| 0.5 * y).collect();
            let largest = expected.iter().fold(0f64, |most, y| most.max(y.abs()));
            // Numbers between the products may be rounded to 16 bits.
            let off = unit(dtype) * 2.1 + 2.0 * of_size(hidden, device);
            let is_off = |(x, y): (&f64, &f64)| x.is_nan() || (x - y).abs() > off * largest;
            if let Some(at) = got.iter().zip(&expected).position(is_off) {
                bail!("{to:?}, {tokens} tokens in {dtype:?}: number {at} is {}, expected {}", got[at], expected[at]);
            }
        }
    }
    Ok(())
}
