//! Layers with narrow weights, on the CPU and on a GPU, against sums in f64 of the numbers that the weights stand for.

use crate::into::products::{exact, randn, same, unit, Within};
use candle::safetensors::BufferedSafetensors;
use candle::{bail, DType, Device, Module, Result, Tensor};
use candle_tilegemm::nn::narrow::{Checkpoint, Granularity, QuantWeight, Quantizer};
use candle_tilegemm::nn::{linear_quantized_no_bias, Linear, QuantLinear, QuantizationConfig};
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
#[path = "narrow_experts.rs"]
pub mod of_experts;

pub use of_8_bits::{eight_bits, experts_in_8_bits, gated_in_8_bits, special_in_8_bits};
pub use of_experts::{all_to_one_expert, clamped_gates, experts, layer_of_experts};

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

/// A result in f16 whose sum is beyond 65504 is infinite, from 65520 on, as IEEE 754 rounds; a residual that brings the sum back makes it finite, as both are rounded
/// once. A result in another type is finite.
pub fn beyond_f16(device: &Device) -> Result<()> {
    let k = 64;
    // 448 and -448, then zeros.
    let codes = |code: u8| [vec![code], vec![0; k - 1]].concat();
    let codes = [codes(0x7e), codes(0xfe)].concat().into_iter().map(float8::F8E4M3::from_bits).collect::<Vec<_>>();
    let layer = QuantLinear::fp8(&Tensor::from_vec(codes, (2, k), device)?, &Tensor::new(&[1f32], device)?, None)?;
    for rows in [1, 3, 40] {
        for (of_x, expected) in [(146.0, 65408.0), (146.25, f64::INFINITY), (1000.0, f64::INFINITY)] {
            let what = format!("{rows} rows of {of_x} by 448");
            let x = Tensor::full(of_x as f32, (rows, k), device)?.to_dtype(DType::F16)?;
            let y = exact(&layer.forward(&x)?)?;
            if y != [expected, -expected].repeat(rows) {
                bail!("{what}: {y:?}, expected {expected} and {}", -expected);
            }
            let back = Tensor::new(&[-49984f32, 49984.0], device)?.broadcast_as((rows, 2))?.to_dtype(DType::F16)?;
            let y = exact(&layer.forward_residual(&x, &back.contiguous()?)?)?;
            let sum = of_x * 448.0 - 49984.0;
            let expected = if sum > 65504.0 { f64::INFINITY } else { sum };
            if y != [expected, -expected].repeat(rows) {
                bail!("{what}, with a residual: {y:?}, expected {expected} and {}", -expected);
            }
        }
    }
    for to in QUANTIZERS {
        let layer = QuantLinear::quantize(&Tensor::full(448f32, (8, k), device)?, None, to)?;
        for (dtype, rows) in
            [DType::F16, DType::BF16, DType::F32].into_iter().flat_map(|dtype| [(dtype, 1), (dtype, 40)])
        {
            let y = exact(&layer.forward(&Tensor::full(-100f32, (rows, k), device)?.to_dtype(dtype)?)?)?;
            let is_right = |y: &f64| *y < -65504.0 && y.is_infinite() == (dtype == DType::F16);
            if !y.iter().all(is_right) {
                bail!("{to:?}, {rows} rows in {dtype:?}: {y:?}, expected some -2867200");
            }
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
