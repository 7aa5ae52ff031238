//! Narrow operands: random codes, factors and zeros, and the numbers that they stand for.

use crate::Result;
use candle::{DType, Device, Tensor};
use candle_tilegemm::problem::Scale;
use candle_tilegemm::Format;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

/// Lists of bytes, in lines. Each list is drawn once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bytes {
    /// Codes, or blocks of GGUF files.
    Weights(Format),
    /// Factors of a byte each, f32, f16 or bf16.
    Factors(Format),
    /// Zeros of codes.
    Zeros(Format),
}

impl Bytes {
    /// Bytes of a line.
    pub fn line(self) -> usize {
        match self {
            Self::Weights(format) | Self::Factors(format) => format.block().bytes,
            Self::Zeros(_) => 1,
        }
    }

    /// So many lines of codes, factors or zeros.
    pub fn draw(self, count: usize) -> Vec<u8> {
        let mut rng = StdRng::seed_from_u64(1);
        let mut bytes = vec![0; count * self.line()];
        match self {
            // Any code but NaN. Each exponent is as often, and a factor makes up for the size.
            Self::Weights(Format::F8E4M3) => {
                bytes.fill_with(|| rng.random_range(0..0x7f) | (rng.random_range(0..2u8) << 7))
            }
            Self::Weights(_) => rng.fill_bytes(&mut bytes),
            // Of 2^-8 to 2^-2; in e4m3 2^-5 to 2^-2.
            Self::Factors(Format::F8E8M0) => bytes.fill_with(|| rng.random_range(119..126)),
            Self::Factors(Format::F8E4M3) => bytes.fill_with(|| rng.random_range(0x10..0x28)),
            Self::Factors(format) => {
                for factor in bytes.chunks_exact_mut(self.line()) {
                    let value: f32 = rng.random_range(0.01..0.1);
                    match format {
                        Format::F16 => factor.copy_from_slice(&half::f16::from_f32(value).to_le_bytes()),
                        Format::BF16 => factor.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
                        _ => factor.copy_from_slice(&value.to_le_bytes()),
                    }
                }
            }
            Self::Zeros(Format::U4) => bytes.fill_with(|| rng.random_range(0..16)),
            Self::Zeros(_) => rng.fill_bytes(&mut bytes),
        }
        bytes
    }
}

/// The number of factors of an operand of `extents`.
pub fn count(scale: &Scale, extents: [usize; 2]) -> usize {
    scale.counts(extents).iter().product()
}

/// The codes of an operand, its factors and its zeros, in bytes.
pub struct Coded<'a> {
    pub format: Format,
    /// Codes from a line to the next.
    pub stride: usize,
    pub scale: Option<Scale>,
    pub codes: &'a Tensor,
    pub factors: &'a Tensor,
    pub zeros: &'a Tensor,
}

impl Coded<'_> {
    /// The numbers of so many lines of `k` in f64, (lines, k). `is_b`: lines are columns.
    pub fn numbers(&self, [lines, k]: [usize; 2], is_b: bool) -> Result<Tensor> {
        let numbers = lines_of(&codes_in_f64(self.format, self.codes)?, self.stride, [lines, k])?;
        let Some(scale) = self.scale else { return Ok(numbers) };
        let extents = if is_b { [k, lines] } else { [lines, k] };
        let values = bytes(self.factors)?;
        let size = scale.format.block().bytes;
        let factors = values.chunks_exact(size).map(|bytes| number(scale.format, bytes)).collect::<Vec<f64>>();
        let zeros = match scale.zeros {
            true => bytes(self.zeros)?.into_iter().map(f64::from).collect(),
            false => vec![if self.format.has_zero() { middle(self.format) } else { 0.0 }; factors.len()],
        };
        let device = self.codes.device();
        let [factors, zeros] = [factors, zeros].map(|list| spread(&scale, &list, extents, is_b, device));
        Ok(((numbers - zeros?)? * factors?)?)
    }
}

/// The zero of codes without zeros.
fn middle(format: Format) -> f64 {
    if format == Format::U4 {
        8.0
    } else {
        128.0
    }
}

fn bytes(list: &Tensor) -> Result<Vec<u8>> {
    Ok(list.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<u8>()?)
}

/// A number of each line and each k, (lines, k), of those that share it.
fn spread(scale: &Scale, list: &[f64], extents: [usize; 2], is_b: bool, device: &Device) -> Result<Tensor> {
    let counts = scale.counts(extents);
    let at = |i: usize, j: usize| (i as i64 * scale.row_stride + j as i64 * scale.col_stride) as usize;
    let matrix: Vec<f64> = (0..counts[0]).flat_map(|i| (0..counts[1]).map(move |j| list[at(i, j)])).collect();
    let matrix = Tensor::from_vec(matrix, (counts[0], counts[1]), device)?;
    let [rows, columns] = [0, 1].map(|side| {
        let shared = scale.granularity[side];
        let of = |i: usize| if shared == u32::MAX { 0 } else { (i / shared as usize) as u32 };
        Tensor::from_vec((0..extents[side]).map(of).collect::<Vec<u32>>(), extents[side], device)
    });
    let all = matrix.index_select(&rows?, 0)?.index_select(&columns?, 1)?;
    Ok(if is_b { all.t()?.contiguous()? } else { all })
}

/// The number that bytes stand for.
fn number(format: Format, bytes: &[u8]) -> f64 {
    match (format, bytes) {
        (Format::F8E8M0, &[byte]) => 2f64.powi(i32::from(byte) - 127),
        (_, &[byte]) => e4m3(byte),
        (Format::F16, &[low, high]) => half::f16::from_le_bytes([low, high]).to_f64(),
        (_, &[low, high]) => half::bf16::from_le_bytes([low, high]).to_f64(),
        (_, bytes) => bytes.try_into().map_or(f64::NAN, |bytes| f64::from(f32::from_le_bytes(bytes))),
    }
}

/// Sign, four bits of exponent, three of mantissa.
pub fn e4m3(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let size = match exponent {
        0 => mantissa * 2f64.powi(-9),
        _ if code & 0x7f == 0x7f => f64::NAN,
        _ => (8.0 + mantissa) * 2f64.powi(exponent - 10),
    };
    if code & 0x80 == 0 {
        size
    } else {
        -size
    }
}

/// Codes of 4 bits: sign, two bits of exponent, one of mantissa.
pub fn e2m1(code: u8) -> f64 {
    let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 {
        size
    } else {
        -size
    }
}

/// Where 32 codes of 4 bits lie: the number of the code in each half of each byte, the lower half first.
pub fn order() -> [u32; 32] {
    std::array::from_fn(|place| {
        let (word, half) = (place / 8, place % 8);
        (2 * word + 8 * (half % 4) + half / 4) as u32
    })
}

/// Lines of numbers that are `stride` apart; the last one may end with the list.
fn lines_of(list: &Tensor, stride: usize, [lines, k]: [usize; 2]) -> Result<Tensor> {
    let stride = stride.max(k); // that of one line counts nothing
    let missing = (lines * stride).saturating_sub(list.elem_count());
    let list = list.pad_with_zeros(0, 0, missing)?.narrow(0, 0, lines * stride)?;
    Ok(list.reshape((lines, stride))?.narrow(1, 0, k)?.contiguous()?)
}

/// The codes as numbers, in one list.
fn codes_in_f64(format: Format, codes: &Tensor) -> Result<Tensor> {
    let device = codes.device();
    let look_up = |of: &dyn Fn(u8) -> f64| -> Result<Tensor> {
        let table = Tensor::from_vec((0..=255u8).map(of).collect::<Vec<f64>>(), 256, device)?;
        // A byte of 255 as an index would be no index.
        Ok(table.index_select(&codes.flatten_all()?.to_dtype(DType::U32)?, 0)?)
    };
    let of_4_bits = |of: fn(u8) -> f64| -> Result<Tensor> {
        let halves = [look_up(&|byte| of(byte & 15))?, look_up(&|byte| of(byte >> 4))?];
        let stored = Tensor::stack(&halves, 1)?.reshape(((), 32))?;
        let order = order();
        let place = |number: u32| order.iter().position(|at| *at == number).unwrap_or(0) as u32;
        let places = Tensor::from_vec((0..32).map(place).collect::<Vec<u32>>(), 32, device)?;
        Ok(stored.index_select(&places, 1)?.flatten_all()?)
    };
    match format {
        Format::U4 => of_4_bits(f64::from),
        Format::F4E2M1 => of_4_bits(e2m1),
        Format::F8E4M3 => look_up(&e4m3),
        Format::I8 => look_up(&|byte| f64::from(byte as i8)),
        Format::U8 => look_up(&|byte| f64::from(byte)),
        other => Err(format!("{other} has no codes with factors").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok<T>(result: Result<T>) -> T {
        result.unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Codes, factors and zeros as csrc/tilegemm.h defines them.
    #[test]
    fn numbers_are_those_of_the_format() {
        let device = Device::Cpu;
        // Word 1 of 16 bytes has numbers 2, 10, 18, 26, 3, 11, 19, 27 from its lowest bits on.
        let mut stored = vec![0u8; 32];
        stored[4..8].copy_from_slice(&0x7654_3210_u32.to_le_bytes());
        let codes = Tensor::from_vec(stored, (2, 16), &device).unwrap();
        let (factors, zeros) = (
            Tensor::from_vec(vec![0u8, 0, 0x80, 0x3f, 0, 0, 0, 0x40], 8, &device).unwrap(),
            Tensor::from_vec(vec![2u8, 0], 2, &device).unwrap(),
        );
        let scale = Some(Scale::of_groups(Format::F32, 32, 2).with_zeros());
        let coded = Coded { format: Format::U4, stride: 32, scale, codes: &codes, factors: &factors, zeros: &zeros };
        let numbers = ok(coded.numbers([2, 32], true)).to_vec2::<f64>().unwrap();
        let expected = |at: usize| [2, 10, 18, 26, 3, 11, 19, 27].iter().position(|k| *k == at).unwrap_or(0) as f64;
        assert_eq!(numbers[0], (0..32).map(|at| expected(at) - 2.0).collect::<Vec<_>>());
        assert_eq!(numbers[1], vec![0.0; 32]);

        let codes = Tensor::from_vec(vec![0x38u8, 0xb8, 0x7e, 0x01], (2, 2), &device).unwrap();
        let blocks = Some(Scale::new(Format::F8E8M0, [1, 1], [1, 2]));
        let exponents = Tensor::from_vec(vec![127u8, 128, 126, 127], 4, &device).unwrap();
        let coded = Coded {
            format: Format::F8E4M3,
            stride: 2,
            scale: blocks,
            codes: &codes,
            factors: &exponents,
            zeros: &zeros,
        };
        let numbers = ok(coded.numbers([2, 2], false)).to_vec2::<f64>().unwrap();
        assert_eq!(numbers, [[1.0, -0.5], [896.0, 2f64.powi(-9)]]);
        assert_eq!([0, 1, 7, 8, 15].map(e2m1), [0.0, 0.5, 6.0, 0.0, -6.0]);
    }

    /// Rows of 96 codes of 4 bits that lie 128 apart: what is between them is no number of a row.
    #[test]
    fn lines_may_be_apart() {
        let codes: Vec<u8> = (0..2 * 64 + 48).map(|at| (at * 37 % 251) as u8).collect();
        let list = |bytes: &[u8]| Tensor::from_vec(bytes.to_vec(), bytes.len(), &Device::Cpu).unwrap();
        let numbers = |bytes: &[u8], stride, extents| {
            let nothing = list(&[0]);
            let codes = &list(bytes);
            let coded = Coded { format: Format::U4, stride, scale: None, codes, factors: &nothing, zeros: &nothing };
            ok(coded.numbers(extents, true)).to_vec2::<f64>().unwrap()
        };
        let rows = numbers(&codes, 128, [3, 96]);
        for (row, apart) in rows.iter().enumerate() {
            assert_eq!(apart[..], numbers(&codes[row * 64..row * 64 + 48], 96, [1, 96])[0][..]);
        }
    }

    #[test]
    fn what_is_drawn_is_finite() {
        for format in [Format::F8E4M3, Format::I8, Format::U8, Format::U4, Format::F4E2M1] {
            assert_eq!(Bytes::Weights(format).draw(100).len(), format.bytes(100 * format.block().elements));
        }
        assert!(Bytes::Weights(Format::F8E4M3).draw(10_000).into_iter().all(|code| e4m3(code).is_finite()));
        assert!(Bytes::Zeros(Format::U4).draw(1000).into_iter().all(|zero| zero < 16));
        for format in [Format::F32, Format::F16, Format::BF16, Format::F8E8M0, Format::F8E4M3] {
            let factors = Bytes::Factors(format).draw(1000);
            let size = format.block().bytes;
            assert!(factors.chunks(size).all(|bytes| (1e-3..0.26).contains(&number(format, bytes))), "{format}");
        }
    }
}
