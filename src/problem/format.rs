//! Formats of matrices: how their numbers are stored.

use std::fmt;

/// How the numbers of a matrix are stored: each by itself, or in blocks of consecutive numbers along K.
///
/// The block formats are the formats of GGUF files (ggml-common.h of llama.cpp), and formats of B. [`Format::F8E4M3`] is a format of A and
/// B, with results in bf16 or f32. Beside an A in f16, bf16 or f32 it is one of the formats of narrow weights ([`Format::is_narrow`]), whose
/// factors are a matrix of their own ([`Scale`](crate::problem::Scale)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Format {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// 8-bit floating point, 4 bits of exponent and 3 of mantissa, without infinities (OCP OFP8).
    F8E4M3,
    /// Codes of 4 bits less a zero, 8 unless [`Scale`](crate::problem::Scale) has zeros: 32 numbers in 16 bytes, in the order of `csrc/tilegemm.h`.
    U4,
    /// 4-bit floating point, 2 bits of exponent and 1 of mantissa (OCP MX, NVFP4): 32 numbers in 16 bytes, in the order of [`Format::U4`].
    F4E2M1,
    /// 8-bit two's complement.
    I8,
    /// Codes of 8 bits less a zero, 128 unless [`Scale`](crate::problem::Scale) has zeros.
    U8,
    /// Powers of two from 2^-127 to 2^127, and NaN (OCP MX): a format of factors.
    F8E8M0,
    /// GGUF, 32 numbers of 4 bits and an f16 scale.
    #[serde(rename = "q4_0")]
    Q4_0,
    /// GGUF, 32 numbers of 4 bits, an f16 scale and an f16 minimum.
    #[serde(rename = "q4_1")]
    Q4_1,
    /// GGUF, 32 numbers of 5 bits and an f16 scale.
    #[serde(rename = "q5_0")]
    Q5_0,
    /// GGUF, 32 numbers of 5 bits, an f16 scale and an f16 minimum.
    #[serde(rename = "q5_1")]
    Q5_1,
    /// GGUF, 32 numbers of 8 bits and an f16 scale.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// GGUF, 256 numbers of 2 bits, 16 scales and minima of 4 bits, and an f16 factor of both.
    Q2K,
    /// GGUF, 256 numbers of 3 bits, 16 scales of 6 bits, and their f16 factor.
    Q3K,
    /// GGUF, 256 numbers of 4 bits, 8 scales and minima of 6 bits, and an f16 factor of both.
    Q4K,
    /// GGUF, 256 numbers of 5 bits, 8 scales and minima of 6 bits, and an f16 factor of both.
    Q5K,
    /// GGUF, 256 numbers of 6 bits, 16 scales of 8 bits, and their f16 factor.
    Q6K,
    /// GGUF, 32 numbers of [`Format::F4E2M1`] and a power of two (OCP MX), whose code 255 is NaN.
    MXFP4,
    /// GGUF, 32 places in a table of 16 integers, and an f16 scale.
    #[allow(non_camel_case_types)]
    IQ4_NL,
    /// GGUF, 256 places in the table of [`Format::IQ4_NL`], 8 scales of 6 bits, and their f16 factor.
    #[allow(non_camel_case_types)]
    IQ4_XS,
}

/// The numbers that a format stores together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// Numbers of a block; 1 where each number is stored by itself.
    pub elements: usize,
    /// Bytes of a block, scales included.
    pub bytes: usize,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 23] = [
        Format::F16,
        Format::BF16,
        Format::F32,
        Format::F64,
        Format::F8E4M3,
        Format::U4,
        Format::F4E2M1,
        Format::I8,
        Format::U8,
        Format::F8E8M0,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q2K,
        Format::Q3K,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::MXFP4,
        Format::IQ4_NL,
        Format::IQ4_XS,
    ];

    /// The block formats of GGUF files.
    pub fn blocks() -> impl Iterator<Item = Format> {
        Self::ALL.into_iter().filter(|format| format.is_gguf_block())
    }

    /// The block of the format.
    pub const fn block(self) -> Block {
        let (elements, bytes) = match self {
            Format::F16 | Format::BF16 => (1, 2),
            Format::F32 => (1, 4),
            Format::F64 => (1, 8),
            Format::F8E4M3 | Format::I8 | Format::U8 | Format::F8E8M0 => (1, 1),
            Format::U4 | Format::F4E2M1 => (32, 16),
            Format::Q4_0 => (32, 18),
            Format::Q4_1 => (32, 20),
            Format::Q5_0 => (32, 22),
            Format::Q5_1 => (32, 24),
            Format::Q8_0 => (32, 34),
            Format::Q2K => (256, 84),
            Format::Q3K => (256, 110),
            Format::Q4K => (256, 144),
            Format::Q5K => (256, 176),
            Format::Q6K => (256, 210),
            Format::MXFP4 => (32, 17),
            Format::IQ4_NL => (32, 18),
            Format::IQ4_XS => (256, 136),
        };
        Block { elements, bytes }
    }

    /// Whether the format is a block format of GGUF files.
    pub const fn is_gguf_block(self) -> bool {
        use Format::*;
        matches!(self, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q2K | Q3K | Q4K | Q5K | Q6K | MXFP4 | IQ4_NL | IQ4_XS)
    }

    /// Whether the format is one of narrow weights: codes of 4 or 8 bits, whose factors and zeros are matrices of their own.
    pub const fn is_narrow(self) -> bool {
        matches!(self, Format::F8E4M3 | Format::U4 | Format::F4E2M1 | Format::I8 | Format::U8)
    }

    /// Whether a code means its distance from a zero.
    pub const fn has_zero(self) -> bool {
        matches!(self, Format::U4 | Format::U8)
    }

    /// The format that numbers of this format have in a multiplication by numbers of `b`: numbers of blocks become bf16 on their way to the tensor cores, and so do
    /// f32 beside narrow weights.
    #[doc(hidden)]
    pub const fn in_products_with(self, b: Format) -> Format {
        match self {
            _ if b.is_gguf_block() => Format::BF16,
            Format::F32 if b.is_narrow() => Format::BF16,
            _ => self,
        }
    }

    /// Bits of an element, scales included: 4.5 of `q4_0`.
    pub const fn bits(self) -> f64 {
        let Block { elements, bytes } = self.block();
        8.0 * bytes as f64 / elements as f64
    }

    /// Bytes of so many consecutive elements; a block counts whole.
    pub const fn bytes(self, elements: usize) -> usize {
        let block = self.block();
        elements.div_ceil(block.elements) * block.bytes
    }

    /// Bytes from an element to the element that is `elements` further, which is a whole number of blocks.
    pub const fn offset(self, elements: i64) -> i64 {
        let block = self.block();
        elements.wrapping_mul(block.bytes as i64) / block.elements as i64
    }

    /// The name used in kernel names and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Format::F16 => "f16",
            Format::BF16 => "bf16",
            Format::F32 => "f32",
            Format::F64 => "f64",
            Format::F8E4M3 => "f8e4m3",
            Format::U4 => "u4",
            Format::F4E2M1 => "f4e2m1",
            Format::I8 => "i8",
            Format::U8 => "u8",
            Format::F8E8M0 => "f8e8m0",
            Format::Q4_0 => "q4_0",
            Format::Q4_1 => "q4_1",
            Format::Q5_0 => "q5_0",
            Format::Q5_1 => "q5_1",
            Format::Q8_0 => "q8_0",
            Format::Q2K => "q2k",
            Format::Q3K => "q3k",
            Format::Q4K => "q4k",
            Format::Q5K => "q5k",
            Format::Q6K => "q6k",
            Format::MXFP4 => "mxfp4",
            Format::IQ4_NL => "iq4_nl",
            Format::IQ4_XS => "iq4_xs",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    /// The formats of the op, the suites and the vendor library, by name.
    fn from_str(s: &str) -> Result<Self, String> {
        [Format::F16, Format::BF16, Format::F32, Format::F64]
            .into_iter()
            .find(|format| format.name() == s)
            .ok_or_else(|| format!("unknown dtype '{s}'; expected f16, bf16, f32 or f64"))
    }
}

/// The type of a product, and of a kernel: the formats of A, B, C and D, and the type that sums are made in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[non_exhaustive]
pub struct Types {
    /// The format of A.
    pub a: Format,
    /// The format of B.
    pub b: Format,
    /// The format of C and of the bias.
    pub c: Format,
    /// The format of D.
    pub d: Format,
    /// The type that products are added up in.
    pub acc: Format,
}

impl Types {
    /// Products of `operands`, stored as `out`: sums in f32, for f64 in f64.
    pub const fn new(operands: Format, out: Format) -> Self {
        let acc = if matches!(operands, Format::F64) { Format::F64 } else { Format::F32 };
        Self { a: operands, b: operands, c: out, d: out, acc }
    }

    /// The same type with another format of B.
    pub const fn with_b(self, b: Format) -> Self {
        Self { b, ..self }
    }

    /// Everything in one format.
    pub const fn of(format: Format) -> Self {
        Self::new(format, format)
    }

    /// Whether B has narrow weights, and A wider numbers.
    pub const fn has_narrow_b(&self) -> bool {
        self.b.is_narrow() && matches!(self.a, Format::F16 | Format::BF16 | Format::F32)
    }
}

impl From<Format> for Types {
    fn from(format: Format) -> Self {
        Self::of(format)
    }
}

impl Types {
    /// The formats, each of A, B and D with the words of its factors, or "".
    pub(super) fn text(&self, [of_a, of_b, of_d]: [&str; 3]) -> String {
        let Types { a, b, c, d, .. } = self;
        let mut text = format!("{a}{of_a}");
        if b != a || !of_b.is_empty() {
            text += &format!(" x {b}{of_b}");
        }
        if c != d {
            text += &format!(" + {c}");
        }
        if d != a || b != a || !of_d.is_empty() {
            text += &format!(" -> {d}{of_d}");
        }
        text
    }
}

impl fmt::Display for Types {
    /// `bf16`, `bf16 -> f32`, `bf16 x q4k -> f32`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text([""; 3]))
    }
}
