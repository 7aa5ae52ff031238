//! Weights of 16 or 32 bits to narrow codes, by rounding to the nearest.

use super::codes::{e8m0, to_e2m1, to_e4m3, Codes};
use super::scales::{ScaleFormat, Scales};
use super::scheme::Granularity;
use super::weight::QuantWeight;
use ::candle::{bail, DType, Device, Result, Tensor};
use half::f16;
use rayon::prelude::*;

/// Numbers that share a power of two.
const MX_GROUP: usize = 32;

/// A narrow format to quantise weights to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quantizer {
    /// 8-bit floating point (e4m3), factors in f32.
    Fp8(Granularity),
    /// Integers of 4 bits, factors in f16 where these are large enough, otherwise in bf16.
    Int4 {
        /// Numbers of a row that share a factor; without it all do.
        group: Option<usize>,
        /// Codes from the least to the largest number of a group, with a zero point. Otherwise they are symmetric.
        zeros: bool,
    },
    /// Symmetric integers of 8 bits, factors as for 4.
    Int8 {
        /// Numbers of a row that share a factor; without it all do.
        group: Option<usize>,
    },
    /// 4-bit floating point (e2m1) with a power of two for 32 numbers of a row (OCP MX).
    Mxfp4,
}

impl QuantWeight {
    /// Weights of (out, in) numbers in f16, bf16 or f32, each rounded to the nearest code.
    ///
    /// A factor makes the largest magnitude that shares it the largest code: 448 in fp8, 7.5 in 4 bits (the negative end is -8), 127 in 8 bits. For zeros it is 1.
    /// MXFP4 has the power of two that leaves the largest magnitude below 8, and what is beyond 6 becomes 6. Where a number is infinite, or NaN and NaN has no code,
    /// all numbers of the factor become infinite or NaN: none that is not finite becomes finite.
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use candle_tilegemm::nn::narrow::{Granularity, QuantWeight, Quantizer};
    ///
    /// let weight = Tensor::new(&[[448f32, 1., -0.3], [0., 0., 0.]], &Device::Cpu)?;
    /// let narrow = QuantWeight::quantize(&weight, Quantizer::Fp8(Granularity::Tensor))?;
    /// assert_eq!(narrow.dequantize(), [448., 1., -0.3125, 0., 0., 0.]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// A tensor that is no matrix in such a type, and groups or blocks of 0.
    pub fn quantize(weight: &Tensor, to: Quantizer) -> Result<Self> {
        let (n, k) = weight.dims2()?;
        if ![DType::F16, DType::BF16, DType::F32].contains(&weight.dtype()) {
            bail!("QuantWeight: the weights are in {:?}; expected F16, BF16 or F32", weight.dtype());
        }
        let values = weight.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let of = Matrix { values: &values, shape: [n, k] };
        match to {
            Quantizer::Fp8(granularity) => of.fp8(granularity),
            Quantizer::Int4 { group, zeros: false } => of.symmetric(Codes::U4, group, [-8.0, 7.0], 7.5),
            Quantizer::Int4 { group, zeros: true } => of.with_zeros(group),
            Quantizer::Int8 { group } => of.symmetric(Codes::I8, group, [-127.0, 127.0], 127.0),
            Quantizer::Mxfp4 => Ok(of.mxfp4()),
        }
    }
}

#[derive(Clone, Copy)]
struct Matrix<'a> {
    values: &'a [f32],
    shape: [usize; 2],
}

impl Matrix<'_> {
    /// What `fold` makes of the numbers of each block of `shared` rows and columns, line by line. Those of groups of a row lie column after column, others row after row.
    fn of_blocks<T: Send + Sync + Copy>(
        &self,
        shared: [usize; 2],
        start: T,
        fold: impl Fn(T, &[f32]) -> T + Sync,
    ) -> Vec<T> {
        let ([n, k], [rows, columns]) = (self.shape, shared);
        let [down, across] = [n.div_ceil(rows), k.div_ceil(columns)];
        let block = |at: usize| {
            let [i, j] = if rows == 1 { [at % down, at / down] } else { [at / across, at % across] };
            let lines = (i * rows..((i + 1) * rows).min(n)).map(|row| row * k);
            lines.fold(start, |so_far, line| {
                fold(so_far, &self.values[line + j * columns..line + ((j + 1) * columns).min(k)])
            })
        };
        (0..down * across).into_par_iter().map(block).collect()
    }

    /// Packs what `code` makes of each number and the place of its factor.
    fn pack(
        &self,
        codes: Codes,
        scales: Scales,
        zeros: Option<Vec<u8>>,
        code: impl Fn(f32, usize) -> u8 + Sync,
    ) -> QuantWeight {
        let ([_, k], factors) = (self.shape, scales.clone());
        let group = factors.shared()[1].min(k);
        QuantWeight::pack(codes, self.shape, scales, zeros, |first, rows| {
            for (i, row) in rows.chunks_exact_mut(k).enumerate() {
                let values = &self.values[(first + i) * k..(first + i + 1) * k];
                for (j, (to, values)) in row.chunks_mut(group).zip(values.chunks(group)).enumerate() {
                    let factor = factors.index(first + i, j * group);
                    to.iter_mut().zip(values).for_each(|(to, x)| *to = code(*x, factor));
                }
            }
        })
    }

    fn fp8(&self, granularity: Granularity) -> Result<QuantWeight> {
        let shared = granularity.shared(self.shape);
        checked(shared)?;
        let [down, across] = [self.shape[0].div_ceil(shared[0]), self.shape[1].div_ceil(shared[1])];
        let largest = self.of_blocks(shared, 0.0, largest);
        let values: Vec<f32> = largest.into_iter().map(|largest| factor(largest / 448.0)).collect();
        let strides = if shared[0] == 1 { [1, down] } else { [across, 1] };
        let scales = Scales::rounded(ScaleFormat::F32, &values, shared, strides);
        Ok(self.pack(Codes::F8E4M3, scales, None, |x, at| to_e4m3(x / values[at])))
    }

    /// Integers with factors that make the largest magnitude `top`.
    fn symmetric(&self, codes: Codes, group: Option<usize>, [least, most]: [f32; 2], top: f32) -> Result<QuantWeight> {
        let [n, k] = self.shape;
        let shared = [1, group.unwrap_or(k.max(1))];
        checked(shared)?;
        let largest = self.of_blocks(shared, 0.0, largest_or_nan);
        let wanted: Vec<f32> = largest.into_iter().map(|largest| factor(largest / top)).collect();
        let scales = sixteen_bits(&wanted, shared, [1, n]);
        let (values, zero) = (scales.values(), f32::from(codes.middle()));
        Ok(self.pack(codes, scales, None, |x, at| {
            let code = (x / values[at]).round_ties_even().clamp(least, most) + zero;
            code as i32 as u8
        }))
    }

    /// Integers of 4 bits from the least to the largest number, 0 included.
    fn with_zeros(&self, group: Option<usize>) -> Result<QuantWeight> {
        let [n, k] = self.shape;
        let shared = [1, group.unwrap_or(k.max(1))];
        checked(shared)?;
        let ends = self.of_blocks(shared, [0f32; 2], |ends, line| {
            line.iter()
                .fold(ends, |[low, high], x| if x.is_nan() { [*x; 2] } else { [below(low, *x), -below(-high, -x)] })
        });
        let wanted: Vec<f32> = ends.iter().map(|[low, high]| factor((high - low) / 15.0)).collect();
        let scales = sixteen_bits(&wanted, shared, [1, n]);
        let values = scales.values();
        let zero = |([low, _], scale): (&[f32; 2], &f32)| (-low / scale).round_ties_even().clamp(0.0, 15.0) as u8;
        let zeros: Vec<u8> = ends.iter().zip(&values).map(zero).collect();
        let of = zeros.clone();
        Ok(self.pack(Codes::U4, scales, Some(zeros), |x, at| {
            ((x / values[at]).round_ties_even() + f32::from(of[at])).clamp(0.0, 15.0) as u8
        }))
    }

    fn mxfp4(&self) -> QuantWeight {
        let shared = [1, MX_GROUP];
        let exponents = self.of_blocks(shared, 0.0, largest_or_nan).into_iter().map(|largest| match largest {
            x if !x.is_finite() => 255,
            0.0 => 127,
            // The power of two at or below the largest magnitude, over that of 6, which is 4.
            x => ((exponent(x) - 2).max(-127) + 127) as u8,
        });
        let exponents: Vec<u8> = exponents.collect();
        let values: Vec<f32> = exponents.iter().map(|code| e8m0(*code)).collect();
        let scales = Scales::new(ScaleFormat::E8M0, exponents, shared, [1, self.shape[0]]);
        self.pack(Codes::E2M1, scales, None, |x, at| to_e2m1(x / values[at]))
    }
}

/// The smaller number; x where it is NaN.
fn below(x: f32, y: f32) -> f32 {
    if x.is_nan() || x <= y {
        x
    } else {
        y
    }
}

/// The largest magnitude so far; NaN does not count.
fn largest(so_far: f32, values: &[f32]) -> f32 {
    values.iter().fold(so_far, |largest, x| largest.max(x.abs()))
}

/// The largest magnitude so far, NaN if a number is NaN.
fn largest_or_nan(so_far: f32, values: &[f32]) -> f32 {
    values.iter().fold(so_far, |largest, x| if x.is_nan() { *x } else { -below(-largest, -x.abs()) })
}

/// A factor, 1 in place of 0.
fn factor(x: f32) -> f32 {
    if x == 0.0 {
        1.0
    } else {
        x
    }
}

/// The exponent of the power of two at or below a positive number.
fn exponent(x: f32) -> i32 {
    let (x, less) = if x < f32::MIN_POSITIVE { (x * 2f32.powi(23), 23) } else { (x, 0) };
    (x.to_bits() >> 23) as i32 - 127 - less
}

/// Factors in f16 where it has them as normal numbers or not finite, otherwise in bf16.
fn sixteen_bits(values: &[f32], shared: [usize; 2], strides: [usize; 2]) -> Scales {
    let fits = |x: &f32| !x.is_finite() || (f16::MIN_POSITIVE.to_f32()..=f16::MAX.to_f32()).contains(x);
    let format = if values.iter().all(fits) { ScaleFormat::F16 } else { ScaleFormat::BF16 };
    Scales::rounded(format, values, shared, strides)
}

fn checked(shared: [usize; 2]) -> Result<()> {
    match shared.contains(&0) {
        true => bail!("QuantWeight: groups and blocks have at least one number; they are {shared:?}"),
        false => Ok(()),
    }
}
