//! GGUF's blocks that candle does not have, and files with them, on the CPU.

#[path = "../support/gguf.rs"]
mod files;

use crate::into::products::drawn::blocks;
use candle::quantized::gguf_file::{Content, Value};
use candle::quantized::{GgmlDType, QTensor};
use candle::{DType, Device, Module, Result, Tensor, D};
use candle_tilegemm::gguf::{GgufFile, Tensors};
use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg};
use candle_tilegemm::nn::{GateFunction, GatedMlp, MergedLinear, QEmbedding, QLinear, QWeights};
use candle_tilegemm::Format;
use files::{file, Counting, Entry};
use half::f16;
use std::io::{BufReader, Cursor};

const FORMATS: [Format; 3] = [Format::MXFP4, Format::IQ4_NL, Format::IQ4_XS];
const CPU: Device = Device::Cpu;

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Bytes of a linear congruential generator.
fn bytes(count: usize, mut state: u32) -> Vec<u8> {
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(|_| next()).collect()
}

fn dequantised(format: Format, bytes: &[u8]) -> Vec<f32> {
    let columns = bytes.len() / format.block().bytes * format.block().elements;
    numbers(&QWeights::from_bytes(format, bytes, (1, columns), &CPU).unwrap().dequantize(&CPU).unwrap())
}

/// 512 numbers of each format, as a program in numpy has them, which agrees bit for bit with ggml's `gguf` package 0.19: some of them, and a hash (FNV-1a) of all bits.
#[test]
fn numbers_are_those_of_numpy() {
    let expected = [
        (Format::MXFP4, [0.03125, -0.00390625, 0.01171875, 0.015625, 0.75], 0xd0b5_f477_2752_853a),
        (
            Format::IQ4_NL,
            [0.13002777, -0.650_138_85, -0.100_021_36, -0.350_074_77, 14.243_042],
            0xf01f_4568_16cd_cc30u64,
        ),
        (Format::IQ4_XS, [-2.250_480_7, 1.980_423, -1.170_249_9, 9.361_999_5, -11.702_499], 0x69b6_cb4b_7659_2ec6),
    ];
    for (format, some, hash) in expected {
        let block = format.block();
        let count = 512 / block.elements;
        let mut bytes = bytes(count * block.bytes, 11);
        for (i, block) in bytes.chunks_mut(block.bytes).enumerate() {
            match format {
                Format::MXFP4 => block[0] = 120 + (i % 9) as u8,
                _ => block[..2].copy_from_slice(&f16::from_f64(0.01 * (i + 1) as f64).to_le_bytes()),
            }
        }
        let got = dequantised(format, &bytes);
        assert_eq!([0, 1, 2, 16, 511].map(|i| got[i]), some, "{format}");
        let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        assert_eq!(got.iter().flat_map(|x| x.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, fnv), hash, "{format}");
    }
}

/// A number by the words of the formats, one at a time and in f64.
fn number(format: Format, block: &[u8], i: usize) -> f64 {
    const TABLE: &str = "-127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113";
    let (sub, place) = (i / 32, i % 32);
    let codes = &block[block.len() - 16 * (format.block().elements / 32 - sub)..];
    let code = usize::from(if place < 16 { codes[place] % 16 } else { codes[place - 16] / 16 });
    let of_table: f64 = TABLE.split(' ').nth(code).unwrap().parse().unwrap();
    let d = f16::from_le_bytes([block[0], block[1]]).to_f64();
    match format {
        Format::MXFP4 => {
            let (exponent, half) = ((code % 8) / 2, (code % 2) as f64 / 2.0);
            let magnitude = if exponent == 0 { half } else { (1.0 + half) * 2f64.powi(exponent as i32 - 1) };
            let power = if block[0] == 255 { f64::NAN } else { 2f64.powi(i32::from(block[0]) - 127) };
            power * if code < 8 { magnitude } else { -magnitude }
        }
        Format::IQ4_NL => d * of_table,
        _ => {
            let low = block[4 + sub / 2] / [1, 16][sub % 2] % 16;
            let high = (u16::from_le_bytes([block[2], block[3]]) / 4u16.pow(sub as u32)) % 4;
            d * (f64::from(low) + 16.0 * f64::from(high) - 32.0) * of_table
        }
    }
}

/// All bytes are blocks: powers of two of all codes, and scales that are infinite or NaN.
#[test]
fn any_bytes_are_blocks() {
    for format in FORMATS {
        let block = format.block();
        let mut bytes = bytes(512 * block.bytes, 3);
        bytes.chunks_mut(block.bytes).enumerate().for_each(|(i, block)| block[0] = i as u8);
        bytes[block.bytes..][..2].copy_from_slice(&f16::INFINITY.to_le_bytes());
        let got = dequantised(format, &bytes);
        for (i, got) in got.into_iter().enumerate() {
            let of_block = &bytes[i / block.elements * block.bytes..][..block.bytes];
            let exact = number(format, of_block, i % block.elements);
            // As IEEE 754 rounds it: 6 * 2^127 is infinite in f32.
            let expected = exact as f32;
            assert!(got == expected || (got.is_nan() && expected.is_nan()), "{format}, {i}: {got}, {expected}");
        }
    }
}

/// Layers agree with their dequantised weights.
#[test]
fn layers_are_those_of_the_numbers() -> Result<()> {
    let (n, k) = (70, 512);
    for (seed, format) in FORMATS.into_iter().enumerate() {
        let weights = QWeights::from_bytes(format, blocks(format, n * k, seed as u64), (n, k), &CPU)?;
        assert_eq!((weights.format(), weights.shape().dims()), (Some(format), &[n, k][..]));
        let dense = weights.dequantize(&CPU)?;
        let bias = Tensor::randn(0f32, 1f32, n, &CPU)?;
        let layer = QLinear::from_blocks(weights.clone(), Some(bias.clone()))?;
        for shape in [&[1, k][..], &[2, 3, k], &[40, k], &[0, k]] {
            let x = Tensor::randn(0f32, 1f32, shape, &CPU)?;
            let expected = x.broadcast_matmul(&dense.t()?)?.broadcast_add(&bias)?;
            let got = layer.forward(&x)?;
            assert_eq!(got.dims(), expected.dims());
            for (got, expected) in numbers(&got).into_iter().zip(numbers(&expected)) {
                assert!((got - expected).abs() < 2e-5, "{format} {shape:?}: {got}, {expected}");
            }
        }
        let wrong = layer.forward(&Tensor::zeros((1, k + 32), DType::F32, &CPU)?).unwrap_err().to_string();
        assert!(wrong.contains("expected rows of 512 numbers"), "{wrong}");

        let table = QEmbedding::new(weights.clone())?;
        let rows = table.forward(&Tensor::new(&[3u32, 69, 70], &CPU)?, DType::F32)?;
        let expected = [numbers(&dense.get(3)?), numbers(&dense.get(69)?), vec![0.0; k]].concat();
        assert_eq!(numbers(&rows), expected);
    }
    Ok(())
}

/// Neighbours of one format are one product.
#[test]
fn merged_layers_and_gates_have_any_format() -> Result<()> {
    let (hidden, inner) = (256, 512);
    let weights = |format: Format, [n, k]: [usize; 2], seed| {
        QWeights::from_bytes(format, blocks(format, n * k, seed), (n, k), &CPU)
    };
    for [of_gate, of_up] in [[Format::MXFP4, Format::MXFP4], [Format::IQ4_XS, Format::IQ4_NL]] {
        let parts = [weights(of_gate, [inner, hidden], 1)?, weights(of_up, [inner, hidden], 2)?];
        let layers = parts.iter().map(|part| QLinear::from_blocks(part.clone(), None)).collect::<Result<Vec<_>>>()?;
        let merged = MergedLinear::new(layers)?;
        assert_eq!(merged.products(), if of_gate == of_up { 1 } else { 2 });
        let x = Tensor::randn(0f32, 1f32, (3, hidden), &CPU)?;
        let [gate, up] = &parts;
        let alone = |weights: &QWeights| x.matmul(&weights.dequantize(&CPU)?.t()?);
        let expected = Tensor::cat(&[alone(gate)?, alone(up)?], 1)?;
        for (got, expected) in numbers(&merged.forward(&x)?).into_iter().zip(numbers(&expected)) {
            assert!((got - expected).abs() < 2e-5, "{got}, {expected}");
        }
        let down = weights(Format::IQ4_NL, [hidden, inner], 3)?;
        let mlp = GatedMlp::from_qtensors([gate.clone(), up.clone(), down.clone()], GateFunction::SwiGlu)?;
        let inner = (candle_nn::ops::silu(&alone(gate)?)? * alone(up)?)?;
        let expected = inner.matmul(&down.dequantize(&CPU)?.t()?)?;
        for (got, expected) in numbers(&mlp.forward(&x)?).into_iter().zip(numbers(&expected)) {
            assert!((got - expected).abs() < 1e-4 * expected.abs().max(1.0), "{got}, {expected}");
        }
    }
    Ok(())
}

#[test]
fn experts_have_any_format() -> Result<()> {
    let (experts, inner, hidden) = (4, 64, 256);
    let config = MoeCfg {
        hidden_size: hidden,
        num_experts: experts,
        num_experts_per_tok: 2,
        moe_intermediate_size: inner,
        norm_topk_prob: true,
        act: candle_nn::Activation::Silu,
        decoder_sparse_step: None,
    };
    let weights = |format: Format, [n, k]: [usize; 2], seed| {
        QWeights::from_bytes(format, blocks(format, experts * n * k, seed), (experts, n, k), &CPU)
    };
    let router = Tensor::randn(0f32, 1f32, (experts, hidden), &CPU)?;
    let gate = weights(Format::IQ4_XS, [inner, hidden], 1)?;
    for up in [weights(Format::IQ4_XS, [inner, hidden], 2)?, weights(Format::MXFP4, [inner, hidden], 2)?] {
        let down = weights(Format::MXFP4, [hidden, inner], 3)?;
        let layer = FusedMoe::from_qweights(router.clone(), [&gate, &up, &down], &config)?;
        let dense = |weights: &QWeights| weights.dequantize(&CPU);
        let gate_up = Tensor::cat(&[dense(&gate)?, dense(&up)?], 1)?;
        let truth = FusedMoe::from_weights(router.clone(), gate_up, dense(&down)?, &config)?;
        let x = Tensor::randn(0f32, 1f32, (1, 5, hidden), &CPU)?;
        let [got, expected] = [layer.forward(&x, true)?, truth.forward(&x, true)?].map(|y| numbers(&y));
        for (got, expected) in got.into_iter().zip(expected) {
            assert!((got - expected).abs() < 1e-4 * expected.abs().max(1.0), "{got}, {expected}");
        }
    }
    Ok(())
}

/// A file with blocks of all kinds, dense numbers, and values of all types before them.
#[test]
fn a_file_is_read_with_its_tensors() -> Result<()> {
    let dense = Tensor::randn(0f32, 1f32, (3, 32), &CPU)?;
    let candles = QTensor::quantize(&Tensor::randn(0f32, 1f32, (5, 64), &CPU)?, GgmlDType::Q8_0)?;
    let mut entries = vec![
        Entry::of_tensor("dense", &QTensor::quantize(&dense, GgmlDType::F32)?)?,
        Entry::of_tensor("candles", &candles)?,
    ];
    let shapes = [vec![7, 256], vec![2, 3, 512], vec![256]];
    for (format, shape) in FORMATS.into_iter().zip(&shapes) {
        entries.push(Entry::new(format.name(), format, shape, blocks(format, shape.iter().product(), 5)));
    }
    let words = Value::Array(vec![Value::String("a".into()), Value::String("bc".into())]);
    let nested = Value::Array(vec![words.clone(), Value::Array(vec![Value::String("d".into())])]);
    let metadata = [
        ("words", words),
        ("nested", nested),
        ("u8", Value::U8(1)),
        ("i16", Value::I16(-2)),
        ("u64", Value::U64(3)),
        ("f32", Value::F32(0.5)),
        ("f64", Value::F64(0.25)),
        ("bool", Value::Bool(true)),
        ("general.alignment", Value::U32(64)),
    ];
    let mut reader = Cursor::new(file(&metadata, &entries));
    assert!(Content::read(&mut reader.clone()).is_err(), "candle reads these formats: this crate's reader can go");
    let gguf = GgufFile::read(&mut reader)?;
    assert_eq!(gguf.content.metadata.len(), metadata.len());
    assert_eq!(gguf.content.metadata["nested"].to_vec()?.len(), 2);
    let mut names: Vec<&str> = gguf.content.tensor_infos.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!((names, gguf.tensors.names().count()), (vec!["candles", "dense"], 5));
    for (format, shape) in FORMATS.into_iter().zip(&shapes) {
        assert_eq!(gguf.tensors.shape(format.name()).unwrap().dims(), shape);
        let weights = gguf.tensors.read(&mut reader, format.name(), &CPU)?;
        assert_eq!((weights.format(), weights.shape().dims()), (Some(format), &shape[..]));
        assert_eq!(weights.data()?[..], blocks(format, shape.iter().product(), 5)[..]);
    }
    let read = gguf.tensors.read(&mut reader, "dense", &CPU)?;
    assert_eq!((read.format(), numbers(&read.dequantize(&CPU)?)), (None, numbers(&dense)));
    let read = gguf.tensors.read(&mut reader, "candles", &CPU)?;
    assert_eq!((read.format(), &read.data()?[..]), (Some(Format::Q8_0), &candles.data()?[..]));
    assert!(gguf.tensors.read(&mut reader, "none", &CPU).unwrap_err().to_string().contains("none is missing"));

    // candle's own list of the same tensors.
    let listed = Tensors::from(&gguf.content);
    assert_eq!(listed.read(&mut reader, "candles", &CPU)?.data()?[..], candles.data()?[..]);
    assert!(listed.shape("mxfp4").is_none());
    Ok(())
}

/// Tensors of all kinds, with rows of 4 blocks and more.
fn of_all_kinds() -> Result<Vec<Entry>> {
    let mut entries = vec![];
    let shapes = [vec![8, 1024], vec![3, 4, 1024], vec![1024]];
    for (i, shape) in shapes.iter().enumerate() {
        let numbers = Tensor::randn(0f32, 1f32, &shape[..], &CPU)?;
        for of in [GgmlDType::F32, GgmlDType::F16, GgmlDType::BF16, GgmlDType::Q8_0, GgmlDType::Q4_1, GgmlDType::Q6K] {
            entries.push(Entry::of_tensor(&format!("{i} in {of:?}"), &QTensor::quantize(&numbers, of)?)?);
        }
        for format in FORMATS {
            let data = blocks(format, shape.iter().product(), 8);
            entries.push(Entry::new(&format!("{i} in {format}"), format, shape, data));
        }
    }
    Ok(entries)
}

/// The bytes of each row.
fn of_rows(weights: &QWeights) -> Result<Tensor> {
    let (data, (_, outer)) = (weights.data()?.into_owned(), weights.shape().dims().split_last().unwrap());
    let of_row = data.len() / outer.iter().product::<usize>();
    Tensor::from_vec(data, [outer, &[of_row]].concat(), &CPU)
}

/// Beside one another parts are the tensor, byte for byte, and no other bytes are read.
#[test]
fn parts_of_tensors_are_read_alone() -> Result<()> {
    let entries = of_all_kinds()?;
    let mut reader = Counting { reader: Cursor::new(file(&[], &entries)), given: 0 };
    let tensors = GgufFile::read(&mut reader)?.tensors;
    for Entry { name, shape, data, .. } in &entries {
        let whole = tensors.read(&mut reader, name, &CPU)?;
        assert_eq!((whole.shape().dims(), &whole.data()?[..]), (&shape[..], &data[..]), "{name}");
        for (dim, &size) in shape.iter().enumerate() {
            // The first part is a quarter, and the other one the rest. Three experts: one, and two.
            let cut = (size / 4).max(1);
            let mut parts = vec![];
            for range in [0..cut, cut..size] {
                let count = range.len();
                reader.given = 0;
                let part = tensors.read_part(&mut reader, name, dim, range, &CPU)?;
                assert_eq!(reader.given, data.len() * count / size, "{name}, dimension {dim}");
                assert_eq!((part.format(), part.shape().dims()[dim]), (whole.format(), count));
                parts.push(of_rows(&part)?);
            }
            let together = Tensor::cat(&parts, dim)?.flatten_all()?.to_vec1::<u8>()?;
            assert!(together == *data, "{name}, dimension {dim}");
        }
    }
    let rows = tensors.read_part(&mut reader, "1 in Q8_0", D::Minus2, 1..3, &CPU)?;
    assert_eq!(rows.shape().dims(), [3, 2, 1024]);

    // A reader with a buffer reads no byte twice, though the buffer is longer than a row.
    let (experts, buffer) = (&entries.iter().find(|entry| entry.name == "1 in Q8_0").unwrap().data, 4096);
    reader.given = 0;
    let mut reader = BufReader::with_capacity(buffer, reader);
    tensors.read_part(&mut reader, "1 in Q8_0", D::Minus1, 32..64, &CPU)?;
    let given = reader.get_ref().given;
    assert!(given <= experts.len() + buffer, "{given} bytes of {}", experts.len());
    Ok(())
}

#[test]
fn parts_that_cut_a_block_are_errors() -> Result<()> {
    let bytes = file(&[], &of_all_kinds()?);
    let mut reader = Cursor::new(bytes);
    let tensors = GgufFile::read(&mut reader)?.tensors;
    let mut said = |name: &str, dim: D, part: std::ops::Range<usize>| {
        tensors.read_part(&mut reader, name, dim, part, &CPU).map(drop).unwrap_err().to_string()
    };
    for (name, part, kind, block) in
        [("0 in Q8_0", 0..48, "q8_0", 32), ("1 in Q6K", 128..256, "q6k", 256), ("2 in iq4_xs", 64..96, "iq4_xs", 256)]
    {
        let expected = format!(
            "columns {part:?} of the tensor {name} cut a block, of {block} numbers in {kind}; expected multiples of {block}"
        );
        let said = said(name, D::Minus1, part);
        assert!(said.contains(&expected), "{said}");
    }
    let text = said("0 in F32", D::Minus2, 7..9);
    assert!(text.contains("7..9 of dimension 0 of the tensor 0 in F32, which has the shape [8, 1024]"), "{text}");
    assert!(said("2 in F32", D::Minus2, 0..1).contains("out of range"));
    assert!(said("none", D::Minus1, 0..1).contains("none is missing"));
    Ok(())
}

#[test]
fn what_is_wrong_with_a_file_is_an_error() {
    let format = Format::MXFP4;
    let whole = Entry::new("w", format, &[4, 64], blocks(format, 256, 1));
    let bytes = file(&[("a", Value::U32(1))], std::slice::from_ref(&whole));
    // Zeros fill the header up to the data.
    let header = bytes.len() - whole.data.len() - 14;
    for length in 0..header {
        assert!(GgufFile::read(&mut Cursor::new(&bytes[..length])).is_err(), "{length} bytes of {}", bytes.len());
    }
    let mut cut = Cursor::new(&bytes[..bytes.len() - 1]);
    let gguf = GgufFile::read(&mut cut).unwrap();
    let said = gguf.tensors.read(&mut cut, "w", &CPU).unwrap_err().to_string();
    assert!(said.contains("the tensor w has the shape [4, 64] in mxfp4; the file has 135 bytes of it"), "{said}");
    let said = gguf.tensors.read_part(&mut cut, "w", 0, 0..1, &CPU).unwrap_err().to_string();
    assert!(said.contains("the file has 135 bytes of it"), "{said}");

    let unknown = Entry { kind: 16, ..whole.clone() };
    let said = GgufFile::read(&mut Cursor::new(file(&[], &[unknown]))).unwrap_err().to_string();
    assert!(said.contains("unknown dtype for tensor 16"), "{said}");
    let halved = Entry { shape: vec![8, 48], ..whole };
    let mut reader = Cursor::new(file(&[], &[halved]));
    let gguf = GgufFile::read(&mut reader).unwrap();
    assert!(gguf.tensors.read(&mut reader, "w", &CPU).is_err(), "rows of a block and a half");

    let from = |format, count: usize| QWeights::from_bytes(format, vec![0; count], (2, 32), &CPU).map(drop);
    assert!(from(Format::MXFP4, 34).is_ok() && from(Format::Q8_0, 68).is_ok());
    assert!(from(Format::MXFP4, 35).is_err() && from(Format::F8E4M3, 64).is_err() && from(Format::IQ4_XS, 34).is_err());
}
