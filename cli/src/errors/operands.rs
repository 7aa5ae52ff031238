//! Narrow operands of a kind of data, rounded as checkpoints have them: codes, factors and zeros, and the product that takes them.

use crate::bench::narrow::{e2m1, e4m3, order, Coded};
use crate::Result;
use candle::{Device, Tensor};
use candle_tilegemm::nn::narrow::{Codes, Granularity, QuantWeight, Quantizer, ScaleFormat};
use candle_tilegemm::problem::Scale;
use candle_tilegemm::{Format, Layout, Problem};

/// How numbers become codes.
#[derive(Debug, Clone, Copy)]
pub enum Rounding {
    /// As the library rounds weights.
    Library(Quantizer),
    /// Integers of 8 bits around 128, with a factor for so many numbers of a line.
    Around128(usize),
    /// 4-bit floating point with a factor in e4m3 for 16 numbers.
    Nvfp4,
}

/// Both sides of a product; without a rounding, activations are bf16.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    pub activations: Option<Rounding>,
    pub weights: Rounding,
}

const fn weights(weights: Rounding) -> Recipe {
    Recipe { activations: None, weights }
}

const fn fp8(granularity: Granularity) -> Rounding {
    Rounding::Library(Quantizer::Fp8(granularity))
}

const fn int4(group: usize, zeros: bool) -> Rounding {
    Rounding::Library(Quantizer::Int4 { group: Some(group), zeros })
}

const INT8_ROWS: Rounding = Rounding::Library(Quantizer::Int8 { group: None });

/// The measured products.
pub const RECIPES: [Recipe; 15] = [
    weights(fp8(Granularity::Tensor)),
    weights(fp8(Granularity::Channel)),
    weights(fp8(Granularity::Block([128, 128]))),
    weights(int4(32, false)),
    weights(int4(32, true)),
    weights(int4(128, false)),
    weights(int4(128, true)),
    weights(INT8_ROWS),
    weights(Rounding::Around128(128)),
    weights(Rounding::Library(Quantizer::Mxfp4)),
    weights(Rounding::Nvfp4),
    Recipe { activations: Some(fp8(Granularity::Tensor)), weights: fp8(Granularity::Tensor) },
    Recipe { activations: Some(fp8(Granularity::Channel)), weights: fp8(Granularity::Channel) },
    Recipe { activations: Some(fp8(Granularity::Group(128))), weights: fp8(Granularity::Block([128, 128])) },
    Recipe { activations: Some(INT8_ROWS), weights: INT8_ROWS },
];

/// Lines of codes, with factors and zeros beside them, in bytes.
pub struct Operand {
    pub format: Format,
    /// Of lines as rows.
    scale: Scale,
    /// Lines, and numbers of each.
    extents: [usize; 2],
    pub codes: Vec<u8>,
    pub factors: Vec<u8>,
    pub zeros: Vec<u8>,
}

impl Operand {
    /// Rounds (lines, k) numbers, k a multiple of 32.
    pub fn new(lines: &Tensor, rounding: Rounding) -> Result<Self> {
        let quantizer = match rounding {
            Rounding::Nvfp4 => return nvfp4(lines),
            Rounding::Around128(group) => Quantizer::Int8 { group: Some(group) },
            Rounding::Library(quantizer) => quantizer,
        };
        let weight = QuantWeight::quantize(lines, quantizer)?;
        let (format, mut codes) = (format(weight.codes())?, weight.bytes().to_vec());
        let format = match rounding {
            // Less 128, these are the codes with a sign.
            Rounding::Around128(_) => {
                codes.iter_mut().for_each(|code| *code ^= 0x80);
                Format::U8
            }
            _ => format,
        };
        let scales = weight.scales();
        let (mut shared, mut strides) = ([u32::MAX; 2], [0; 2]);
        for side in 0..2 {
            // One factor for all is the same whatever the size is.
            if scales.shared()[side] < weight.shape()[side] {
                (shared[side], strides[side]) = (scales.shared()[side] as u32, scales.strides()[side] as i64);
            }
        }
        let scale = Scale::new(format_of_factors(scales.format())?, shared, strides);
        let zeros = weight.zeros().map(<[u8]>::to_vec);
        let scale = if zeros.is_some() { scale.with_zeros() } else { scale };
        let (factors, zeros) = (scales.bytes().to_vec(), zeros.unwrap_or_default());
        Ok(Self { format, scale, extents: weight.shape(), codes, factors, zeros })
    }

    /// The same with factors in f32, as products of 8 bits by 8 bits take them.
    pub fn with_factors_in_f32(self) -> Self {
        let size = self.scale.format.block().bytes;
        let numbers = self.factors.chunks_exact(size).map(|bytes| match (self.scale.format, bytes) {
            (Format::F16, &[low, high]) => half::f16::from_le_bytes([low, high]).to_f32(),
            (Format::BF16, &[low, high]) => half::bf16::from_le_bytes([low, high]).to_f32(),
            (_, bytes) => bytes.try_into().map_or(f32::NAN, f32::from_le_bytes),
        });
        let factors = numbers.flat_map(f32::to_le_bytes).collect();
        Self { factors, scale: self.scale.with(|scale| scale.format = Format::F32), ..self }
    }

    /// The factors of this operand as A or as B, whose columns the lines are.
    pub fn scale(&self, is_b: bool) -> Scale {
        if !is_b {
            return self.scale;
        }
        self.scale.with(|scale| {
            scale.granularity.reverse();
            std::mem::swap(&mut scale.row_stride, &mut scale.col_stride);
        })
    }

    /// Codes, factors and zeros on a device.
    pub fn tensors(&self, device: &Device) -> Result<[Tensor; 3]> {
        let list = |bytes: &[u8]| if bytes.is_empty() { vec![0] } else { bytes.to_vec() };
        let tensor = |bytes: &[u8]| Tensor::from_vec(list(bytes), bytes.len().max(1), device);
        Ok([tensor(&self.codes)?, tensor(&self.factors)?, tensor(&self.zeros)?])
    }

    /// The numbers in f64, (lines, k), from what `tensors` gave.
    pub fn numbers(&self, [codes, factors, zeros]: &[Tensor; 3]) -> Result<Tensor> {
        let scale = Some(self.scale(true));
        let stride = self.extents[1];
        Coded { format: self.format, stride, scale, codes, factors, zeros }.numbers(self.extents, true)
    }
}

/// The product of these operands; activations are bf16 where there are none. fp8 by fp8 gives f32, which rounds no sums; int8 gives bf16, for there are no kernels with f32.
pub fn problem(a: Option<&Operand>, b: &Operand, rows: usize) -> Problem {
    let [n, k] = b.extents;
    let Some(a) = a else { return Problem::narrow([rows, n, k], Format::BF16, b.format, Some(b.scale(true))) };
    let dense = Problem::dense(rows, n, k, 1, Layout::NT, a.format).with_weights(b.format, Some(b.scale(true)));
    dense.with(|problem| {
        problem.a.scale = Some(a.scale(false));
        problem.d.format = if a.format == Format::F8E4M3 { Format::F32 } else { Format::BF16 };
    })
}

/// The formats of a product with their factors, in words.
pub fn formats(problem: &Problem) -> String {
    let text = problem.to_string();
    text.split_once(" nt ").map_or(text.clone(), |(_, formats)| formats.into())
}

/// Half of the distance of numbers in bf16 or f32 around this one.
pub fn half_unit(format: Format, x: f64) -> f64 {
    let bits = if format == Format::BF16 { 8 } else { 24 };
    if x == 0.0 {
        0.0
    } else {
        2f64.powi(x.abs().log2().floor() as i32 - bits)
    }
}

fn format(codes: Codes) -> Result<Format> {
    Ok(match codes {
        Codes::F8E4M3 => Format::F8E4M3,
        Codes::I8 => Format::I8,
        Codes::U8 => Format::U8,
        Codes::U4 => Format::U4,
        Codes::E2M1 => Format::F4E2M1,
        other => return Err(format!("there is no format of {other:?}").into()),
    })
}

fn format_of_factors(format: ScaleFormat) -> Result<Format> {
    Ok(match format {
        ScaleFormat::F32 => Format::F32,
        ScaleFormat::F16 => Format::F16,
        ScaleFormat::BF16 => Format::BF16,
        ScaleFormat::E8M0 => Format::F8E8M0,
        ScaleFormat::E4M3 => Format::F8E4M3,
        other => return Err(format!("there is no format of factors in {other:?}").into()),
    })
}

/// Numbers that share a factor in NVFP4, and codes that lie together.
const GROUP: usize = 16;
const SPAN: usize = 32;

/// NVFP4. Its factor of the whole is a power of two and changes no error: it is left out.
fn nvfp4(lines: &Tensor) -> Result<Operand> {
    let (n, k) = lines.dims2()?;
    let numbers: Vec<f32> = lines.to_dtype(candle::DType::F32)?.flatten_all()?.to_vec1()?;
    let largest = |numbers: &[f32]| numbers.iter().fold(0f64, |most, x| most.max(f64::from(x.abs())));
    // The largest factor is at most 448.
    let whole = 2f64.powi((largest(&numbers) / (6.0 * 448.0)).log2().ceil().max(0.0) as i32);
    let groups: Vec<u8> = numbers.chunks(GROUP).map(|group| factor(largest(group) / whole / 6.0)).collect();
    let code = |(at, x): (usize, &f32)| -> u8 {
        let x = f64::from(*x) / whole / e4m3(groups[at / GROUP]);
        let distance = |code: &u8| (e2m1(*code) - x.abs()).abs();
        let size = (0..8).min_by(|x, y| distance(x).total_cmp(&distance(y))).unwrap_or(0);
        size | if x < 0.0 { 8 } else { 0 }
    };
    let natural: Vec<u8> = numbers.iter().enumerate().map(code).collect();
    let order = order();
    let pair = |span: &[u8], byte: usize| span[order[2 * byte] as usize] | span[order[2 * byte + 1] as usize] << 4;
    let codes = natural.chunks_exact(SPAN).flat_map(|span| (0..SPAN / 2).map(move |byte| pair(span, byte))).collect();
    // Those of a row lie n apart.
    let of_row = k / GROUP;
    let factors = (0..of_row).flat_map(|group| (0..n).map(move |row| row * of_row + group)).map(|at| groups[at]);
    let scale = Scale::new(Format::F8E4M3, [1, GROUP as u32], [1, n as i64]);
    let factors = factors.collect();
    Ok(Operand { format: Format::F4E2M1, scale, extents: [n, k], codes, factors, zeros: vec![] })
}

/// The nearest code of e4m3; 1 for zeros.
fn factor(x: f64) -> u8 {
    let distance = |code: &u8| (e4m3(*code) - x).abs();
    if x == 0.0 {
        0x38
    } else {
        (1..0x7f).min_by(|x, y| distance(x).total_cmp(&distance(y))).unwrap_or(0x38)
    }
}
