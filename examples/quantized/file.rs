//! GGUF files of llamas with seeded random blocks, in the mix of formats of Q4_K_M: no number is quantised.

use anyhow::Result;
use candle::quantized::gguf_file::{self, Value};
use candle::quantized::{GgmlDType, QStorage, QTensor};
use candle::{Device, Tensor};
use half::f16;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use std::borrow::Cow;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// The shapes of a llama.
pub struct Shapes {
    layers: usize,
    hidden: usize,
    /// Rows of the matrices of the feed-forward part.
    inner: usize,
    heads: usize,
    heads_of_keys: usize,
    vocabulary: usize,
    rope_base: f32,
}

pub const TINY: Shapes =
    Shapes { layers: 3, hidden: 256, inner: 512, heads: 4, heads_of_keys: 2, vocabulary: 512, rope_base: 10_000.0 };
pub const LLAMA_8B: Shapes = Shapes {
    layers: 32,
    hidden: 4096,
    inner: 14336,
    heads: 32,
    heads_of_keys: 8,
    vocabulary: 128_256,
    rope_base: 500_000.0,
};

/// The standard deviation of weights, as models have it.
const DEVIATION: f32 = 0.02;

/// Random bits with factors that give the weights a mean of about 0 and the deviation above.
fn blocks(format: GgmlDType, rows: usize, columns: usize, rng: &mut StdRng) -> Result<QTensor> {
    let mut bytes = vec![0; rows * columns / format.block_size() * format.type_size()];
    rng.fill_bytes(&mut bytes);
    // q4k: scales and minima of 6 bits, codes of 4 bits; the minimum is 7.5 times the scale's. q6k: scales of 8 bits with a sign, codes of 6 bits.
    let factors: &[(usize, f32)] = match format {
        GgmlDType::Q4K => &[(0, DEVIATION / 260.0), (2, 7.5 * DEVIATION / 260.0)],
        _ => &[(208, DEVIATION / 1370.0)],
    };
    for block in bytes.chunks_mut(format.type_size()) {
        for (at, factor) in factors {
            block[*at..at + 2].copy_from_slice(&f16::from_f32(*factor).to_le_bytes());
        }
    }
    Ok(QTensor::new(QStorage::from_data(Cow::Owned(bytes), &Device::Cpu, format)?, (rows, columns))?)
}

/// The format of the matrices of a layer that count most: Q6_K in the first and last eighth of the layers, and in each third one between.
fn better(layer: usize, layers: usize) -> GgmlDType {
    let eighth = layers / 8;
    let counts = layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
    if counts {
        GgmlDType::Q6K
    } else {
        GgmlDType::Q4K
    }
}

pub fn write(path: &Path, shapes: &Shapes) -> Result<()> {
    let Shapes { layers, hidden, inner, heads, heads_of_keys, vocabulary, rope_base } = *shapes;
    let mut rng = StdRng::seed_from_u64(1);
    let of_keys = hidden / heads * heads_of_keys;
    let norm = || -> Result<QTensor> {
        Ok(QTensor::quantize(&Tensor::ones(hidden, candle::DType::F32, &Device::Cpu)?, GgmlDType::F32)?)
    };
    let mut tensors = vec![
        ("token_embd.weight".to_string(), blocks(GgmlDType::Q4K, vocabulary, hidden, &mut rng)?),
        ("output_norm.weight".to_string(), norm()?),
        ("output.weight".to_string(), blocks(GgmlDType::Q6K, vocabulary, hidden, &mut rng)?),
    ];
    for layer in 0..layers {
        let (q4k, better) = (GgmlDType::Q4K, better(layer, layers));
        let matrices = [
            ("attn_q", q4k, hidden, hidden),
            ("attn_k", q4k, of_keys, hidden),
            ("attn_v", better, of_keys, hidden),
            ("attn_output", q4k, hidden, hidden),
            ("ffn_gate", q4k, inner, hidden),
            ("ffn_up", q4k, inner, hidden),
            ("ffn_down", better, hidden, inner),
        ];
        for (name, format, rows, columns) in matrices {
            tensors.push((format!("blk.{layer}.{name}.weight"), blocks(format, rows, columns, &mut rng)?));
        }
        for name in ["attn_norm", "ffn_norm"] {
            tensors.push((format!("blk.{layer}.{name}.weight"), norm()?));
        }
    }
    let number = |x: usize| Value::U32(x as u32);
    let metadata = [
        ("general.architecture", Value::String("llama".into())),
        ("llama.attention.head_count", number(heads)),
        ("llama.attention.head_count_kv", number(heads_of_keys)),
        ("llama.block_count", number(layers)),
        ("llama.embedding_length", number(hidden)),
        ("llama.rope.dimension_count", number(hidden / heads)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.rope.freq_base", Value::F32(rope_base)),
    ];
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(name, value)| (*name, value)).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut writer = BufWriter::new(File::create(path)?);
    Ok(gguf_file::write(&mut writer, &metadata, &tensors)?)
}
