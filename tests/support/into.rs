//! Products into tensors that exist, on the CPU and on a GPU: the bits of `forward` where the result is dense, the numbers of f64 elsewhere, and nothing beside
//! the result is written.

#[path = "drawn.rs"]
pub mod drawn;

use candle::quantized::{GgmlDType, QMatMul, QTensor};
use candle::{bail, DType, Device, Module, Result, Tensor};
use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg};
use candle_tilegemm::nn::{Linear, QLinear, QWeights};
use candle_tilegemm::{Activation, Format, Gemm};

pub fn randn(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::randn(0f32, 1f32, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
}

/// The numbers of a tensor in f64.
pub fn exact(tensor: &Tensor) -> Result<Vec<f64>> {
    if tensor.elem_count() == 0 {
        return Ok(vec![]); // candle's conversion looks at the offset of an empty tensor
    }
    tensor.to_device(&Device::Cpu)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
}

/// Refuses results that differ by more than `off` and a rounding.
fn in_another_way(what: &str, dtype: DType, got: &[f64], expected: &[f64], off: f64) -> Result<()> {
    let is_off = |(x, y): (&f64, &f64)| (x - y).abs() > 2.1 * unit(dtype) * y.abs() + off;
    match got.iter().zip(expected).position(is_off) {
        Some(at) => bail!("{what}: number {at} is {}, expected {}", got[at], expected[at]),
        None => Ok(()),
    }
}

/// Refuses two tensors that differ in a bit, but for NaN.
pub fn same(what: &str, got: &Tensor, expected: &Tensor) -> Result<()> {
    let (got, expected) = (exact(got)?, exact(expected)?);
    let other =
        got.iter().zip(&expected).filter(|(x, y)| x.to_bits() != y.to_bits() && !(x.is_nan() && y.is_nan())).count();
    if other > 0 || got.len() != expected.len() {
        bail!("{what}: {other} of {} numbers differ, expected {}", got.len(), expected.len());
    }
    Ok(())
}

/// Half the distance from 1 to the next number.
pub fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        DType::F32 => 2f64.powi(-24),
        _ => 2f64.powi(-53),
    }
}

/// A product of rows by its definition, and for each number the sum of magnitudes that went into it.
fn product(x: &[f64], w: &[f64], k: usize) -> Vec<(f64, f64)> {
    let (rows, n) = (x.len() / k.max(1), w.len() / k.max(1));
    let of = |i: usize| {
        let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
        x.iter().zip(w).fold((0.0, 0.0), |(sum, size), (x, w)| (sum + x * w, size + (x * w).abs()))
    };
    (0..rows * n).map(of).collect()
}

/// Refuses numbers that are further from the epilogue in f64 than a rounding of the result and sums in f32 (of f64 in f64) may be.
fn near(what: &str, got: &Tensor, sums: &[(f64, f64)], after: impl Fn(f64, usize) -> f64) -> Result<()> {
    let (numbers, of_sums) = (exact(got)?, if got.dtype() == DType::F64 { 1e-15 } else { 1e-6 });
    if numbers.len() != sums.len() {
        bail!("{what}: {} numbers, expected {}", numbers.len(), sums.len());
    }
    for (i, (got_number, (sum, size))) in numbers.into_iter().zip(sums).enumerate() {
        let expected = after(*sum, i);
        // A slope of an activation is at most 1.13; f16 has 2^-24 between its smallest numbers.
        let bound =
            unit(got.dtype()) * 1.01 * expected.abs() + 1.2 * of_sums * (size + expected.abs()) + 2f64.powi(-25);
        if (got_number - expected).abs() > bound || got_number.is_nan() != expected.is_nan() {
            bail!("{what}: number {i} is {got_number}, expected {expected} within {bound:e}");
        }
    }
    Ok(())
}

/// A tensor of these rows and columns in a wider one: 3 rows and `before` columns lie before it, 5 columns behind it.
pub struct Within {
    wide: Tensor,
    before: usize,
    columns: usize,
}

impl Within {
    pub fn new(rows: usize, columns: usize, before: usize, dtype: DType, device: &Device) -> Result<Self> {
        let wide = Tensor::full(-77f32, (rows + 3, before + columns + 5), &Device::Cpu)?;
        Ok(Self { wide: wide.to_dtype(dtype)?.to_device(device)?, before, columns })
    }

    pub fn inside(&self) -> Result<Tensor> {
        self.wide.narrow(0, 3, self.wide.dim(0)? - 3)?.narrow(1, self.before, self.columns)
    }

    /// Refuses a change of what lies around.
    pub fn untouched(&self, what: &str) -> Result<()> {
        let width = self.wide.dim(1)?;
        let is_inside = |i: usize| i / width >= 3 && (self.before..self.before + self.columns).contains(&(i % width));
        match exact(&self.wide)?.into_iter().enumerate().find(|(i, x)| !is_inside(*i) && *x != -77.0) {
            Some((i, x)) => bail!("{what}: number {i} around the result became {x}"),
            None => Ok(()),
        }
    }
}

/// Products of dense operands, of all types and many sizes.
pub fn dense(device: &Device) -> Result<()> {
    let sizes = [
        [1, 1, 1],
        [1, 64, 64],
        [3, 7, 5],
        [17, 33, 129],
        [0, 8, 8],
        [4, 8, 0],
        [4, 0, 8],
        [8, 520, 1024],
        [64, 96, 320],
        [300, 136, 264],
    ];
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
        for (i, [m, n, k]) in sizes.into_iter().enumerate() {
            let (x, w) = (randn(&[m, k], dtype, device)?, randn(&[n, k], dtype, device)?);
            let (bias, residual) = (randn(&[n], dtype, device)?, randn(&[m, n], dtype, device)?);
            let sums = match k {
                0 => vec![(0.0, 0.0); m * n],
                _ => product(&exact(&x)?, &exact(&w)?, k),
            };
            let (b, c) = (exact(&bias)?, exact(&residual)?);
            for (has_bias, activation) in [(false, Activation::Identity), (true, Activation::ALL[i % 5])] {
                let what = format!("{m} x {n} x {k} in {dtype:?}, bias {has_bias}, {activation:?}");
                let layer = Linear::new(w.clone(), has_bias.then(|| bias.clone())).with_activation(activation);
                let after = |sum: f64, i: usize| activation.apply(sum + if has_bias { b[i % n] } else { 0.0 });
                let out = x.matmul(&w.t()?)?.zeros_like()?;
                layer.forward_into(&x, &out)?;
                same(&what, &out, &layer.forward(&x)?)?;
                near(&what, &out, &sums, after)?;
                layer.forward_residual_into(&x, &residual, &out)?;
                let expected = layer.forward_residual(&x, &residual)?;
                same(&format!("{what}, residual"), &out, &expected)?;
                let added = |sum: f64, i: usize| after(sum, i) + c[i];
                // The residual itself, and columns of a wider matrix.
                let sum = residual.copy()?;
                layer.forward_residual_into(&x, &sum, &sum)?;
                near(&format!("{what}, in place"), &sum, &sums, added)?;
                if dtype == DType::BF16 || dtype == DType::F16 {
                    same(&format!("{what}, in place"), &sum, &expected)?;
                }
                for before in [0, 8, 3] {
                    let what = format!("{what}, columns behind {before}");
                    let within = Within::new(m, n, before, dtype, device)?;
                    layer.forward_into(&x, &within.inside()?)?;
                    near(&what, &within.inside()?, &sums, after)?;
                    let apart = Within::new(m, n, before, dtype, device)?;
                    apart.inside()?;
                    layer.forward_residual_into(&x, &residual, &apart.inside()?)?;
                    near(&format!("{what}, residual"), &apart.inside()?, &sums, added)?;
                    // A residual in the columns of the result.
                    let twice = exact(&apart.inside()?)?;
                    layer.forward_residual_into(&x, &apart.inside()?, &apart.inside()?)?;
                    near(&format!("{what}, in place"), &apart.inside()?, &sums, |sum, i| after(sum, i) + twice[i])?;
                    within.untouched(&what)?;
                    apart.untouched(&what)?;
                }
            }
        }
    }
    Ok(())
}

/// Factors, results in f32 of 16 bits, batches, and operands of other layouts.
pub fn of_other_kinds(device: &Device) -> Result<()> {
    for dtype in [DType::BF16, DType::F16] {
        let (x, w) = (randn(&[5, 64], dtype, device)?, randn(&[24, 64], dtype, device)?);
        let gemm = Gemm::new().out_dtype(DType::F32).alpha(0.5);
        let out = Tensor::zeros((5, 24), DType::F32, device)?;
        gemm.forward_into(&x, &w.t()?, &out)?;
        same("f32 of 16 bits", &out, &gemm.forward(&x, &w.t()?)?)?;
    }
    for dtype in [DType::F32, DType::BF16] {
        // Heads of rows, and one matrix or a matrix for each head.
        let x = randn(&[2, 7, 3, 16], dtype, device)?.transpose(1, 2)?;
        for w in [
            randn(&[16, 24], dtype, device)?,
            randn(&[3, 16, 24], dtype, device)?,
            randn(&[2, 3, 24, 16], dtype, device)?.t()?,
        ] {
            let expected = Gemm::new().broadcast_batch().forward(&x, &w)?;
            let dense = expected.zeros_like()?;
            Gemm::new().broadcast_batch().forward_into(&x, &w, &dense)?;
            same("a batch", &dense, &expected)?;
            let rows = Tensor::zeros((2, 7, 3, 24), dtype, device)?;
            Gemm::new().broadcast_batch().forward_into(&x, &w, &rows.transpose(1, 2)?)?;
            let numbers = exact(&expected)?;
            let (got, unit) = (exact(&rows.transpose(1, 2)?.contiguous()?)?, unit(dtype) * 2.0);
            if got.iter().zip(&numbers).any(|(x, y)| (x - y).abs() > unit * y.abs() + 1e-5) {
                bail!("a batch whose result is in turns");
            }
        }
        // The residual counts beta times; a beta of 0 reads nothing.
        let (x, w) = (randn(&[3, 32], dtype, device)?, randn(&[32, 8], dtype, device)?);
        let nan = Tensor::full(f32::NAN, (3, 8), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?;
        let out = nan.copy()?;
        Gemm::new().residual(&nan).beta(0.0).forward_into(&x, &w, &out)?;
        same("beta of 0", &out, &Gemm::new().forward(&x, &w)?)?;
        let residual = randn(&[3, 8], dtype, device)?;
        Gemm::new().residual(&residual).beta(-0.5).forward_into(&x, &w, &out)?;
        same("beta of -0.5", &out, &Gemm::new().residual(&residual).beta(-0.5).forward(&x, &w)?)?;
        // A NaN stays in its row.
        let rows =
            Tensor::cat(&[&x, &Tensor::full(f32::NAN, (1, 32), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?], 0)?;
        let out = Tensor::zeros((4, 8), dtype, device)?;
        Gemm::new().forward_into(&rows, &w, &out)?;
        let numbers = exact(&out)?;
        if numbers[..24].iter().any(|x| x.is_nan()) || numbers[24..].iter().any(|x| !x.is_nan()) {
            bail!("a NaN leaves its row: {numbers:?}");
        }
    }
    Ok(())
}

/// Matrices on the CPU, of blocks of candle's and of others.
fn matrices() -> Result<Vec<QWeights>> {
    use GgmlDType::{Q4K, Q4_1, Q6K, Q8_0};
    let candles = [(Q8_0, 5, 96), (Q4_1, 576, 576), (Q4K, 72, 512), (Q6K, 64, 1024)].into_iter();
    let candles = candles
        .map(|(format, n, k)| Ok(QTensor::quantize(&Tensor::randn(0f32, 1f32, (n, k), &Device::Cpu)?, format)?.into()));
    // Rows of mxfp4 are 289 bytes apart.
    let others = [(Format::MXFP4, 70, 544), (Format::IQ4_NL, 33, 96), (Format::IQ4_XS, 72, 1024)].into_iter();
    let others = others
        .map(|(format, n, k)| QWeights::from_bytes(format, drawn::blocks(format, n * k, 1), (n, k), &Device::Cpu));
    candles.chain(others).collect()
}

/// Weights in blocks and dequantised ones.
pub fn quantised(device: &Device) -> Result<()> {
    for blocks in matrices()? {
        let (n, k) = blocks.shape().dims2()?;
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let dequantised = blocks.dequantize(device)?.to_dtype(dtype)?;
            for of_blocks in [true, false] {
                for rows in [1, 3, 16, 40] {
                    let what = format!("{rows} x {n} x {k} of {:?} in {dtype:?}", blocks.format());
                    let (bias, residual) = (randn(&[n], dtype, device)?, randn(&[rows, n], dtype, device)?);
                    let layer = match of_blocks {
                        true => QLinear::from_blocks(blocks.to_device(device)?, Some(bias))?,
                        false => QLinear::from_weights(QMatMul::Tensor(dequantised.clone()), Some(bias)),
                    };
                    let layer = layer.with_activation(Activation::Silu);
                    let x = randn(&[rows, k], dtype, device)?;
                    let out = residual.zeros_like()?;
                    let expected = layer.forward(&x)?;
                    layer.forward_into(&x, &out)?;
                    same(&what, &out, &expected)?;
                    layer.forward_residual_into(&x, &residual, &out)?;
                    same(&format!("{what}, residual"), &out, &layer.forward_residual(&x, &residual)?)?;
                    // In place another kernel may run, which rounds x and weights in its own way: by less than 2^-8 of the sum of |w x| (docs/gguf.md).
                    let off = if of_blocks { 2e-2 * (k as f64).sqrt() } else { 1e-4 };
                    let gated = residual.copy()?;
                    layer.forward_gated_into(&x, &gated, &gated)?;
                    if of_blocks {
                        let apart = exact(&layer.forward_gated(&x, &residual)?)?;
                        in_another_way(&format!("{what}, gated in place"), dtype, &exact(&gated)?, &apart, off)?;
                    }
                    let sum = residual.copy()?;
                    layer.forward_residual_into(&x, &sum, &sum)?;
                    in_another_way(&format!("{what}, in place"), dtype, &exact(&sum)?, &exact(&out)?, off)?;
                    // Results that are not finite are computed once more, when the residual in place is gone.
                    let infinite = Tensor::cat(
                        &[&randn(&[rows, k - 1], dtype, device)?, &(x.ones_like()?.narrow(1, 0, 1)? / 0.)?],
                        1,
                    )?;
                    layer.forward_residual_into(&infinite, &residual, &out)?;
                    let sum = residual.copy()?;
                    layer.forward_residual_into(&infinite, &sum, &sum)?;
                    let (got, added) = (exact(&sum)?, exact(&out)?);
                    let differ = |x: &f64, y: &f64| x.is_nan() != y.is_nan() || x.is_infinite() != y.is_infinite();
                    if let Some(at) = got.iter().zip(&added).position(|(x, y)| differ(x, y)) {
                        bail!("{what}, with an infinity: {} in place, {} apart", got[at], added[at]);
                    }
                    let within = Within::new(rows, n, 8, dtype, device)?;
                    layer.forward_into(&x, &within.inside()?)?;
                    let of_columns = exact(&within.inside()?)?;
                    let what = format!("{what}, columns of a wider matrix");
                    in_another_way(&what, dtype, &of_columns, &exact(&expected)?, 1e-4)?;
                    within.untouched(&what)?;
                }
            }
        }
    }
    Ok(())
}

/// A layer of 6 experts, of which a token has 2.
pub fn layer_of_experts(dtype: DType, [hidden, inner]: [usize; 2], device: &Device) -> Result<FusedMoe> {
    let config = MoeCfg {
        hidden_size: hidden,
        num_experts: 6,
        num_experts_per_tok: 2,
        moe_intermediate_size: inner,
        norm_topk_prob: true,
        act: candle_nn::Activation::Silu,
        decoder_sparse_step: None,
    };
    let weight = |shape: &[usize]| randn(shape, dtype, device)?.affine(0.1, 0.0);
    FusedMoe::from_weights(
        weight(&[6, hidden])?,
        weight(&[6, 2 * inner, hidden])?,
        weight(&[6, hidden, inner])?,
        &config,
    )
}

/// Layers of experts.
pub fn experts(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for sizes in [[64, 32], [24, 10]] {
            let layer = layer_of_experts(dtype, sizes, device)?;
            let workspace = layer.workspace(40)?;
            for tokens in [40, 1, 17, 0] {
                let what = format!("{tokens} tokens of {sizes:?} in {dtype:?}");
                let x = randn(&[1, tokens, sizes[0]], dtype, device)?;
                let (rows, residual) = (x.squeeze(0)?, randn(x.dims(), dtype, device)?);
                let out = rows.zeros_like()?;
                layer.forward_into(&rows, &workspace, &out)?;
                if tokens > 0 {
                    same(&what, &out, &layer.forward(&x, false)?.squeeze(0)?)?;
                    let expected = layer.forward_residual(&x, &residual)?.squeeze(0)?;
                    let plain = exact(&(&out.to_dtype(DType::F64)? + residual.squeeze(0)?.to_dtype(DType::F64)?)?)?;
                    for (x, y) in exact(&expected)?.into_iter().zip(plain) {
                        if (x - y).abs() > 3.0 * unit(dtype) * (y.abs() + 8.0) {
                            bail!("{what}: {x} with the residual, expected {y}");
                        }
                    }
                    layer.forward_residual_into(&rows, &residual.squeeze(0)?, &workspace, &out)?;
                    same(&format!("{what}, residual"), &out, &expected)?;
                    let sum = residual.squeeze(0)?.copy()?;
                    layer.forward_residual_into(&rows, &sum, &workspace, &sum)?;
                    same(&format!("{what}, in place"), &sum, &expected)?;
                    let within = Within::new(tokens, sizes[0], 8, dtype, device)?;
                    layer.forward_residual_into(&rows, &residual.squeeze(0)?, &workspace, &within.inside()?)?;
                    same(&format!("{what}, columns"), &within.inside()?.contiguous()?, &expected)?;
                    within.untouched(&what)?;
                }
            }
        }
    }
    Ok(())
}

/// What is refused, with words that say what to do.
pub fn refusals(device: &Device) -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, device);
    let (x, w, out) = (zeros(&[4, 8])?, zeros(&[8, 8])?, zeros(&[4, 8])?);
    let layer = Linear::new(w.clone(), None);
    let blocks = QLinear::from_arc(
        QTensor::quantize_onto(&Tensor::zeros((8, 32), DType::F32, &Device::Cpu)?, GgmlDType::Q8_0, device)?.into(),
        None,
    )?;
    let both = zeros(&[4, 40])?;
    let (tracked, square) = (candle::Var::from_tensor(&w)?, zeros(&[8, 8])?);
    let experts = layer_of_experts(DType::F32, [8, 4], device)?;
    let few = experts.workspace(3)?;
    let residual = zeros(&[5, 8])?;
    let errors: Vec<(Result<()>, &str)> = vec![
        (layer.forward_into(&x, &zeros(&[4, 9])?), "expected F32 [4, 8]"),
        (layer.forward_into(&x, &out.to_dtype(DType::F64)?), "expected F32 [4, 8]"),
        (layer.forward_into(&x, &x), "lhs and the result share memory"),
        (layer.forward_into(&square, &w), "rhs and the result share memory"),
        (layer.forward_into(&x, &zeros(&[1, 8])?.broadcast_as((4, 8))?), "does not lie in rows"),
        (layer.forward_into(&x, &zeros(&[8, 4])?.t()?), "does not lie in rows"),
        (Linear::new(tracked.as_tensor().clone(), None).forward_into(&x, &out), "rhs tracks gradients"),
        (
            layer.forward_residual_into(&x, &residual.narrow(0, 0, 4)?, &residual.narrow(0, 1, 4)?),
            "share a part of their memory",
        ),
        (layer.forward_residual_into(&x, &residual, &out), "the residual has shape"),
        (blocks.forward_into(&both.narrow(1, 0, 32)?, &both.narrow(1, 28, 8)?), "x and the result share memory"),
        (blocks.forward_into(&zeros(&[4, 8])?, &out), "expected rows of 32"),
        (blocks.forward_into(&zeros(&[4, 32])?, &zeros(&[3, 8])?), "expected [4, 8]"),
        (experts.forward_into(&x, &few, &out), "make one by `workspace(4)`"),
        (experts.forward_into(&out.narrow(0, 0, 2)?, &few, &out.narrow(0, 1, 2)?), "share memory"),
    ];
    for (result, words) in errors {
        let error = result.err().map_or("no error".into(), |error| error.to_string());
        if !error.contains(words) {
            bail!("{error}\ndoes not have\n{words}");
        }
    }
    // Columns beside one another have nothing in common.
    blocks.forward_into(&both.narrow(1, 0, 32)?, &both.narrow(1, 32, 8)?)
}
