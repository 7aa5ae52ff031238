//! The blocks of a layer against their definition in f64, on the CPU and on a GPU.

use crate::into::products::drawn;
use candle::quantized::{GgmlDType, QTensor};
use candle::{bail, DType, Device, Module, Result, Tensor};
use candle_tilegemm::nn::attention::{self, KvCache, Rope, RopeScaling, RopeStyle, Settings, Workspace};
use candle_tilegemm::nn::{gate, gate_into, Embedding, GateFunction, QEmbedding, QWeights, RmsNorm};
use candle_tilegemm::problem::Gate;
use candle_tilegemm::Format;
use float8::F8E4M3;

#[path = "sinks.rs"]
pub mod sinks;

/// Half the distance from 1 to the next number, and some for the arithmetic in f32.
pub fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11) + 2e-6,
        DType::BF16 => 2f64.powi(-8) + 2e-6,
        _ => 4e-6,
    }
}

pub fn randn(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::randn(0f32, 1f32, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
}

pub fn ints(numbers: &[i32], device: &Device) -> Result<Tensor> {
    Tensor::new(numbers.iter().map(|x| *x as u32).collect::<Vec<_>>(), device)
}

/// The numbers of a tensor in f64.
pub fn exact(tensor: &Tensor) -> Result<Vec<f64>> {
    let tensor = tensor.to_device(&Device::Cpu)?.flatten_all()?;
    match tensor.dtype() {
        DType::F8E4M3 => Ok(tensor.to_vec1::<F8E4M3>()?.into_iter().map(|x| x.to_f32().into()).collect()),
        _ => tensor.to_dtype(DType::F64)?.to_vec1(),
    }
}

/// Refuses numbers further from what is expected than their bound; NaN and infinities are the same.
pub fn close(what: &str, got: &Tensor, expected: &[f64], bound: impl Fn(usize) -> f64) -> Result<()> {
    let numbers = exact(got)?;
    if numbers.len() != expected.len() {
        bail!("{what}: {} numbers, expected {}", numbers.len(), expected.len());
    }
    for (i, (got, expected)) in numbers.into_iter().zip(expected).enumerate() {
        let is_same = got == *expected || got.is_nan() && expected.is_nan();
        let is_near = (got - expected).abs() <= bound(i);
        if !is_same && !is_near {
            bail!("{what}: number {i} is {got}, expected {expected} within {:e}", bound(i));
        }
    }
    Ok(())
}

fn norm_of(row: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    row.iter().zip(weight).map(|(x, weight)| x / (mean + eps).sqrt() * weight).collect()
}

/// Norms of rows of many lengths, alone and after an addition, in place, of rows apart, and with a NaN.
pub fn norms(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (rows, columns) in
            [(1, 1), (3, 2), (1, 7), (5, 64), (2, 576), (33, 100), (4, 2050), (2, 4096), (1, 8192), (3, 16384), (0, 64)]
        {
            let what = format!("{dtype:?}, {rows} rows of {columns}");
            let weight = randn(&[columns], dtype, device)?;
            let norm = RmsNorm::new(weight.clone(), 1e-5);
            let wide = randn(&[rows, columns + 8], dtype, device)?;
            let narrow =
                if rows == 0 { wide.narrow(1, 0, columns)?.contiguous()? } else { wide.narrow(1, 8, columns)? };
            let residual = randn(&[rows, columns], dtype, device)?;
            let weights = exact(&weight)?;
            let normed = |x: &Tensor| -> Result<Vec<f64>> {
                Ok(exact(x)?.chunks(columns).flat_map(|row| norm_of(row, &weights, 1e-5)).collect())
            };
            let expected = normed(&narrow)?;
            let y = norm.forward(&narrow)?;
            close(&what, &y, &expected, |i| unit(dtype) * expected[i].abs() + 1e-7)?;
            // In f32, and rounded once: the bits of y. candle makes no zeros for no rows.
            if rows > 0 {
                let wide_y = Tensor::zeros((rows, columns), DType::F32, device)?;
                norm.forward_into(&narrow, &wide_y)?;
                close(&format!("{what}, in f32"), &wide_y, &expected, |i| unit(DType::F32) * expected[i].abs() + 1e-7)?;
                close(&format!("{what}, rounded"), &y, &exact(&wide_y.to_dtype(dtype)?)?, |_| 0.0)?;
            }
            let (sum, y) = norm.add(&narrow, &residual)?;
            let plain = (&narrow + &residual)?;
            close(&format!("{what}, sum"), &sum, &exact(&plain)?, |_| 0.0)?;
            let expected = normed(&plain)?;
            close(&format!("{what}, of the sum"), &y, &expected, |i| unit(dtype) * expected[i].abs() + 1e-7)?;
            // In place: the sum in x, the result in the residual, with the same bits.
            let x = narrow.copy()?;
            let x = x.contiguous()?;
            norm.add_into(&x, &residual, &x, &residual)?;
            close(&format!("{what}, in place"), &residual, &exact(&y)?, |_| 0.0)?;
            close(&format!("{what}, sum in place"), &x, &exact(&plain)?, |_| 0.0)?;
        }
    }
    let x = Tensor::new(&[[1f32, f32::NAN, 2.], [3., 4., 5.], [0., 0., 0.]], &Device::Cpu)?.to_device(device)?;
    let y = RmsNorm::new(Tensor::ones(3, DType::F32, device)?, 0.0).forward(&x)?;
    let y = exact(&y)?;
    if !y[..3].iter().all(|x| x.is_nan()) || y[3..6].iter().any(|x| x.is_nan()) || !y[6].is_nan() {
        bail!("a NaN leaves its row, or a row of zeros over a root of 0 is a number: {y:?}");
    }
    Ok(())
}

/// Rows of tables, and tokens that are in no table.
pub fn embeddings(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (count, vocabulary, columns) in [(1, 1, 8), (7, 300, 64), (130, 33, 1096), (0, 5, 16)] {
            let table = randn(&[vocabulary, columns], dtype, device)?;
            let tokens: Vec<u32> = (0..count as u32).map(|t| t * 7919 % vocabulary as u32).collect();
            let layer = Embedding::new(table.clone(), columns);
            let got = layer.forward(&Tensor::from_vec(tokens.clone(), count, device)?)?;
            let all = exact(&table)?;
            let expected: Vec<f64> =
                tokens.iter().flat_map(|t| &all[*t as usize * columns..][..columns]).copied().collect();
            close(&format!("{count} rows of {columns} in {dtype:?}"), &got, &expected, |_| 0.0)?;
        }
        let layer = Embedding::new(randn(&[4, 8], dtype, device)?, 8);
        let (out, error) = (Tensor::ones((3, 8), dtype, device)?, ints(&[0], device)?);
        layer.forward_into(&Tensor::new(&[3u32, 4, 0], device)?, &out, Some(&error))?;
        let numbers = exact(&out)?;
        if error.to_device(&Device::Cpu)?.to_vec1::<u32>()? != [2] || numbers[8..16].iter().any(|x| *x != 0.0) {
            bail!("a token outside of the vocabulary: {numbers:?}");
        }
    }
    Ok(())
}

/// Tables on the CPU, in all formats of GGUF files.
fn tables([vocabulary, columns]: [usize; 2]) -> Result<Vec<QWeights>> {
    use GgmlDType::{Q2K, Q3K, Q4K, Q4_0, Q4_1, Q5K, Q5_0, Q5_1, Q6K, Q8_0};
    let numbers = randn(&[vocabulary, columns], DType::F32, &Device::Cpu)?;
    let candles = [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K];
    let candles = candles.into_iter().map(|format| Ok(QTensor::quantize(&numbers, format)?.into()));
    let others = [Format::MXFP4, Format::IQ4_NL, Format::IQ4_XS].into_iter().map(|format| {
        let blocks = drawn::blocks(format, vocabulary * columns, 1);
        QWeights::from_bytes(format, blocks, (vocabulary, columns), &Device::Cpu)
    });
    candles.chain(others).collect()
}

/// Rows of tables in blocks, in all formats and types, and tokens that are in no table.
pub fn embeddings_of_blocks(device: &Device) -> Result<()> {
    for (count, vocabulary, columns) in [(1, 1, 256), (7, 50, 768), (70, 9, 1024), (0, 5, 256)] {
        for table in tables([vocabulary, columns])? {
            let all = exact(&table.dequantize(&Device::Cpu)?)?;
            let layer = QEmbedding::new(table.to_device(device)?)?;
            // One of the vocabulary is missing.
            let tokens: Vec<u32> = (0..count as u32).map(|t| t * 7919 % (vocabulary as u32 + 1)).collect();
            let row = |token: &u32| match all.get(*token as usize * columns..) {
                Some(rows) if !rows.is_empty() => rows[..columns].to_vec(),
                _ => vec![0.0; columns],
            };
            let expected: Vec<f64> = tokens.iter().flat_map(row).collect();
            let most = all.iter().fold(0f64, |most, x| most.max(x.abs()));
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let got = layer.forward(&Tensor::from_vec(tokens.clone(), count, device)?, dtype)?;
                let what = format!("{count} rows of {columns} in {:?}, as {dtype:?}", table.format());
                // A scale times a code may be nearly as large as the minimum that is taken away; the sum is rounded in f32.
                close(&what, &got, &expected, |i| unit(dtype) * expected[i].abs() + 1e-6 * most)?;
            }
        }
    }
    for table in tables([4, 256])? {
        let layer = QEmbedding::new(table.to_device(device)?)?;
        let (out, error) = (Tensor::ones((3, 256), DType::BF16, device)?, ints(&[0], device)?);
        layer.forward_into(&Tensor::new(&[3u32, 4, 0], device)?, &out, Some(&error))?;
        if error.to_device(&Device::Cpu)?.to_vec1::<u32>()? != [2] {
            bail!("a token outside of the vocabulary is not told");
        }
    }
    Ok(())
}

/// Gates of both layouts and all functions.
pub fn gates(device: &Device) -> Result<()> {
    let dtypes: &[DType] =
        if device.is_cpu() { &[DType::F32, DType::BF16, DType::F16] } else { &[DType::BF16, DType::F16] };
    let erf = |x: f64| candle_tilegemm::Activation::GeluErf.apply(x);
    for &dtype in dtypes {
        for (rows, n) in [(1, 8), (3, 576), (17, 1032), (0, 8)] {
            let x = randn(&[rows, 2 * n], dtype, device)?.affine(2.0, 0.0)?;
            let numbers = exact(&x)?;
            for layout in [Gate::Halves, Gate::Interleaved] {
                for function in
                    [GateFunction::SwiGlu, GateFunction::GeGluTanh, GateFunction::GeGluErf, GateFunction::Relu2]
                {
                    let mut expected = Vec::new();
                    for row in numbers.chunks(2 * n) {
                        for j in 0..n {
                            let [g, up] = match layout {
                                Gate::Halves => [row[j], row[n + j]],
                                _ => [row[2 * j], row[2 * j + 1]],
                            };
                            let gated = match function {
                                GateFunction::SwiGlu => g / (1.0 + (-g).exp()),
                                GateFunction::GeGluTanh => {
                                    0.5 * g * (1.0 + (0.797_884_560_802_865_4 * (g + 0.044715 * g * g * g)).tanh())
                                }
                                GateFunction::GeGluErf => erf(g),
                                GateFunction::Relu2 => g.max(0.0) * g.max(0.0),
                            };
                            expected.push(gated * up);
                        }
                    }
                    let what = format!("{dtype:?}, {rows} rows of {n}, {layout:?}, {function:?}");
                    // A function is as exact as results of 16 bits need.
                    let bound = |i: usize| 1.25 * unit(dtype) * f64::abs(expected[i]) + 1e-4 * unit(dtype) * 256.0;
                    let got = gate(&x, layout, function)?;
                    close(&what, &got, &expected, bound)?;
                    let out = got.zeros_like()?;
                    gate_into(&x, layout, function, &out)?;
                    close(&what, &out, &exact(&got)?, |_| 0.0)?;
                }
            }
        }
    }
    Ok(())
}

/// Sizes and types of attention.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub heads: usize,
    pub kv_heads: usize,
    pub head: usize,
    pub capacity: usize,
    pub dtype: DType,
    pub cache: DType,
}

impl Shape {
    fn cache(&self, slots: usize, device: &Device) -> Result<KvCache> {
        KvCache::new(slots, self.kv_heads, self.capacity, self.head, self.cache, device)
    }

    pub fn columns(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head
    }
}

/// A head of q or k after its norm and its rotation.
fn turned(x: &[f64], weight: Option<&[f64]>, inv_freq: &[f64], style: Option<RopeStyle>, position: i32) -> Vec<f64> {
    let mut x = weight.map_or_else(|| x.to_vec(), |weight| norm_of(x, weight, 1e-6));
    let half = x.len() / 2;
    for (i, frequency) in inv_freq.iter().enumerate() {
        let (sin, cos) = (f64::from(position) * frequency).sin_cos();
        let [a, b] = match style {
            Some(RopeStyle::Halves) => [i, i + half],
            Some(RopeStyle::Interleaved) => [2 * i, 2 * i + 1],
            None => continue,
        };
        (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
    }
    x
}

/// q, and the cache, after an append: with each rope, with norms and without, rows of padding, and positions that the cache lacks.
pub fn appends(device: &Device, shape: Shape) -> Result<()> {
    let Shape { heads, kv_heads, head, capacity, dtype, .. } = shape;
    let llama3 =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_positions: 64 };
    let ropes = [
        Rope::none(),
        Rope::new(RopeStyle::Halves, head, 10_000.0, device)?,
        Rope::new(RopeStyle::Interleaved, head, 500_000.0, device)?,
        Rope::scaled(RopeStyle::Halves, head, 10_000.0, llama3, device)?,
    ];
    let last = capacity as i32 - 1;
    let positions = [0, 1, last, 2, 3, capacity as i32, -1, 1_000_003];
    let slots = [1, 1, 0, -1, 2, 0, 0, 1]; // of 2 slots
    let is_there = |t: usize| (0..2).contains(&slots[t]) && (0..=last).contains(&positions[t]);
    for (turn, plain) in ropes.iter().enumerate() {
        for norms in [false, true] {
            let what = format!("{shape:?}, rope {turn}, norms {norms}");
            let weights = [randn(&[head], dtype, device)?, randn(&[head], dtype, device)?];
            let rope = match norms {
                true => plain.clone().with_norms(weights[0].clone(), weights[1].clone(), 1e-6),
                false => plain.clone(),
            };
            let qkv = randn(&[positions.len(), shape.columns()], dtype, device)?;
            let cache = shape.cache(2, device)?;
            let (at, of) = (ints(&positions, device)?, ints(&slots, device)?);
            let q = attention::append(&qkv, &cache, &at, Some(&of), &rope)?;
            let inv_freq = rope.inv_freq().map_or_else(|| Ok(vec![]), exact)?;
            let wide = [exact(&weights[0])?, exact(&weights[1])?];
            let numbers = exact(&qkv)?;
            let (mut expected_q, mut caches) = (Vec::new(), [0, 1].map(|_| vec![0.0; 2 * kv_heads * capacity * head]));
            for (t, row) in numbers.chunks(shape.columns()).enumerate() {
                for (h, x) in row.chunks(head).enumerate() {
                    let weight = norms.then(|| &wide[usize::from(h >= heads)][..]);
                    let out = match h >= heads + kv_heads {
                        true => x.to_vec(),
                        false => turned(x, weight, &inv_freq, rope.style(), positions[t]),
                    };
                    if h < heads {
                        expected_q.extend(out);
                    } else if is_there(t) {
                        let (which, h) = ((h - heads) / kv_heads, (h - heads) % kv_heads);
                        let row = (slots[t] as usize * kv_heads + h) * capacity + positions[t] as usize;
                        caches[which][row * head..][..head].copy_from_slice(&out);
                    }
                }
            }
            // Of a pair's two numbers, the larger decides.
            let near = |i: usize, all: &[f64]| {
                all[i / head * head..][..head].iter().fold(0.0, |most: f64, x| most.max(x.abs()))
            };
            let rounding = |i: usize, all: &[f64]| unit(dtype) * all[i].abs() + 4e-6 * near(i, all);
            close(&format!("{what}, q"), &q, &expected_q, |i| rounding(i, &expected_q))?;
            let stored = stored(&cache)?;
            for (which, name) in ["k", "v"].into_iter().enumerate() {
                let expected = &caches[which];
                let fp8 = |i: usize| 2f64.powi(-4) * expected[i].abs() + near(i, expected) / 448.0 * 2f64.powi(-9);
                let bound = |i: usize| if shape.cache == DType::F8E4M3 { fp8(i) } else { rounding(i, expected) };
                let got = Tensor::new(stored[which].as_slice(), &Device::Cpu)?;
                close(&format!("{what}, {name}"), &got, expected, bound)?;
            }
            // Into the rows that q is in.
            let part = qkv.narrow(1, 0, heads * head)?;
            attention::append_into(&qkv, &cache, &at, Some(&of), &rope, &part)?;
            close(&format!("{what}, q in place"), &part.contiguous()?, &exact(&q)?, |_| 0.0)?;
        }
    }
    Ok(())
}

/// K and V of a cache in f64.
fn stored(cache: &KvCache) -> Result<[Vec<f64>; 2]> {
    let [_, _, _, head] = cache.sizes();
    let mut both = [exact(cache.k())?, exact(cache.v())?];
    if let Some(scales) = cache.scales() {
        for (numbers, scales) in both.iter_mut().zip(scales) {
            let scales = exact(scales)?;
            numbers.iter_mut().enumerate().for_each(|(i, x)| *x *= scales[i / head]);
        }
    }
    Ok(both)
}

/// A cache of random rows.
pub fn filled(device: &Device, shape: Shape, slots: usize) -> Result<KvCache> {
    let cache = shape.cache(slots, device)?;
    let rows = slots * shape.capacity;
    let of = |f: fn(usize, usize) -> usize| {
        Tensor::from_iter((0..rows).map(|row| f(row, shape.capacity) as u32), &Device::Cpu)?.to_device(device)
    };
    let (slots, positions) = (of(|row, capacity| row / capacity)?, of(|row, capacity| row % capacity)?);
    let qkv = randn(&[rows, shape.columns()], shape.dtype, device)?;
    attention::append(&qkv, &cache, &positions, Some(&slots), &Rope::none())?;
    Ok(cache)
}

/// softmax(scale q . K^T) V of head `h`, and the bound of its error.
fn attend(
    q: &[f64],
    both: &[Vec<f64>; 2],
    first: usize,
    rows: std::ops::Range<usize>,
    (settings, h): (&Settings, usize),
) -> Vec<(f64, f64)> {
    let (head, scale) = (q.len(), f64::from(settings.scale));
    let sink = settings.sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| exact(sinks).unwrap()[h]);
    let row = |which: usize, at: usize| &both[which][(first + at) * head..][..head];
    let score = |at: usize| scale * q.iter().zip(row(0, at)).map(|(q, k)| q * k).sum::<f64>();
    let scores: Vec<f64> = rows.clone().map(score).collect();
    let top = scores.iter().copied().fold(sink, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
    let sum: f64 = weights.iter().sum::<f64>() + (sink - top).exp();
    let of = |j: usize, size: fn(f64) -> f64| {
        rows.clone().zip(&weights).map(|(at, weight)| weight * size(row(1, at)[j])).sum::<f64>() / sum
    };
    (0..head).map(|j| if rows.is_empty() { (0.0, 0.0) } else { (of(j, |x| x), of(j, f64::abs)) }).collect()
}

/// Attention of one row a sequence: lengths from 0 to beyond the capacity, windows, rows of padding, slots in another order.
pub fn decodes(device: &Device, shape: Shape) -> Result<()> {
    let Shape { heads, kv_heads, head, capacity, dtype, .. } = shape;
    let cache = filled(device, shape, 3)?;
    let both = stored(&cache)?;
    let lengths = [0, 1, 2, 17, capacity as i32 - 1, capacity as i32, capacity as i32 + 5, 33, 9, -3];
    let slots = [0, 2, 1, 0, 1, 2, 0, -1, 3, 1]; // of 3 slots
    let q = randn(&[lengths.len(), heads, head], dtype, device)?;
    let numbers = exact(&q)?;
    let workspace = Workspace::new(lengths.len(), heads, head, device)?;
    let sinks = sinks::of_heads(heads, device)?;
    for settings in [
        Settings::new(head),
        Settings::new(head).with_window(5),
        Settings::new(head).with_scale(0.7),
        Settings::new(head).with_sinks(sinks.clone()),
        Settings::new(head).with_window(5).with_sinks(sinks),
    ] {
        let (of, at) = (ints(&lengths, device)?, ints(&slots, device)?);
        let got = attention::decode(&q, &cache, &of, Some(&at), &settings, &workspace)?;
        let mut expected = Vec::new();
        for (i, q) in numbers.chunks(head).enumerate() {
            let (s, h) = (i / heads, i % heads);
            let is_there = (0..3).contains(&slots[s]);
            let length = if is_there { lengths[s].clamp(0, capacity as i32) as usize } else { 0 };
            let first = if settings.window == 0 { 0 } else { length.saturating_sub(settings.window) };
            let of_slot = (slots[s].max(0) as usize * kv_heads + h / (heads / kv_heads)) * capacity;
            expected.extend(attend(q, &both, of_slot, first..length, (&settings, h)));
        }
        compare(&format!("{shape:?}, {settings:?}"), &got, &expected, dtype)?;
        let out = got.zeros_like()?;
        attention::decode_into(&q, &cache, &of, Some(&at), &settings, &workspace, &out)?;
        close("the same again", &out, &exact(&got)?, |_| 0.0)?;
    }
    // A length up to the old capacity, in a cache that has grown.
    let (of, settings) = (ints(&[capacity as i32, 1, 2], device)?, Settings::new(head));
    let q = q.narrow(0, 0, 3)?;
    let before = attention::decode(&q, &cache, &of, None, &settings, &workspace)?;
    let after = attention::decode(&q, &cache.grown(capacity + 7)?, &of, None, &settings, &workspace)?;
    close("in a cache that has grown", &after, &exact(&before)?, |_| 0.0)
}

fn compare(what: &str, got: &Tensor, expected: &[(f64, f64)], dtype: DType) -> Result<()> {
    let numbers: Vec<f64> = expected.iter().map(|(x, _)| *x).collect();
    close(what, got, &numbers, |i| 2.0 * unit(dtype) * expected[i].1 + 1e-6)
}

/// Attention of prompts: lengths around tiles, with a past, windows, and without causality.
pub fn prefills(device: &Device, shape: Shape) -> Result<()> {
    let Shape { heads, kv_heads, head, capacity, dtype, .. } = shape;
    let cache = filled(device, shape, 2)?;
    let both = stored(&cache)?;
    let workspace = Workspace::new(1, heads, head, device)?;
    let (most, sinks) = (capacity.min(200), sinks::of_heads(heads, device)?);
    for (tokens, past) in [(1, 0), (1, 30), (2, 0), (63, 1), (64, 0), (65, 64), (129, 7), (most, 0), (0, 5), (16, 2100)]
    {
        if tokens + past > capacity {
            continue;
        }
        let q = randn(&[tokens, heads, head], dtype, device)?;
        let numbers = exact(&q)?;
        for settings in [
            Settings::new(head),
            Settings::new(head).bidirectional(),
            Settings::new(head).with_window(20),
            Settings::new(head).bidirectional().with_window(3),
            Settings::new(head).with_sinks(sinks.clone()),
            Settings::new(head).with_window(20).with_sinks(sinks.clone()),
        ] {
            let got = attention::prefill(&q, &cache, 1, past, &settings, &workspace)?;
            let mut expected = Vec::new();
            for (i, q) in numbers.chunks(head).enumerate() {
                let (position, h) = (past + i / heads, i % heads);
                let end = if settings.causal { position + 1 } else { past + tokens };
                let first = if settings.window == 0 { 0 } else { (position + 1).saturating_sub(settings.window) };
                let of_slot = (kv_heads + h / (heads / kv_heads)) * capacity;
                expected.extend(attend(q, &both, of_slot, first..end, (&settings, h)));
            }
            compare(&format!("{shape:?}, {tokens} after {past}, {settings:?}"), &got, &expected, dtype)?;
        }
    }
    Ok(())
}
