//! Activations in 8 bits with factors of their own numbers, beside weights in 8 bits.

use super::codes::Codes;
#[cfg(feature = "cuda")]
use super::device::DeviceWeight;
use super::device::Placed;
use super::scales::{ScaleFormat, Scales};
use super::scheme::Activations;
use super::weight::QuantWeight;
#[cfg(feature = "cuda")]
use crate::candle::cuda::quantized::NarrowX;
#[cfg(all(feature = "narrow", feature = "layers"))]
use crate::candle::cuda::{has_products_of_bytes, layers};
#[cfg(all(feature = "narrow", feature = "layers"))]
use crate::candle::tensors::unwritten;
#[cfg(feature = "cuda")]
use crate::candle::tensors::Rows;
#[cfg(feature = "cuda")]
use crate::layer::GateFunction;
#[cfg(feature = "cuda")]
use crate::problem::{Format, Scale};
#[cfg(feature = "cuda")]
use ::candle::DType;
use ::candle::{Device, Result, Tensor};
use float8::F8E4M3;
use rayon::prelude::*;

/// Numbers of a row that share a factor, and rows of weights that share one with them.
const BLOCK: usize = 128;
/// Bytes that rows of codes are a multiple of.
#[cfg(all(feature = "narrow", feature = "layers"))]
const ROW: usize = 16;

/// How x is rounded: to the weights' codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EightBits {
    codes: Codes,
    /// A factor for each [`BLOCK`] numbers of a row; else one for each row.
    of_blocks: bool,
}

/// x in 8 bits on a GPU.
#[cfg(feature = "cuda")]
#[derive(Debug)]
pub(super) struct Rounded {
    /// (rows, row bytes)
    pub codes: Tensor,
    pub factors: Tensor,
    pub format: Format,
    pub scale: Scale,
}

impl EightBits {
    /// What a product with such activations takes beside these weights, if there is one. `experts`: how many of them lie over one another, beside which kernels have fp8 by fp8 alone.
    pub fn beside(activations: Activations, weight: &QuantWeight, experts: Option<usize>) -> Option<Self> {
        let of =
            || Self::of(weight.codes(), weight.shape(), weight.scales().shared(), weight.zeros().is_some(), experts);
        (activations == Activations::Dynamic).then(of).flatten()
    }

    /// The same on a device, whose kernels read factors in f32.
    #[cfg(feature = "cuda")]
    pub fn beside_device(activations: Activations, weight: &DeviceWeight, experts: Option<usize>) -> Option<Self> {
        let of = || Self::of(weight.kind(), weight.shape(), weight.shared(), weight.zeros.is_some(), experts);
        (activations == Activations::Dynamic && weight.scales.dtype() == DType::F32).then(of).flatten()
    }

    /// Beside weights in fp8 or int8 with one factor, one for each row, or one for each block of 128 x 128. `shared`: the rows and columns of the weights that share one.
    fn of(
        codes: Codes,
        [n, k]: [usize; 2],
        [rows, columns]: [usize; 2],
        has_zeros: bool,
        experts: Option<usize>,
    ) -> Option<Self> {
        let n = n / experts.unwrap_or(1).max(1);
        let has_kernels = codes == Codes::F8E4M3 || (codes == Codes::I8 && experts.is_none());
        if has_zeros || !has_kernels {
            return None;
        }
        let of_blocks = columns < k;
        let is_block = codes == Codes::F8E4M3 && columns == BLOCK && (rows == BLOCK || rows >= n);
        let is_whole = rows == 1 || rows >= n;
        (if of_blocks { is_block } else { is_whole }).then_some(Self { codes, of_blocks })
    }

    /// The format of the codes.
    #[cfg(all(feature = "narrow", feature = "layers"))]
    fn format(self) -> Format {
        if self.codes == Codes::I8 {
            Format::I8
        } else {
            Format::F8E4M3
        }
    }

    /// The numbers that rows of `k` numbers of x are rounded to, on the CPU, by the formulas of csrc/layer/quantise.hpp.
    pub fn round(self, x: &Tensor, k: usize) -> Result<Tensor> {
        let mut numbers = x.flatten_all()?.to_vec1::<f32>()?;
        let of_factor = if self.of_blocks { BLOCK } else { k };
        numbers
            .par_chunks_mut(k.max(1))
            .for_each(|row| row.chunks_mut(of_factor.max(1)).for_each(|x| self.round_all(x)));
        Tensor::from_vec(numbers, x.shape(), &Device::Cpu)
    }

    /// Numbers that share a factor.
    fn round_all(self, numbers: &mut [f32]) {
        let is_int8 = self.codes == Codes::I8;
        let most = if is_int8 { 127.0 } else { 448.0 };
        // int8 has no NaN.
        let spoils = |x: &f32| x.is_infinite() || (is_int8 && x.is_nan());
        let largest = numbers.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        let factor = match () {
            _ if numbers.iter().any(spoils) => f32::NAN,
            _ if largest == 0.0 => 1.0,
            _ => (largest / most).max(f32::MIN_POSITIVE),
        };
        for x in numbers {
            let quotient = *x / factor;
            let code = if is_int8 { quotient.round_ties_even() } else { F8E4M3::from_f32(quotient).to_f32() };
            *x = code * factor;
        }
    }

    /// Whether kernels for a device multiply 8 bits by 8 bits.
    #[cfg(all(feature = "narrow", feature = "layers"))]
    pub fn is_on(device: &Device) -> Result<bool> {
        let Device::Cuda(device) = device else { return Ok(false) };
        has_products_of_bytes(device)
    }

    #[cfg(all(feature = "cuda", not(all(feature = "narrow", feature = "layers"))))]
    pub fn is_on(_: &Device) -> Result<bool> {
        Ok(false)
    }

    /// x on a GPU whose kernels multiply 8 bits by 8 bits; none on others. With a gate, rows of x have gates and numbers, in 16 bits.
    #[cfg(all(feature = "narrow", feature = "layers"))]
    pub fn on_device(self, x: Rows, gate: Option<GateFunction>) -> Result<Option<Rounded>> {
        let Device::Cuda(device) = x.tensor.device() else { return Ok(None) };
        if !has_products_of_bytes(device)? {
            return Ok(None);
        }
        let [rows, k] = [x.rows, if gate.is_some() { x.columns / 2 } else { x.columns }];
        // Factors of all rows and a block lie side by side.
        let step = self.of_blocks.then(|| rows.next_multiple_of(4));
        let codes = unwritten(&[rows, k.next_multiple_of(ROW)], DType::U8, x.tensor.device())?;
        let factors = unwritten(&[step.map_or(rows, |step| k.div_ceil(BLOCK) * step)], DType::F32, x.tensor.device())?;
        layers::quantise(device, x, gate, [&codes, &factors], self.format(), step)?;
        let shared = step.map_or(u32::MAX, |_| BLOCK as u32);
        let scale = Scale::new(Format::F32, [1, shared], [1, step.unwrap_or(0) as i64]);
        Ok(Some(Rounded { codes, factors, format: self.format(), scale }))
    }

    #[cfg(all(feature = "cuda", not(all(feature = "narrow", feature = "layers"))))]
    pub fn on_device(self, _: Rows, _: Option<GateFunction>) -> Result<Option<Rounded>> {
        Ok(None)
    }
}

#[cfg(feature = "cuda")]
impl Rounded {
    /// What x is.
    pub fn of_x(&self) -> NarrowX<'_> {
        NarrowX { format: self.format, scale: self.scale, factors: &self.factors }
    }

    /// The codes, as rows of `k`.
    pub fn rows(&self, k: usize) -> Rows<'_> {
        let [rows, stride] = [0, 1].map(|i| self.codes.dims()[i]);
        Rows { tensor: &self.codes, rows, columns: k, stride }
    }
}

impl Placed {
    /// The weights, with factors in f32 where kernels of 8 bits by 8 bits take them, which have no others. `experts`: as in [`EightBits::beside`].
    pub(super) fn with_factors_of_8_bits(&self, experts: Option<usize>) -> Self {
        let takes = |weight: &QuantWeight| EightBits::beside(Activations::Dynamic, weight, experts).is_some();
        match self {
            Self::Host(weight) if weight.scales().format() != ScaleFormat::F32 && takes(weight) => {
                weight.with_wide_factors().into()
            }
            other => other.clone(),
        }
    }
}

impl QuantWeight {
    fn with_wide_factors(&self) -> Self {
        let scales = &self.scales;
        let scales = Scales::rounded(ScaleFormat::F32, &scales.values(), scales.shared(), scales.strides());
        Self { scales, ..self.clone() }
    }
}
