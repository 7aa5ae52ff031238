//! Merged layers and feed-forward parts, on the CPU and on a GPU, against their definition in f64 and against layers apart.

use super::products::{exact, randn, same, unit};
use candle::quantized::{GgmlDType, QTensor};
use candle::{bail, DType, Device, Module, Result, Tensor, D};
use candle_nn::{VarBuilder, VarMap};
use candle_tilegemm::nn::{gated_mlp, qkv_linear, GateFunction, GatedMlp, Linear, MergedLinear, QLinear, QkvLinear};
use candle_tilegemm::Activation;
use std::sync::Arc;

const FUNCTIONS: [GateFunction; 4] =
    [GateFunction::SwiGlu, GateFunction::GeGluTanh, GateFunction::GeGluErf, GateFunction::Relu2];

/// A number, and how far a computation with roundings may be from it.
type Near = (f64, f64);

/// Each row of x times each row of w, where numbers of x are inexact, summed in f32 and rounded to `dtype`.
fn products(x: &[Near], w: &[f64], k: usize, dtype: DType) -> Vec<Near> {
    let (rows, n) = (x.len() / k, w.len() / k);
    let of = |i: usize| {
        let pairs = x[i / n * k..][..k].iter().zip(&w[i % n * k..][..k]);
        let (mut sum, mut off, mut size) = (0.0, 0.0, 0.0);
        for ((x, error), w) in pairs {
            (sum, off, size) = (sum + x * w, off + error * w.abs(), size + (x * w).abs());
        }
        (sum, off + 1e-6 * size + unit(dtype) * 1.01 * (sum.abs() + off) + 2f64.powi(-25))
    };
    (0..rows * n).map(of).collect()
}

fn gated(function: GateFunction, (gate, of_gate): Near, (up, of_up): Near, dtype: DType) -> Near {
    let apply = |x: f64| match function {
        GateFunction::SwiGlu => Activation::Silu.apply(x),
        GateFunction::GeGluTanh => Activation::GeluTanh.apply(x),
        GateFunction::GeGluErf => Activation::GeluErf.apply(x),
        _ => Activation::Relu.apply(x).powi(2),
    };
    let slope = if function == GateFunction::Relu2 { 2.0 * (gate.abs() + of_gate) } else { 1.2 };
    let value = apply(gate) * up;
    let off = slope * of_gate * (up.abs() + of_up) + apply(gate).abs() * of_up;
    // ReLU^2 may be rounded between its factors.
    (value, off + (2.02 * unit(dtype) + 4e-6) * (value.abs() + off) + 2f64.powi(-25))
}

fn near(what: &str, got: &Tensor, expected: &[Near]) -> Result<()> {
    let numbers = exact(got)?;
    if numbers.len() != expected.len() {
        bail!("{what}: {} numbers, expected {}", numbers.len(), expected.len());
    }
    match numbers.iter().zip(expected).enumerate().find(|(_, (x, (y, off)))| (*x - y).abs() > *off || x.is_nan()) {
        Some((i, (x, (y, off)))) => bail!("{what}: number {i} is {x}, expected {y} within {off:e}"),
        None => Ok(()),
    }
}

/// Dense feed-forward parts of all functions, types and layouts.
pub fn mlps(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (i, [rows, hidden, inner]) in
            [[1, 1, 1], [3, 5, 7], [1, 64, 48], [17, 40, 24], [33, 72, 136], [0, 8, 8]].into_iter().enumerate()
        {
            let weight = |shape: &[usize]| randn(shape, dtype, device)?.affine(0.3, 0.0);
            let (gate, up, down) = (weight(&[inner, hidden])?, weight(&[inner, hidden])?, weight(&[hidden, inner])?);
            let (x, residual) = (randn(&[rows, hidden], dtype, device)?, randn(&[rows, hidden], dtype, device)?);
            let numbers: Vec<Near> = exact(&x)?.into_iter().map(|x| (x, 0.0)).collect();
            let of = |w: &Tensor| -> Result<Vec<Near>> { Ok(products(&numbers, &exact(w)?, hidden, dtype)) };
            let (of_gate, of_up) = (of(&gate)?, of(&up)?);
            for (j, function) in FUNCTIONS.into_iter().enumerate() {
                let is_in_turns = (i + j) % 2 == 1;
                let both = match is_in_turns {
                    true => Tensor::stack(&[&gate, &up], 1)?.reshape((2 * inner, hidden))?,
                    false => Tensor::cat(&[&gate, &up], 0)?,
                };
                let layer = GatedMlp::new(Linear::new(both, None), Linear::new(down.clone(), None), function)?;
                let layer = if is_in_turns { layer.interleaved() } else { layer };
                let what = format!(
                    "{rows} rows, {hidden} hidden, {inner} within, {dtype:?}, {function:?}, turns {is_in_turns}"
                );
                let h: Vec<Near> = of_gate.iter().zip(&of_up).map(|(g, u)| gated(function, *g, *u, dtype)).collect();
                let expected = products(&h, &exact(&down)?, inner, dtype);
                let y = layer.forward(&x)?;
                near(&what, &y, &expected)?;
                let added: Vec<Near> = expected
                    .iter()
                    .zip(exact(&residual)?)
                    .map(|((y, off), c)| (y + c, off + unit(dtype) * 1.01 * (y + c).abs() + 1e-6 * c.abs()))
                    .collect();
                let sum = layer.forward_residual(&x, &residual)?;
                near(&format!("{what}, residual"), &sum, &added)?;
                // Into tensors that exist, with memory for more rows, and in place.
                let workspace = layer.workspace(rows + 3, dtype)?;
                let out = y.zeros_like()?;
                layer.forward_into(&x, &workspace, &out)?;
                same(&what, &out, &y)?;
                layer.forward_residual_into(&x, &residual, &workspace, &out)?;
                same(&format!("{what}, residual"), &out, &sum)?;
                let place = residual.copy()?;
                layer.forward_residual_into(&x, &place, &workspace, &place)?;
                near(&format!("{what}, in place"), &place, &added)?;
                if dtype != DType::F32 {
                    same(&format!("{what}, in place"), &place, &sum)?;
                }
                // Other ranks.
                if rows == 3 {
                    let y3 = layer.forward_residual(&x.unsqueeze(1)?, &residual.unsqueeze(1)?)?;
                    same(&format!("{what}, three dimensions"), &y3.squeeze(1)?, &sum)?;
                }
            }
        }
    }
    // A NaN stays in its row.
    let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, device);
    let layer =
        GatedMlp::new(Linear::new(ones(&[16, 8])?, None), Linear::new(ones(&[8, 8])?, None), GateFunction::SwiGlu)?;
    let x = Tensor::cat(&[&ones(&[1, 8])?, &Tensor::full(f32::NAN, (1, 8), device)?, &ones(&[1, 8])?], 0)?;
    let y = exact(&layer.forward(&x)?)?;
    if y.iter().enumerate().any(|(i, y)| y.is_nan() != (8..16).contains(&i)) {
        bail!("a NaN leaves its row: {y:?}");
    }
    Ok(())
}

fn blocks(rows: usize, columns: usize, format: GgmlDType, device: &Device) -> Result<Arc<QTensor>> {
    let numbers = Tensor::randn(0f32, 1f32, (rows, columns), &Device::Cpu)?;
    Ok(QTensor::quantize_onto(&numbers, format, device)?.into())
}

/// Layers in blocks, of one format and of several, against layers apart.
pub fn of_blocks(device: &Device) -> Result<()> {
    use GgmlDType::{F32, Q4K, Q4_1, Q6K, Q8_0};
    let cases = [
        ([Q8_0, Q8_0, Q8_0], 1),
        ([Q4K, Q4K, Q6K], 2),
        ([Q4_1, Q8_0, Q8_0], 2),
        ([Q4K, Q6K, Q4K], 3),
        ([Q8_0, F32, F32], 2),
    ];
    for dtype in [DType::F32, DType::BF16] {
        for (formats, count) in cases {
            let rows = [64, 40, 24];
            let has_bias = count != 3;
            let weights = [0, 1, 2].map(|i| blocks(rows[i], 256, formats[i], device));
            let [q, k, v] = weights;
            let weights = [q?, k?, v?];
            let biases: Vec<Tensor> = rows.iter().map(|n| randn(&[*n], dtype, device)).collect::<Result<_>>()?;
            let of_bias = |i: usize| has_bias.then(|| biases[i].clone());
            let biases3 = has_bias.then(|| [biases[0].clone(), biases[1].clone(), biases[2].clone()]);
            if formats[1] == F32 && dtype != DType::F32 {
                continue; // dequantised weights have the type of x
            }
            let layer = QkvLinear::from_qtensors(weights.clone(), biases3)?;
            if layer.products() != count {
                bail!("{formats:?} are {} products, expected {count}", layer.products());
            }
            // A row of zeros and a one gives a column of the weights, on the CPU, too, where candle scales rows of 8 bits by a number in f16.
            // On a GPU, kernels for many rows make a weight of a scale times a code and a minimum in 16 bits (docs/gguf.md); the block's largest number is
            // about either.
            let of_one =
                |w: f64, block: f64| if device.is_cpu() { 4e-3 } else { 4e-6 + (w.abs() + 2.0 * block) / 256.0 };
            let one = Tensor::eye(256, DType::F32, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?;
            for (i, part) in layer.split(&layer.forward(&one)?)?.iter().enumerate() {
                let (got, bias) = (exact(&part.contiguous()?)?, of_bias(i).map(|bias| exact(&bias)).transpose()?);
                let numbers = exact(&weights[i].dequantize(device)?.t()?.contiguous()?)?;
                for (place, (x, w)) in got.iter().zip(&numbers).enumerate() {
                    let (k, n) = (place / rows[i] / 32 * 32, place % rows[i]);
                    let block = (k..k + 32).map(|k| numbers[k * rows[i] + n].abs()).fold(0.0, f64::max);
                    let expected = w + bias.as_ref().map_or(0.0, |bias| bias[place % rows[i]]);
                    if (x - expected).abs() > 1.01 * unit(dtype) * expected.abs() + of_one(*w, block) {
                        bail!("{formats:?}, {dtype:?}, part {i}: number {place} is {x}, expected {expected}");
                    }
                }
            }
            for tokens in [1, 5, 40] {
                let what = format!("{tokens} tokens, {formats:?}, {dtype:?}");
                let x = randn(&[tokens, 256], dtype, device)?;
                let qkv = layer.forward(&x)?;
                for (i, part) in layer.split(&qkv)?.iter().enumerate() {
                    let apart = QLinear::from_arc(weights[i].clone(), of_bias(i))?.forward(&x)?;
                    let (got, expected) = (exact(&part.contiguous()?)?, exact(&apart)?);
                    let most = expected.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
                    // candle's products on the CPU round x to 8 bits, in ways that depend on the rows of weights.
                    let off = most * if device.is_cpu() { 3e-2 } else { 4e-3 };
                    let is_off = |(x, y): (&f64, &f64)| (x - y).abs() > 2.1 * unit(dtype) * y.abs() + off || x.is_nan();
                    if got.iter().zip(&expected).any(is_off) {
                        bail!(
                            "{what}: part {i} is not that of its layer: {:?}, expected {:?}",
                            &got[..4],
                            &expected[..4]
                        );
                    }
                }
                let wide = Tensor::zeros((tokens, 2 * 128), dtype, device)?;
                layer.forward_into(&x, &wide.narrow(1, 64, 128)?)?;
                let got = exact(&wide)?;
                let expected = exact(&qkv)?;
                let is_right =
                    got.iter().enumerate().all(|(i, x)| match (i % 256).checked_sub(64).filter(|j| *j < 128) {
                        Some(j) => (x - expected[i / 256 * 128 + j]).abs() <= 2.1 * unit(dtype) * x.abs() + 1e-4,
                        None => *x == 0.0,
                    });
                if !is_right {
                    bail!("{what}: in a wider tensor");
                }
                let dense = qkv.zeros_like()?;
                layer.forward_into(&x, &dense)?;
                same(&what, &dense, &qkv)?;
            }
            let layer = MergedLinear::new(
                [0, 1, 2].map(|i| QLinear::from_arc(weights[i].clone(), of_bias(i)).expect("a layer")),
            )?;
            let (x, residual) = (randn(&[4, 256], dtype, device)?, randn(&[4, 128], dtype, device)?);
            let sum = layer.forward_residual(&x, &residual)?;
            let place = residual.copy()?;
            layer.forward_residual_into(&x, &place, &place)?;
            let apart = (exact(&layer.forward(&x)?)?, exact(&residual)?);
            let most = apart.0.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
            // With a residual another kernel may win, which rounds weights in its own way (docs/gguf.md).
            let off = if device.is_cpu() { 1e-4 } else { 4e-3 * most };
            for (tensor, what) in [(&sum, "residual"), (&place, "in place")] {
                let bound = |y: &f64, c: &f64| 2.1 * unit(dtype) * (y.abs() + c.abs()) + off;
                let expected: Vec<Near> = apart.0.iter().zip(&apart.1).map(|(y, c)| (y + c, bound(y, c))).collect();
                near(&format!("{formats:?}, {dtype:?}: {what}"), tensor, &expected)?;
            }
        }
        // A feed-forward part, of one format and of two.
        for formats in [[Q8_0, Q8_0, Q4_1], [Q4K, Q4K, Q6K], [Q4K, Q6K, Q4K]] {
            let weights = [
                blocks(512, 256, formats[0], device)?,
                blocks(512, 256, formats[1], device)?,
                blocks(256, 512, formats[2], device)?,
            ];
            for function in [GateFunction::SwiGlu, GateFunction::Relu2] {
                let layer = GatedMlp::from_qtensors(weights.clone(), function)?;
                let [gate, up, down] = [0, 1, 2].map(|i| QLinear::from_arc(weights[i].clone(), None));
                let (gate, up, down) = (gate?, up?, down?);
                let workspace = layer.workspace(40, dtype)?;
                for rows in [1, 40] {
                    let x = randn(&[rows, 256], dtype, device)?.affine(0.05, 0.0)?;
                    let residual = randn(&[rows, 256], dtype, device)?;
                    let both = Tensor::cat(&[gate.forward(&x)?, up.forward(&x)?], D::Minus1)?;
                    let inner = candle_tilegemm::nn::gate(&both, candle_tilegemm::problem::Gate::Halves, function)?;
                    let expected = exact(&down.forward(&inner)?)?;
                    let most = expected.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
                    let y = layer.forward(&x)?;
                    // A rounding that falls the other way in `inner` reaches all numbers; on the CPU candle's products round inner numbers to 8 bits. On a GPU
                    // the two ways take other kernels, and each product may be 4e-3 off, as above.
                    let bound = most
                        * if dtype != DType::F32 {
                            2e-2
                        } else if device.is_cpu() {
                            2e-3
                        } else {
                            1e-2
                        };
                    let expected: Vec<Near> = expected.into_iter().map(|y| (y, bound)).collect();
                    near(&format!("{rows} rows, {formats:?}, {dtype:?}, {function:?}"), &y, &expected)?;
                    let out = y.zeros_like()?;
                    layer.forward_into(&x, &workspace, &out)?;
                    same("a feed-forward part of blocks", &out, &y)?;
                    let sum = layer.forward_residual(&x, &residual)?;
                    layer.forward_residual_into(&x, &residual, &workspace, &out)?;
                    same("a feed-forward part of blocks, residual", &out, &sum)?;
                    layer.forward_residual_into(&x, &residual, &workspace, &residual)?;
                    // In place K may go in parts, which are added in another order.
                    let sums = exact(&sum)?.into_iter().map(|y| (y, 2.1 * unit(dtype) * y.abs() + bound / 2.0));
                    near("a feed-forward part of blocks, in place", &residual, &sums.collect::<Vec<Near>>())?;
                }
            }
        }
    }
    Ok(())
}

/// Dense layers with biases, by the names of a folder of safetensors.
pub fn of_names(device: &Device) -> Result<()> {
    let weights = VarMap::new();
    let vb = VarBuilder::from_varmap(&weights, DType::F32, device);
    let attention = qkv_linear(24, [16, 8, 8], true, vb.pp("self_attn"))?;
    let plain = qkv_linear(24, [16, 8, 8], false, vb.pp("plain"))?;
    let mlp = gated_mlp(24, 40, GateFunction::SwiGlu, vb.pp("mlp"))?;
    let mut names: Vec<String> = weights.data().lock().unwrap().keys().cloned().collect();
    names.sort();
    let proj = |part: &str, name: &str| format!("{part}.{name}_proj.weight");
    let mut expected: Vec<String> = ["gate", "up", "down"].map(|name| proj("mlp", name)).to_vec();
    for name in ["q", "k", "v"] {
        expected.extend([proj("self_attn", name), proj("plain", name), format!("self_attn.{name}_proj.bias")]);
    }
    expected.sort();
    if names != expected {
        bail!("{names:?}, expected {expected:?}");
    }
    for name in ["q", "k", "v"] {
        let name = format!("self_attn.{name}_proj.bias");
        let values = randn(weights.data().lock().unwrap()[&name].dims(), DType::F32, device)?;
        weights.data().lock().unwrap()[&name].set(&values)?;
    }
    let again = qkv_linear(24, [16, 8, 8], true, vb.pp("self_attn"))?;
    let x = randn(&[2, 3, 24], DType::F32, device)?;
    let parts = again.split(&again.forward(&x)?)?;
    for (part, name) in parts.iter().zip(["q", "k", "v"]) {
        let rows = part.dim(D::Minus1)?;
        let theirs = candle_nn::linear(24, rows, vb.pp("self_attn").pp(format!("{name}_proj")))?.forward(&x)?;
        let apart =
            exact(&part.contiguous()?)?.iter().zip(exact(&theirs)?).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        if apart > 1e-5 {
            bail!("{name} differs by {apart}");
        }
    }
    if [attention.products(), plain.products()] != [1, 1] || attention.columns() != [16, 8, 8] {
        bail!("a dense layer is one product");
    }
    let (out, workspace) = (x.zeros_like()?, mlp.workspace(6, DType::F32)?);
    mlp.forward_into(&x, &workspace, &out)?;
    same("loaded weights track no gradients", &out, &mlp.forward(&x)?)
}

/// What does not fit, with words that say what to do.
pub fn refusals(device: &Device) -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, device);
    let linear = |rows: usize, columns: usize| -> Result<Linear> { Ok(Linear::new(zeros(&[rows, columns])?, None)) };
    let mlp = GatedMlp::new(linear(16, 4)?, linear(4, 8)?, GateFunction::SwiGlu)?;
    let (x, small, other) = (zeros(&[3, 4])?, mlp.workspace(2, DType::F32)?, mlp.workspace(3, DType::BF16)?);
    let fits = mlp.workspace(3, DType::F32)?;
    let tracked = candle::Var::from_tensor(&x)?;
    let qkv = QkvLinear::new([linear(8, 4)?, linear(4, 4)?, linear(4, 4)?])?;
    let text = |result: Result<()>| result.err().map_or("no error".into(), |error| error.to_string());
    let errors = [
        (text(GatedMlp::new(linear(16, 4)?, linear(4, 9)?, GateFunction::SwiGlu).map(drop)), "expected twice as many"),
        (text(MergedLinear::new([linear(4, 4)?, linear(4, 5)?]).map(drop)), "expected 4 on"),
        (text(MergedLinear::new(Vec::<Linear>::new()).map(drop)), "no layers"),
        (text(mlp.forward_into(&x, &small, &zeros(&[3, 4])?)), "make one by `workspace(3, F32)`"),
        (text(mlp.forward_into(&x, &other, &zeros(&[3, 4])?)), "make one by `workspace(3, F32)`"),
        (text(mlp.forward_into(&x, &fits, &x)), "x and the result share memory"),
        (text(mlp.forward_into(&x, &fits, &zeros(&[3, 5])?)), "expected 3 rows of 4"),
        (text(mlp.forward(tracked.as_tensor()).map(drop)), "tracks gradients"),
        (text(mlp.forward_residual(&x, &zeros(&[2, 4])?).map(drop)), "expected 3 rows of 4"),
        (text(mlp.forward(&zeros(&[3, 5])?).map(drop)), "expected rows of 4 numbers"),
        (text(qkv.forward_into(&x, &zeros(&[3, 15])?)), "expected rows of 16"),
        (text(qkv.split(&zeros(&[3, 15])?).map(drop)), "is not a result"),
        (text(QkvLinear::from_merged(linear(16, 4)?, [8, 4, 3]).map(drop)), "16 columns"),
    ];
    for (error, words) in errors {
        if !error.contains(words) {
            bail!("{error}\ndoes not have\n{words}");
        }
    }
    Ok(())
}
