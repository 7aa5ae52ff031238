//! GGUF files with blocks that candle does not write.

use candle::quantized::gguf_file::Value;
use candle::quantized::{GgmlDType, QTensor};
use candle::Result;
use candle_tilegemm::Format;
use std::io::{self, Read, Seek, SeekFrom};

/// A tensor of a file.
#[derive(Clone)]
pub struct Entry {
    pub name: String,
    /// ggml's number of the type.
    pub kind: u32,
    pub shape: Vec<usize>,
    pub data: Vec<u8>,
}

impl Entry {
    /// Blocks that candle does not have.
    pub fn new(name: &str, format: Format, shape: &[usize], data: Vec<u8>) -> Self {
        let kind = match format {
            Format::IQ4_NL => 20,
            Format::IQ4_XS => 23,
            Format::MXFP4 => 39,
            other => panic!("candle has {other}"),
        };
        Self { name: name.into(), kind, shape: shape.to_vec(), data }
    }

    pub fn of_tensor(name: &str, tensor: &QTensor) -> Result<Self> {
        let kind = match tensor.dtype() {
            GgmlDType::F32 => 0,
            GgmlDType::F16 => 1,
            GgmlDType::Q4_0 => 2,
            GgmlDType::Q4_1 => 3,
            GgmlDType::Q8_0 => 8,
            GgmlDType::Q4K => 12,
            GgmlDType::Q5K => 13,
            GgmlDType::Q6K => 14,
            GgmlDType::BF16 => 30,
            other => panic!("{other:?}"),
        };
        Ok(Self { name: name.into(), kind, shape: tensor.shape().dims().to_vec(), data: tensor.data()?.into_owned() })
    }
}

/// The bytes of a file of version 3.
pub fn file(metadata: &[(&str, Value)], tensors: &[Entry]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    let count = |bytes: &mut Vec<u8>, count: usize| bytes.extend((count as u64).to_le_bytes());
    count(&mut bytes, tensors.len());
    count(&mut bytes, metadata.len());
    let text = |bytes: &mut Vec<u8>, text: &str| {
        count(bytes, text.len());
        bytes.extend(text.as_bytes());
    };
    for (name, value) in metadata {
        text(&mut bytes, name);
        bytes.extend(number_of(value).to_le_bytes());
        put(&mut bytes, value);
    }
    let alignment = metadata.iter().find_map(|(name, value)| match value {
        Value::U32(alignment) if *name == "general.alignment" => Some(*alignment as usize),
        _ => None,
    });
    let alignment = alignment.unwrap_or(32);
    let mut offset = 0;
    for tensor in tensors {
        text(&mut bytes, &tensor.name);
        bytes.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|size| count(&mut bytes, *size));
        bytes.extend(tensor.kind.to_le_bytes());
        count(&mut bytes, offset);
        offset += tensor.data.len().next_multiple_of(alignment);
    }
    for tensor in tensors {
        bytes.resize(bytes.len().next_multiple_of(alignment), 0);
        bytes.extend(&tensor.data);
    }
    bytes
}

fn number_of(value: &Value) -> u32 {
    match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::String(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    }
}

fn put(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(x) => bytes.extend(x.to_le_bytes()),
        Value::I8(x) => bytes.extend(x.to_le_bytes()),
        Value::U16(x) => bytes.extend(x.to_le_bytes()),
        Value::I16(x) => bytes.extend(x.to_le_bytes()),
        Value::U32(x) => bytes.extend(x.to_le_bytes()),
        Value::I32(x) => bytes.extend(x.to_le_bytes()),
        Value::U64(x) => bytes.extend(x.to_le_bytes()),
        Value::I64(x) => bytes.extend(x.to_le_bytes()),
        Value::F32(x) => bytes.extend(x.to_le_bytes()),
        Value::F64(x) => bytes.extend(x.to_le_bytes()),
        Value::Bool(x) => bytes.push(u8::from(*x)),
        Value::String(text) => {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        Value::Array(values) => {
            bytes.extend(values.first().map_or(4, number_of).to_le_bytes());
            bytes.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| put(bytes, value));
        }
    }
}

/// A reader that counts the bytes it gives.
pub struct Counting<R> {
    pub reader: R,
    pub given: usize,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(to)?;
        self.given += count;
        Ok(count)
    }
}

impl<R: Seek> Seek for Counting<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.reader.seek(to)
    }
}
