//! Formats of weights.

use candle::quantized::GgmlDType;
use candle::DType;
use candle_tilegemm::nn::narrow::{Granularity, Quantizer};
use std::fmt;
use std::str::FromStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// As they lie in the file.
    File,
    /// Dequantised.
    Dense(DType),
    /// Dequantised and quantised again.
    Blocks(GgmlDType),
    /// Dequantised, and the matrices of layers rounded to narrow weights as they are loaded; stock has the numbers that these stand for.
    Rounded(Quantizer),
}

const NAMES: [(&str, Format); 13] = [
    ("file", Format::File),
    ("f32", Format::Dense(DType::F32)),
    ("f16", Format::Dense(DType::F16)),
    ("bf16", Format::Dense(DType::BF16)),
    ("q8_0", Format::Blocks(GgmlDType::Q8_0)),
    ("q5_1", Format::Blocks(GgmlDType::Q5_1)),
    ("q5_0", Format::Blocks(GgmlDType::Q5_0)),
    ("q4_1", Format::Blocks(GgmlDType::Q4_1)),
    ("q4_0", Format::Blocks(GgmlDType::Q4_0)),
    ("fp8", Format::Rounded(Quantizer::Fp8(Granularity::Channel))),
    ("int8", Format::Rounded(Quantizer::Int8 { group: None })),
    ("int4", Format::Rounded(Quantizer::Int4 { group: Some(64), zeros: false })),
    ("mxfp4", Format::Rounded(Quantizer::Mxfp4)),
];

impl Format {
    pub fn of_cpu() -> Vec<Self> {
        vec![Self::File, Self::Dense(DType::F32)]
    }

    pub fn of_gpu() -> Vec<Self> {
        let dense = [Self::File, Self::Dense(DType::BF16), Self::Dense(DType::F16), Self::Blocks(GgmlDType::Q8_0)];
        let is_rounded = |format: &Self| matches!(format, Self::Rounded(_));
        dense.into_iter().chain(NAMES.map(|(_, format)| format).into_iter().filter(is_rounded)).collect()
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, format)| format == self).map_or("?", |(name, _)| name);
        f.pad(name)
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = NAMES.iter().find(|(name, _)| *name == text.to_lowercase());
        let names = || NAMES.map(|(name, _)| name).join(", ");
        found.map(|(_, format)| *format).ok_or_else(|| format!("expected one of {}", names()))
    }
}
