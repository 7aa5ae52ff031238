//! Layers with narrow weights, on the CPU and on a GPU, against sums in f64 of the numbers that the weights stand for.

use crate::into::products::{exact, randn, same, unit, Within};
use candle::safetensors::BufferedSafetensors;
use candle::{bail, DType, Device, Module, Result, Tensor};
use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg, Routing};
use candle_tilegemm::nn::narrow::{Checkpoint, ExpertGate, Granularity, QuantWeight, Quantizer};
use candle_tilegemm::nn::{
    linear_quantized_no_bias, GateFunction, Linear, QuantExperts, QuantLinear, QuantizationConfig,
};
use candle_tilegemm::problem::Gate;
use candle_tilegemm::Activation;

pub const QUANTIZERS: [Quantizer; 8] = [
    Quantizer::Fp8(Granularity::Block([4, 32])),
    Quantizer::Fp8(Granularity::Tensor),
    Quantizer::Fp8(Granularity::Channel),
    Quantizer::Int4 { group: Some(32), zeros: false },
    Quantizer::Int4 { group: Some(64), zeros: true },
    Quantizer::Int4 { group: None, zeros: true },
    Quantizer::Int8 { group: None },
    Quantizer::Mxfp4,
];

#[path = "narrow_8_bits.rs"]
mod of_8_bits;

pub use of_8_bits::{eight_bits, experts_in_8_bits, gated_in_8_bits};

/// A module of a checkpoint: its config, its file, and its path.
type Stored = (&'static str, &'static [u8], &'static str);

macro_rules! stored {
    ($file:literal, $path:literal) => {
        (
            include_str!(concat!("../data/narrow/", $file, ".json")),
            include_bytes!(concat!("../data/narrow/", $file, ".safetensors")),
            $path,
        )
    };
}

/// What no quantizer makes: orders of columns, zero points of 8 bits, factors in e4m3 and one of the whole, short blocks.
const STORED: [Stored; 7] = [
    stored!("gptq-4", "reordered"),
    stored!("gptq-8", "reordered"),
    stored!("awq", "up"),
    stored!("pack-quantized", "wide_zeros"),
    stored!("nvfp4-pack-quantized", "up"),
    stored!("modelopt-nvfp4", "up"),
    stored!("fp8", "short"),
];

/// The weights of a module, and their numbers, (out, in).
fn read((config, file, path): Stored, device: &Device) -> Result<(QuantLinear, Tensor)> {
    let (config, file) = (QuantizationConfig::from_json(config)?, BufferedSafetensors::new(file.to_vec())?);
    let vb = Checkpoint::from(file).var_builder(DType::F32, device).pp(path);
    let numbers = vb.get_unchecked_dtype("expected", DType::F32)?;
    let (n, k) = numbers.dims2()?;
    Ok((linear_quantized_no_bias(k, n, &config, vb)?, numbers))
}

/// The layer's weights on the host, wherever they are.
fn on_host(layer: &QuantLinear) -> Result<QuantWeight> {
    match (layer.weight(), layer.device_weight()) {
        (Some(weight), None) if layer.device().is_cpu() => Ok(weight.clone()),
        (None, Some(weight)) if !layer.device().is_cpu() => weight.to_host(),
        _ => bail!("weights on the CPU are on the host, and those elsewhere are not"),
    }
}

/// Whether codes and numbers are the same: on a GPU the factors of weights in 8 bits may be in f32.
fn are_the_same(x: &QuantWeight, y: &QuantWeight) -> bool {
    let bits = |weight: &QuantWeight| weight.dequantize().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    x.bytes() == y.bytes() && bits(x) == bits(y)
}

/// By how much of the sum of |w x| a product may be off: on a GPU weights, and x in f32, may be rounded to 16 bits.
fn of_size(k: usize, device: &Device) -> f64 {
    let of_sums = 2f64.powi(-24) * (k as f64 + 8.0);
    of_sums + if device.is_cpu() { 0.0 } else { 2f64.powi(-8) }
}

/// Refuses numbers that are further from the epilogue of sums in f64 than they may be. `after` is the epilogue of a sum of the row and column, and how steep it is.
fn near(
    what: &str,
    y: &Tensor,
    x: &[f64],
    w: &[f64],
    k: usize,
    after: impl Fn(f64, usize) -> (f64, f64),
) -> Result<()> {
    near_by(what, y, [x, w], (k, of_size(k, y.device())), after)
}

/// The same, where a sum may be off by `of_size` of the sum of |w x|.
fn near_by(
    what: &str,
    y: &Tensor,
    [x, w]: [&[f64]; 2],
    (k, of_size): (usize, f64),
    after: impl Fn(f64, usize) -> (f64, f64),
) -> Result<()> {
    let (n, got) = (w.len() / k, exact(y)?);
    for (at, got) in got.iter().enumerate() {
        let (x, w) = (&x[at / n * k..][..k], &w[at % n * k..][..k]);
        let (sum, size) = x.iter().zip(w).fold((0.0, 0.0), |(sum, size), (x, w)| (sum + x * w, size + (x * w).abs()));
        let (expected, slope) = after(sum, at);
        let off = unit(y.dtype()) * 1.01 * expected.abs()
            + slope * of_size * size
            + 1e-6 * (1.0 + expected.abs())
            + 2f64.powi(-25);
        let is_right = match () {
            _ if expected.is_nan() => got.is_nan(),
            _ if expected.is_infinite() => *got == expected,
            _ => (got - expected).abs() <= off,
        };
        if !is_right {
            bail!("{what}: number {at} is {got}, expected {expected} within {off:e}");
        }
    }
    Ok(())
}

/// Products of a layer with these weights, with all that its output may meet.
fn products(what: &str, layer: &QuantLinear, numbers: &Tensor, device: &Device) -> Result<()> {
    let ((n, k), w) = (numbers.dims2()?, exact(numbers)?);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let bias = randn(&[n], dtype, device)?;
        let layer = QuantLinear::new(on_host(layer)?, Some(bias.clone()))?.with_activation(Activation::Silu);
        // Rows of one and several numbers, neither dense nor of rank 2, and many.
        let turned = randn(&[2, k, 3], dtype, device)?.transpose(1, 2)?;
        for x in [randn(&[1, k], dtype, device)?, turned, randn(&[130, k], dtype, device)?] {
            let shape = [&x.dims()[..x.rank() - 1], &[n]].concat();
            let what = format!("{what}, {:?} in {dtype:?}", x.dims());
            let c = randn(&shape, dtype, device)?;
            let ([x_numbers, b], of_c) = ([exact(&x.contiguous()?)?, exact(&bias)?], exact(&c)?);
            let silu = |sum: f64, at: usize| Activation::Silu.apply(sum + b[at % n]);
            let y = layer.forward(&x)?;
            if y.dims() != shape || y.dtype() != dtype {
                bail!("{what}: the result is {:?} {:?}", y.dtype(), y.dims());
            }
            near(&what, &y, &x_numbers, &w, k, |sum, at| (silu(sum, at), 1.1))?;
            let added = layer.forward_residual(&x, &c)?;
            near(&format!("{what}, residual"), &added, &x_numbers, &w, k, |sum, at| (silu(sum, at) + of_c[at], 1.1))?;
            let gated = layer.forward_gated(&x, &c)?;
            let by = |sum: f64, at: usize| (silu(sum, at) * of_c[at], 1.1 * of_c[at].abs());
            near(&format!("{what}, gated"), &gated, &x_numbers, &w, k, by)?;
        }
    }
    Ok(())
}

/// Every format, with bias, activation, residual and gate.
pub fn layers(device: &Device) -> Result<()> {
    for (i, to) in QUANTIZERS.into_iter().enumerate() {
        let [n, k] = [[11, 70], [72, 320], [129, 96]][i % 3];
        let weight = randn(&[n, k], DType::F32, device)?.affine(0.2, 0.0)?;
        let layer = QuantLinear::quantize(&weight, None, to)?;
        let host = on_host(&layer)?;
        if !are_the_same(&host, &QuantWeight::quantize(&weight, to)?) {
            bail!("{to:?}: weights that are read back are others");
        }
        products(&format!("{to:?}"), &layer, &host.to_tensor()?, device)?;
    }
    for stored in STORED {
        let (layer, numbers) = read(stored, device)?;
        let of_host = on_host(&layer)?.to_tensor()?;
        same(stored.2, &of_host, &numbers)?;
        products(stored.2, &layer, &numbers, device)?;
    }
    Ok(())
}

/// A product of x, what its output meets, and the result.
type Product = fn(&QuantLinear, &Tensor, &Tensor, &Tensor) -> Result<()>;

/// Products into tensors that exist: the bits of `forward` where they are dense, and nothing beside the result is written.
pub fn into(device: &Device) -> Result<()> {
    let [n, k] = [72, 160];
    let weight = randn(&[n, k], DType::F32, device)?.affine(0.2, 0.0)?;
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let bias = randn(&[n], dtype, device)?;
        let narrow = [
            Quantizer::Mxfp4,
            Quantizer::Int4 { group: Some(32), zeros: true },
            Quantizer::Fp8(Granularity::Block([128, 128])),
        ];
        let narrow = narrow.map(|to| QuantLinear::quantize(&weight, Some(bias.clone()), to));
        let plain = QuantLinear::from(Linear::new(weight.to_dtype(dtype)?, Some(bias.clone())));
        for (i, layer) in narrow.into_iter().chain([Ok(plain)]).enumerate() {
            let layer = layer?.with_activation(Activation::Silu);
            for rows in [1, 3, 40] {
                let what = format!("layer {i}, {rows} rows in {dtype:?}");
                let (x, c) = (randn(&[rows, k], dtype, device)?, randn(&[rows, n], dtype, device)?);
                let (out, expected) = (c.zeros_like()?, layer.forward(&x)?);
                layer.forward_into(&x, &out)?;
                same(&what, &out, &expected)?;
                layer.forward_residual_into(&x, &c, &out)?;
                let added = layer.forward_residual(&x, &c)?;
                same(&format!("{what}, residual"), &out, &added)?;
                layer.forward_gated_into(&x, &c, &out)?;
                let gated = layer.forward_gated(&x, &c)?;
                same(&format!("{what}, gated"), &out, &gated)?;
                for (words, expected, product) in [
                    ("residual in place", &added, QuantLinear::forward_residual_into as Product),
                    ("gated in place", &gated, QuantLinear::forward_gated_into),
                ] {
                    let place = c.copy()?;
                    product(&layer, &x, &place, &place)?;
                    another_way(&format!("{what}, {words}"), &place, expected, k)?;
                }
                let within = Within::new(rows, n, 8, dtype, device)?;
                layer.forward_into(&x, &within.inside()?)?;
                another_way(&format!("{what}, columns of a wider matrix"), &within.inside()?, &expected, k)?;
                within.untouched(&what)?;
            }
        }
    }
    Ok(())
}

/// Refuses a result that is further from another than another kernel's may be.
fn another_way(what: &str, got: &Tensor, expected: &Tensor, k: usize) -> Result<()> {
    let dtype = got.dtype();
    // x has a deviation of 1, and weights of 0.2: |w x| is some 0.13 k in sum, and what it is multiplied by some 4 at most.
    let off = of_size(k, got.device()) * 0.2 * k as f64 * 5.0 + 1e-5;
    let (got, expected) = (exact(got)?, exact(expected)?);
    let is_off = |(x, y): (&f64, &f64)| (x - y).abs() > 2.1 * unit(dtype) * y.abs() + off || x.is_nan();
    match got.iter().zip(&expected).position(is_off) {
        Some(at) => bail!("{what}: number {at} is {}, expected {} within {off:e}", got[at], expected[at]),
        None => Ok(()),
    }
}

/// What IEEE 754 says of codes, factors and activations that are not finite, and of no rows.
pub fn not_finite(device: &Device) -> Result<()> {
    let codes: Vec<float8::F8E4M3> = [0x38u8, 0x7f, 0x38, 0x00].map(float8::F8E4M3::from_bits).to_vec();
    let weight = Tensor::from_vec(codes, (2, 2), device)?;
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let x = Tensor::new(&[[1f32, 2.], [f32::INFINITY, 1.]], device)?.to_dtype(dtype)?;
        let scale = |of: f32| Tensor::new(&[of, of], device);
        let y = exact(&QuantLinear::fp8(&weight, &scale(1.0)?, None)?.forward(&x)?)?;
        if !(y[0].is_nan() && y[1] == 1.0 && y[2].is_nan() && y[3] == f64::INFINITY) {
            bail!("{dtype:?}: {y:?}");
        }
        let y = exact(&QuantLinear::fp8(&weight, &scale(f32::INFINITY)?, None)?.forward(&x)?)?;
        if y.iter().any(|y| y.is_finite()) {
            bail!("{dtype:?}, infinite factors: {y:?}");
        }
        let none = x.narrow(0, 0, 0)?;
        let y = QuantLinear::fp8(&weight, &scale(1.0)?, None)?.forward(&none)?;
        if y.dims() != [0, 2] {
            bail!("{dtype:?}: no rows gave {:?}", y.dims());
        }
    }
    Ok(())
}

/// A layer that is moved has the same weights, and refuses x that is elsewhere.
pub fn moved(device: &Device) -> Result<()> {
    for stored in STORED {
        let (on_cpu, _) = read(stored, &Device::Cpu)?;
        let there = on_cpu.to_device(device)?;
        let back = there.to_device(&Device::Cpu)?;
        let expected = on_host(&on_cpu)?;
        for weight in [on_host(&there)?, on_host(&back)?] {
            if !are_the_same(&weight, &expected) {
                bail!("{}: the weights are others elsewhere", stored.2);
            }
        }
        let [_, k] = on_host(&on_cpu)?.shape();
        if !device.is_cpu() {
            let error = there.forward(&Tensor::zeros((1, k), DType::F32, &Device::Cpu)?).unwrap_err().to_string();
            if !error.contains("QuantLinear: x is on Cpu; expected Cuda") {
                bail!("{error}");
            }
        }
    }
    Ok(())
}

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
    let cfg = MoeCfg {
        hidden_size: hidden,
        num_experts: count,
        num_experts_per_tok: 2,
        moe_intermediate_size: inner,
        norm_topk_prob: true,
        act: candle_nn::Activation::Silu,
        decoder_sparse_step: None,
    };
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
