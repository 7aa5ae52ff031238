//! The factors of narrow weights.

use super::codes::{e4m3, e8m0};
use half::{bf16, f16};

/// How a factor is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScaleFormat {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// A power of two, 2^(code - 127); 255 is NaN (OCP MX).
    E8M0,
    /// 8-bit floating point, as [`Codes::F8E4M3`](super::Codes::F8E4M3).
    E4M3,
}

impl ScaleFormat {
    /// Bytes of a factor.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::E8M0 | Self::E4M3 => 1,
        }
    }
}

/// Factors of the weights: that of the weight (n, k) is number `n / rows * strides[0] + k / group * strides[1]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scales {
    format: ScaleFormat,
    bytes: Vec<u8>,
    /// Rows and numbers along K that share a factor.
    shared: [usize; 2],
    strides: [usize; 2],
}

impl Scales {
    /// Factors in the format, little-endian.
    pub(super) fn new(format: ScaleFormat, bytes: Vec<u8>, shared: [usize; 2], strides: [usize; 2]) -> Self {
        Self { format, bytes, shared, strides }
    }

    /// Factors in the narrowest of f16, bf16 and f32 that has them exactly.
    pub(super) fn narrowest(values: &[f32], shared: [usize; 2], strides: [usize; 2]) -> Self {
        let same = |x: f32, y: f32| x == y || (x.is_nan() && y.is_nan());
        let format = if values.iter().all(|x| same(*x, f16::from_f32(*x).to_f32())) {
            ScaleFormat::F16
        } else if values.iter().all(|x| same(*x, bf16::from_f32(*x).to_f32())) {
            ScaleFormat::BF16
        } else {
            ScaleFormat::F32
        };
        Self::rounded(format, values, shared, strides)
    }

    /// Factors rounded to f32, f16 or bf16.
    pub(super) fn rounded(format: ScaleFormat, values: &[f32], shared: [usize; 2], strides: [usize; 2]) -> Self {
        let bytes = match format {
            ScaleFormat::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
            ScaleFormat::BF16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
        let format = if matches!(format, ScaleFormat::F16 | ScaleFormat::BF16) { format } else { ScaleFormat::F32 };
        Self { format, bytes, shared, strides }
    }

    /// How the factors are stored.
    pub fn format(&self) -> ScaleFormat {
        self.format
    }

    /// The factors, little-endian, one after another.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Rows, and numbers along K, that share a factor.
    pub fn shared(&self) -> [usize; 2] {
        self.shared
    }

    /// Factors from a block of rows to the next, and from a group along K to the next.
    pub fn strides(&self) -> [usize; 2] {
        self.strides
    }

    /// How many factors there are.
    pub fn count(&self) -> usize {
        self.bytes.len() / self.format.bytes()
    }

    /// The number of the factor of the weight (n, k).
    pub(super) fn index(&self, n: usize, k: usize) -> usize {
        n / self.shared[0] * self.strides[0] + k / self.shared[1] * self.strides[1]
    }

    /// The factor with this number.
    pub fn value(&self, index: usize) -> f32 {
        let at = index * self.format.bytes();
        match (self.format, &self.bytes[at..at + self.format.bytes()]) {
            (ScaleFormat::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (ScaleFormat::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (ScaleFormat::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            (ScaleFormat::E8M0, &[code]) => e8m0(code),
            (_, bytes) => e4m3(bytes[0]),
        }
    }

    /// All factors.
    pub fn values(&self) -> Vec<f32> {
        (0..self.count()).map(|index| self.value(index)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_exact_format_is_taken() {
        let of = |values: &[f32]| Scales::narrowest(values, [1, 32], [1, 1]);
        for (values, format) in [
            (&[0.5f32, 3.0, 2f32.powi(-24)][..], ScaleFormat::F16),
            (&[1e30, 2f32.powi(-40)], ScaleFormat::F32),
            (&[2f32.powi(-40), 3.0], ScaleFormat::BF16),
            (&[f32::NAN, f32::INFINITY, 0.0], ScaleFormat::F16),
            (&[1.0 + 2f32.powi(-12)], ScaleFormat::F32),
        ] {
            let scales = of(values);
            assert_eq!(scales.format(), format, "{values:?}");
            let same = |(x, y): (&f32, f32)| *x == y || (x.is_nan() && y.is_nan());
            assert!(values.iter().zip(scales.values()).all(same));
        }
    }
}
