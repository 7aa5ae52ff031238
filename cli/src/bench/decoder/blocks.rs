//! A GGUF file of random blocks that lies nowhere: its bytes are made as they are read.

use super::super::weights::words;
use super::size::Size;
use candle::quantized::gguf_file::{Content, TensorInfo, Value, VersionedMagic};
use candle::quantized::GgmlDType;
use half::f16;
use std::collections::HashMap;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};

/// Blocks of a format before they repeat. A prime: rows of a matrix start at other blocks, whatever their length is.
const BLOCKS: usize = 65_521;
/// The deviation of weights, as models have it.
const DEVIATION: f32 = 0.02;

/// The tensors of a file, one after the other.
pub struct Bytes {
    parts: Vec<Part>,
    patterns: HashMap<u32, Vec<u8>>,
    at: u64,
}

struct Part {
    start: u64,
    end: u64,
    /// The format's number in `patterns`.
    pattern: u32,
}

/// The file of a llama.
pub fn file(size: &Size) -> (Content, Bytes) {
    let [table, head] = size.tables();
    let mut tensors = vec![
        ("token_embd.weight".to_string(), vec![size.vocabulary, size.hidden], table),
        ("output_norm.weight".to_string(), vec![size.hidden], GgmlDType::F32),
    ];
    if !size.tied {
        tensors.push(("output.weight".to_string(), vec![size.vocabulary, size.hidden], head));
    }
    for layer in 0..size.layers {
        let at = |name: &str| format!("blk.{layer}.{name}.weight");
        let matrices = size.matrices(layer).into_iter();
        tensors.extend(matrices.map(|matrix| (at(matrix.name), vec![matrix.rows, matrix.columns], matrix.format)));
        tensors.extend(["attn_norm", "ffn_norm"].map(|name| (at(name), vec![size.hidden], GgmlDType::F32)));
    }
    let (mut parts, mut infos, mut patterns) = (vec![], HashMap::new(), HashMap::new());
    let mut offset = 0;
    for (name, shape, format) in tensors {
        let numbers: usize = shape.iter().product();
        let pattern = format as u32;
        patterns.entry(pattern).or_insert_with(|| self::pattern(format));
        let end = offset + (numbers / format.block_size() * format.type_size()) as u64;
        infos.insert(name, TensorInfo { ggml_dtype: format, shape: shape.into(), offset });
        parts.push(Part { start: offset, end, pattern });
        offset = end;
    }
    let content = Content {
        magic: VersionedMagic::GgufV3,
        metadata: metadata(size).into_iter().map(|(name, value)| (name.to_string(), value)).collect(),
        tensor_infos: infos,
        tensor_data_offset: 0,
    };
    (content, Bytes { parts, patterns, at: 0 })
}

fn metadata(size: &Size) -> [(&'static str, Value); 10] {
    let number = |x: usize| Value::U32(x as u32);
    [
        ("general.architecture", Value::String("llama".into())),
        ("llama.block_count", number(size.layers)),
        ("llama.context_length", number(size.positions)),
        ("llama.embedding_length", number(size.hidden)),
        ("llama.feed_forward_length", number(size.inner)),
        ("llama.attention.head_count", number(size.heads)),
        ("llama.attention.head_count_kv", number(size.kv_heads)),
        ("llama.rope.dimension_count", number(size.head)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(size.eps as f32)),
        ("llama.rope.freq_base", Value::F32(size.rope_base as f32)),
    ]
}

/// Random bits with factors that give the weights a mean of about 0 and the deviation above; ones for norms.
fn pattern(format: GgmlDType) -> Vec<u8> {
    if format == GgmlDType::F32 {
        return 1f32.to_le_bytes().repeat(1024);
    }
    let count = BLOCKS * format.type_size();
    let mut bytes: Vec<u8> = words(u64::from(format as u32)).flat_map(u64::to_le_bytes).take(count).collect();
    // Places of factors in a block, and factors over the deviation of the numbers that they scale.
    let factors: &[(usize, f32)] = match format {
        // Scales and minima of 6 bits, numbers of 4 bits; the minimum is 7.5 times the scale.
        GgmlDType::Q4K => &[(0, 1.0 / 260.0), (2, 7.5 / 260.0)],
        // Scales of 8 bits with a sign, numbers of 6 bits.
        GgmlDType::Q6K => &[(208, 1.0 / 1370.0)],
        // Numbers of 4 bits, and the number that 0 stands for.
        GgmlDType::Q4_1 => &[(0, 1.0 / 4.61), (2, -7.5 / 4.61)],
        // Numbers of 8 bits with a sign.
        _ => &[(0, 1.0 / 73.9)],
    };
    for block in bytes.chunks_mut(format.type_size()) {
        for (at, factor) in factors {
            block[*at..at + 2].copy_from_slice(&f16::from_f32(DEVIATION * factor).to_le_bytes());
        }
    }
    bytes
}

impl Read for Bytes {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let part = self.parts.partition_point(|part| part.end <= self.at);
        let Some(Part { start, end, pattern }) = self.parts.get(part) else { return Ok(0) };
        let pattern = &self.patterns[pattern];
        let from = (self.at - start) as usize % pattern.len();
        let count = buffer.len().min(pattern.len() - from).min((end - self.at) as usize);
        buffer[..count].copy_from_slice(&pattern[from..from + count]);
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Bytes {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let (base, offset) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::End(offset) => (self.parts.last().map_or(0, |part| part.end), offset),
            SeekFrom::Current(offset) => (self.at, offset),
        };
        let before = || Error::new(ErrorKind::InvalidInput, "a place before the file");
        self.at = base.checked_add_signed(offset).ok_or_else(before)?;
        Ok(self.at)
    }
}
