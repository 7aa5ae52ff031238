//! Layers whose activations are in 8 bits.

use super::{near, near_by, of_size, on_host};
use crate::into::products::{exact, randn, same};
use candle::{bail, DType, Device, Module, Result, Tensor};
use candle_tilegemm::nn::moe::Routing;
use candle_tilegemm::nn::narrow::{Activations, ExpertGate, Granularity, QuantWeight, Quantizer};
use candle_tilegemm::nn::{gate, GateFunction, GatedMlp, QuantExperts, QuantLinear};
use candle_tilegemm::problem::Gate;
use candle_tilegemm::Activation;

/// x in 8 bits and back: rows, or 128 numbers of one, share the factor that makes the largest of them the largest code.
fn in_8_bits(x: &[f64], k: usize, block: usize, is_int8: bool) -> Vec<f64> {
    let round = |numbers: &[f64]| -> Vec<f64> {
        let largest = numbers.iter().fold(0f32, |largest, x| largest.max(x.abs() as f32));
        let factor = if largest == 0.0 { 1.0 } else { largest / if is_int8 { 127.0 } else { 448.0 } };
        let code = |x: &f64| match (*x as f32) / factor {
            code if is_int8 => f64::from(code.round_ties_even()),
            code => float8::F8E4M3::from_f32(code).to_f64(),
        };
        numbers.iter().map(|x| code(x) * f64::from(factor)).collect()
    };
    x.chunks(k).flat_map(|row| row.chunks(block).flat_map(round).collect::<Vec<_>>()).collect()
}

/// Layers whose activations a config has in 8 bits: with every factor that goes with them, and with weights that take none. `rounds`: whether the device has such
/// products; others multiply by x as it comes.
pub fn eight_bits(device: &Device, rounds: bool) -> Result<()> {
    let block = |rows, columns| Quantizer::Fp8(Granularity::Block([rows, columns]));
    for (i, (to, shared)) in [
        (Quantizer::Fp8(Granularity::Tensor), Some(usize::MAX)),
        (Quantizer::Fp8(Granularity::Channel), Some(usize::MAX)),
        (Quantizer::Int8 { group: None }, Some(usize::MAX)),
        (block(128, 128), Some(128)),
        (block(64, 128), None),
        (Quantizer::Int8 { group: Some(32) }, None),
        (Quantizer::Int4 { group: Some(32), zeros: false }, None),
    ]
    .into_iter()
    .enumerate()
    {
        let is_int8 = matches!(to, Quantizer::Int8 { .. });
        let [n, k] = [[11, 70], [200, 320], [129, 1040]][i % 3];
        let weight = randn(&[n, k], DType::F32, device)?.affine(0.2, 0.0)?;
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let bias = randn(&[n], dtype, device)?;
            let as_it_comes = QuantLinear::quantize(&weight, Some(bias.clone()), to)?.with_activation(Activation::Silu);
            let layer = as_it_comes.clone().with_activations(Activations::Dynamic);
            let (w, b) = (exact(&on_host(&layer)?.to_tensor()?)?, exact(&bias)?);
            let turned = randn(&[2, k, 3], dtype, device)?.transpose(1, 2)?;
            for x in [randn(&[1, k], dtype, device)?, turned, randn(&[130, k], dtype, device)?] {
                let what = format!("{to:?} by 8 bits, {:?} in {dtype:?}", x.dims());
                let c = randn(&[&x.dims()[..x.rank() - 1], &[n]].concat(), dtype, device)?;
                let (numbers, of_c) = (exact(&x.contiguous()?)?, exact(&c)?);
                let added = |sum: f64, at: usize| (Activation::Silu.apply(sum + b[at % n]) + of_c[at], 1.1);
                near(&what, &as_it_comes.forward_residual(&x, &c)?, &numbers, &w, k, added)?;
                let y = layer.forward_residual(&x, &c)?;
                let Some(shared) = shared.filter(|_| rounds) else {
                    near(&what, &y, &numbers, &w, k, added)?;
                    continue;
                };
                let rounded = in_8_bits(&numbers, k, shared.min(k), is_int8);
                // Tensor cores keep 13 bits of sums of fp8.
                let of_size = of_size(k, &Device::Cpu) + if device.is_cpu() || is_int8 { 0.0 } else { 2f64.powi(-9) };
                near_by(&what, &y, [&rounded, &w], (k, of_size), added)?;
                let out = y.zeros_like()?;
                layer.forward_residual_into(&x.contiguous()?, &c, &out)?;
                same(&what, &out, &y)?;
            }
        }
    }
    Ok(())
}

/// Rows of zeros, with a NaN, or with an infinity, among ordinary ones: zeros give the bias, the others NaN, and no row spoils another. A row with an infinity has no
/// factor, and int8 no code for NaN. `rounds`: as for [`eight_bits`].
pub fn special_in_8_bits(device: &Device, rounds: bool) -> Result<()> {
    const INF: f32 = f32::INFINITY;
    let [n, k] = [70, 320];
    let block = Quantizer::Fp8(Granularity::Block([128, 128]));
    let quantizers = [Quantizer::Fp8(Granularity::Tensor), Quantizer::Fp8(Granularity::Channel), block];
    for to in quantizers.into_iter().chain([Quantizer::Int8 { group: None }]) {
        let is_int8 = matches!(to, Quantizer::Int8 { .. });
        let shared = if to == block { 128 } else { k };
        // NaN times the zeros of the first column and row is NaN, too.
        let mut weight = randn(&[n, k], DType::F32, &Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
        (0..n * k).filter(|at| at / k == 0 || at % k == 0).for_each(|at| weight[at] = 0.0);
        let weight = Tensor::from_vec(weight, (n, k), device)?;
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let bias = randn(&[n], dtype, device)?;
            let layer = QuantLinear::quantize(&weight, Some(bias.clone()), to)?;
            let layer = layer.with_activations(Activations::Dynamic);
            let (w, b) = (exact(&on_host(&layer)?.to_tensor()?)?, exact(&bias)?);
            if layer.forward(&Tensor::zeros((0, k), dtype, device)?)?.dims() != [0, n] {
                bail!("{to:?} in {dtype:?}: no rows gave some");
            }
            // What takes the place of numbers of every other row, and where.
            let special = [(0, f32::NAN), (k - 1, f32::NAN), (0, INF), (130, -INF), (7, INF)];
            for many in [1, 8] {
                let ordinary = exact(&randn(&[2 * 8 * many, k], dtype, &Device::Cpu)?)?;
                let mut x: Vec<f32> = ordinary.iter().map(|x| *x as f32).collect();
                let kind = |row: usize| (row % 2 == 1).then_some(row / 2 % 8);
                for (row, x) in x.chunks_mut(k).enumerate() {
                    match kind(row) {
                        Some(kind @ 0..5) => x[special[kind].0] = special[kind].1,
                        Some(5) => x.fill(f32::NAN),
                        // A row of zeros, and one with a NaN.
                        Some(kind) => {
                            x.fill(0.0);
                            x[9] = if kind == 6 { f32::NAN } else { 0.0 };
                        }
                        None => {}
                    }
                }
                let x = Tensor::from_vec(x, (2 * 8 * many, k), device)?.to_dtype(dtype)?;
                let y = layer.forward(&x)?;
                for row in 0..2 * 8 * many {
                    let what = format!("{to:?} by 8 bits in {dtype:?}, row {row} of {}", 2 * 8 * many);
                    let (of_row, y) = (exact(&x.narrow(0, row, 1)?.contiguous()?)?, y.narrow(0, row, 1)?);
                    let got = exact(&y.contiguous()?)?;
                    let is_right = match kind(row) {
                        None => {
                            let rounded = if rounds { in_8_bits(&of_row, k, shared, is_int8) } else { of_row };
                            let of_size = of_size(k, device) + if device.is_cpu() { 0.0 } else { 2f64.powi(-9) };
                            near_by(&what, &y, [&rounded, &w], (k, of_size), |sum, at| (sum + b[at % n], 1.0))?;
                            true
                        }
                        Some(7) => got == b,
                        // As it comes, an infinity by a number is infinite.
                        Some(2..=4) if !rounds => got.iter().all(|y| !y.is_finite()),
                        Some(_) => got.iter().all(|y| y.is_nan()),
                    };
                    if !is_right {
                        bail!("{what}: {got:?}; the bias is {b:?}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// A feed-forward part whose gates are rounded to 8 bits by the kernel that gates has the bits of its pieces.
pub fn gated_in_8_bits(device: &Device) -> Result<()> {
    let functions = [GateFunction::SwiGlu, GateFunction::GeGluTanh, GateFunction::GeGluErf, GateFunction::Relu2];
    let block = Quantizer::Fp8(Granularity::Block([128, 128]));
    let quantizers = [Quantizer::Fp8(Granularity::Tensor), Quantizer::Int8 { group: None }, block];
    for (i, function) in functions.into_iter().enumerate() {
        for (j, to) in quantizers.into_iter().enumerate() {
            let [hidden, inner] = [[96, 320], [72, 136], [130, 1032]][(i + j) % 3];
            let layer = |n: usize, k: usize| -> Result<QuantLinear> {
                let weight = randn(&[n, k], DType::F32, device)?.affine(0.2, 0.0)?;
                Ok(QuantLinear::quantize(&weight, None, to)?.with_activations(Activations::Dynamic))
            };
            let (gate_up, down) = (layer(2 * inner, hidden)?, layer(hidden, inner)?);
            let whole = GatedMlp::new(gate_up.clone(), down.clone(), function)?;
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                for rows in [0, 1, 5, 130] {
                    let x = randn(&[rows, hidden], dtype, device)?;
                    let gated = gate(&gate_up.forward(&x)?, Gate::Halves, function)?;
                    let what = format!("{function:?}, {to:?}, {rows} rows in {dtype:?}");
                    same(&what, &whole.forward(&x)?, &down.forward(&gated)?)?;
                    let added = down.forward_residual(&gated, &x)?;
                    same(&format!("{what}, residual"), &whole.forward_residual(&x, &x)?, &added)?;
                }
            }
        }
    }
    Ok(())
}

/// Experts whose activations a config has in 8 bits. `rounds`: as for [`eight_bits`]. A number between the products that lies between two codes may become either, so results
/// are compared with those of rounded numbers and those of numbers as they come: they are near the former.
pub fn experts_in_8_bits(device: &Device, rounds: bool) -> Result<()> {
    let block = Quantizer::Fp8(Granularity::Block([128, 128]));
    let of_rows = Quantizer::Fp8(Granularity::Channel);
    for (to, takes) in [
        (Quantizer::Fp8(Granularity::Tensor), true),
        (of_rows, true),
        (block, true),
        (Quantizer::Int8 { group: None }, false),
    ] {
        let [count, hidden, inner] = [4, 384, 256];
        let weight = |n: usize, k: usize| -> Result<QuantWeight> {
            QuantWeight::quantize(&randn(&[n, k], DType::F32, &Device::Cpu)?.affine(0.2, 0.0)?, to)
        };
        let weights = [weight(count * 2 * inner, hidden)?, weight(count * hidden, inner)?];
        let [gate_up, down] = weights.each_ref().map(QuantWeight::dequantize);
        let gate = ExpertGate::Function(GateFunction::SwiGlu);
        let experts = QuantExperts::new([count, hidden, inner], weights, [None, None], Gate::Halves, gate)?
            .with_activations(Activations::Dynamic)
            .to_device(device)?;
        let shared = |k: usize| if to == block { 128 } else { k };
        for (tokens, dtype) in [(0, DType::F32), (1, DType::BF16), (9, DType::F32), (70, DType::BF16), (70, DType::F16)]
        {
            let x = randn(&[tokens, hidden], dtype, device)?;
            let routing = Routing::by_logits(&randn(&[tokens, count], DType::F32, device)?, 2, true)?;
            let y = exact(&experts.forward(&x, &routing)?)?;
            let (chosen, shares) = (routing.experts().flatten_all()?.to_vec1::<u32>()?, exact(routing.weights())?);
            let numbers = exact(&x)?;
            let expected = |in_bits: bool| {
                let rounded =
                    |x: &[f64], k: usize| if in_bits { in_8_bits(x, k, shared(k), false) } else { x.to_vec() };
                let product = |w: &[f32], x: &[f64]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
                let mut sums = vec![0.0; tokens * hidden];
                for (pair, (expert, share)) in chosen.iter().zip(&shares).enumerate() {
                    let (token, expert) = (pair / 2, *expert as usize);
                    let x = rounded(&numbers[token * hidden..(token + 1) * hidden], hidden);
                    let stored = |x: f64| match dtype {
                        DType::BF16 if in_bits => half::bf16::from_f64(x).to_f64(),
                        DType::F16 if in_bits => half::f16::from_f64(x).to_f64(),
                        _ => x,
                    };
                    let row = |n: usize| stored(product(&gate_up[(expert * 2 * inner + n) * hidden..][..hidden], &x));
                    let gated = |n: usize| stored(row(n) / (1.0 + (-row(n)).exp()) * row(inner + n));
                    let between = rounded(&(0..inner).map(gated).collect::<Vec<_>>(), inner);
                    for n in 0..hidden {
                        sums[token * hidden + n] +=
                            share * product(&down[(expert * hidden + n) * inner..][..inner], &between);
                    }
                }
                sums
            };
            let far = |from: &[f64]| y.iter().zip(from).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt();
            let [of_rounded, as_it_comes] = [true, false].map(|in_bits| far(&expected(in_bits)));
            let (near, other) = if takes && rounds { (of_rounded, as_it_comes) } else { (as_it_comes, of_rounded) };
            // A block whose largest number is rounded the other way has another factor, and many of its codes are others: of one token there are four.
            let bound = if tokens == 1 { 0.6 } else { 0.2 };
            let is_near = near < bound * other;
            if tokens > 0 && !is_near {
                bail!("{to:?}, {tokens} tokens in {dtype:?}: {near} off, and {other} from the other numbers");
            }
        }
    }
    Ok(())
}
