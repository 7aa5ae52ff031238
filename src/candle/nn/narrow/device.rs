//! Narrow weights as tensors of a device.

use super::codes::Codes;
use super::scales::{ScaleFormat, Scales};
use super::weight::QuantWeight;
#[cfg(feature = "layers")]
use crate::candle::cuda::layers;
#[cfg(feature = "cuda")]
use crate::candle::cuda::quantized::Narrow;
#[cfg(feature = "layers")]
use crate::candle::tensors::{unwritten, Block};
#[cfg(feature = "cuda")]
use crate::problem::{Format, Scale};
#[cfg(feature = "cuda")]
use ::candle::D;
use ::candle::{DType, Device, Result, Tensor};
use std::sync::Arc;

#[cfg(feature = "layers")]
const BLOCK: Block = Block("an order of columns");

/// A [`QuantWeight`] on a device, as kernels read it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceWeight {
    /// The codes in bytes, (out, row bytes).
    pub codes: Tensor,
    /// The factors, (count), in f32, f16, bf16 or F8E4M3; powers of two in bytes.
    pub scales: Tensor,
    /// The zero points in bytes, (count).
    pub zeros: Option<Tensor>,
    /// The column of x that each column of codes meets, (in) in u32.
    pub gather: Option<Tensor>,
    kind: Codes,
    shape: [usize; 2],
    of_scales: ScaleFormat,
    /// As [`Scales`] has them.
    shared: [usize; 2],
    strides: [usize; 2],
    alpha: f32,
}

/// Weights on the host, or on another device and nowhere else.
#[derive(Debug, Clone)]
pub(super) enum Placed {
    Host(Arc<QuantWeight>),
    Device(Arc<DeviceWeight>),
}

impl From<QuantWeight> for Placed {
    fn from(weight: QuantWeight) -> Self {
        Self::Host(weight.into())
    }
}

impl Placed {
    pub fn shape(&self) -> [usize; 2] {
        match self {
            Self::Host(weight) => weight.shape(),
            Self::Device(weight) => weight.shape(),
        }
    }

    pub fn device(&self) -> &Device {
        match self {
            Self::Host(_) => &Device::Cpu,
            Self::Device(weight) => weight.device(),
        }
    }

    pub fn to_device(&self, device: &Device) -> Result<Self> {
        Ok(match self {
            _ if self.device().same_device(device) => self.clone(),
            Self::Host(weight) => Self::Device(weight.to_device(device)?.into()),
            Self::Device(weight) if device.is_cpu() => weight.to_host()?.into(),
            Self::Device(weight) => Self::Device(weight.to_host()?.to_device(device)?.into()),
        })
    }

    /// The weights where they are on the host.
    pub fn host(&self) -> Option<&QuantWeight> {
        match self {
            Self::Host(weight) => Some(weight),
            Self::Device(_) => None,
        }
    }

    /// The weights where they are on another device.
    pub fn elsewhere(&self) -> Option<&DeviceWeight> {
        match self {
            Self::Host(_) => None,
            Self::Device(weight) => Some(weight),
        }
    }
}

impl QuantWeight {
    /// Copies the parts to a device.
    ///
    /// # Errors
    /// A device without room.
    pub fn to_device(&self, device: &Device) -> Result<DeviceWeight> {
        if self.alpha == 0.0 {
            // Products leave out what an alpha of 0 multiplies, also NaN.
            return self.with_alpha_in_factors().to_device(device);
        }
        let list = |bytes: &[u8]| Tensor::from_slice(bytes, bytes.len(), device);
        let dtype = match self.scales.format() {
            ScaleFormat::F32 => DType::F32,
            ScaleFormat::F16 => DType::F16,
            ScaleFormat::BF16 => DType::BF16,
            ScaleFormat::E4M3 => DType::F8E4M3,
            ScaleFormat::E8M0 => DType::U8,
        };
        let gather = self.gather.as_ref().map(|gather| Tensor::from_slice(gather, gather.len(), device));
        Ok(DeviceWeight {
            codes: list(&self.bytes)?.reshape((self.shape[0], self.row_bytes()))?,
            scales: Tensor::from_raw_buffer(self.scales.bytes(), dtype, &[self.scales.count()], device)?,
            zeros: self.zeros.as_deref().map(list).transpose()?,
            gather: gather.transpose()?,
            kind: self.codes,
            shape: self.shape,
            of_scales: self.scales.format(),
            shared: self.scales.shared(),
            strides: self.scales.strides(),
            alpha: self.alpha,
        })
    }

    fn with_alpha_in_factors(&self) -> Self {
        let values: Vec<f32> = self.scales.values().into_iter().map(|scale| scale * self.alpha).collect();
        let scales = Scales::rounded(ScaleFormat::F32, &values, self.scales.shared(), self.scales.strides());
        Self { scales, alpha: 1.0, ..self.clone() }
    }
}

impl DeviceWeight {
    /// Rows and columns: out and in.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// What the codes are.
    pub fn kind(&self) -> Codes {
        self.kind
    }

    /// Rows and columns that share a factor.
    #[cfg(feature = "cuda")]
    pub(super) fn shared(&self) -> [usize; 2] {
        self.shared
    }

    /// The factor of all weights.
    pub fn alpha(&self) -> f32 {
        self.alpha
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.codes.device()
    }

    /// Reads the weights back.
    ///
    /// # Errors
    /// Those of copies from the device.
    pub fn to_host(&self) -> Result<QuantWeight> {
        let bytes = |list: &Tensor| list.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<u8>();
        let scales = self.scales.to_device(&Device::Cpu)?;
        let scales = match self.of_scales {
            ScaleFormat::E8M0 => bytes(&scales)?,
            ScaleFormat::E4M3 => scales.to_vec1::<float8::F8E4M3>()?.into_iter().map(|code| code.to_bits()).collect(),
            ScaleFormat::F32 => scales.to_vec1::<f32>()?.into_iter().flat_map(f32::to_le_bytes).collect(),
            ScaleFormat::F16 => scales.to_vec1::<half::f16>()?.into_iter().flat_map(half::f16::to_le_bytes).collect(),
            ScaleFormat::BF16 => {
                scales.to_vec1::<half::bf16>()?.into_iter().flat_map(half::bf16::to_le_bytes).collect()
            }
        };
        let gather = |gather: &Tensor| gather.to_device(&Device::Cpu)?.to_vec1::<u32>();
        Ok(QuantWeight {
            codes: self.kind,
            shape: self.shape,
            bytes: bytes(&self.codes)?,
            scales: Scales::new(self.of_scales, scales, self.shared, self.strides),
            zeros: self.zeros.as_ref().map(bytes).transpose()?,
            alpha: self.alpha,
            gather: self.gather.as_ref().map(gather).transpose()?,
        })
    }

    /// Rows of x with their columns in the order of the codes': memory of its own, unless that is the order of x.
    #[cfg(feature = "cuda")]
    pub(super) fn gathered(&self, x: &Tensor) -> Result<Tensor> {
        let Some(gather) = &self.gather else { return Ok(x.clone()) };
        #[cfg(feature = "layers")]
        if let Device::Cuda(device) = x.device() {
            let (out, [_, k]) = (unwritten(x.dims(), x.dtype(), x.device())?, self.shape);
            layers::gather(device, BLOCK.rows("x", x, k)?, gather, BLOCK.rows("x", &out, k)?)?;
            return Ok(out);
        }
        x.contiguous()?.index_select(gather, D::Minus1)
    }

    /// The operand of a product with one of so many matrices over one another, with rows of factors of their own: the operand of their batch.
    #[cfg(feature = "experts")]
    pub(in crate::candle) fn operand_of_each(&self, matrices: usize) -> Narrow<'_> {
        let operand = self.operand();
        let [n, k] = [self.shape[0] / matrices.max(1), self.shape[1]];
        let [rows, by_rows] = [self.shared[0], self.strides[0]];
        let of_matrix = if rows >= self.shape[0] { 0 } else { n / rows * by_rows };
        let scale = operand.scale.with(|scale| scale.batch_stride = [0, of_matrix as i64]);
        Narrow { sizes: [n, k], scale, ..operand }
    }

    /// The operand of a product.
    #[cfg(feature = "cuda")]
    pub(in crate::candle) fn operand(&self) -> Narrow<'_> {
        let format = match self.kind {
            Codes::F8E4M3 => Format::F8E4M3,
            Codes::I8 => Format::I8,
            Codes::U8 => Format::U8,
            Codes::U4 => Format::U4,
            Codes::E2M1 => Format::F4E2M1,
        };
        let of_scales = match self.of_scales {
            ScaleFormat::F32 => Format::F32,
            ScaleFormat::F16 => Format::F16,
            ScaleFormat::BF16 => Format::BF16,
            ScaleFormat::E8M0 => Format::F8E8M0,
            ScaleFormat::E4M3 => Format::F8E4M3,
        };
        // Rows of the engine's B are along K.
        let ([rows, group], [by_rows, by_group]) = (self.shared, self.strides.map(|stride| stride as i64));
        let shared = [group, rows].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let scale = Scale::new(of_scales, shared, [by_group, by_rows]).with(|scale| scale.zeros = self.zeros.is_some());
        let (codes, factors, zeros) = (&self.codes, &self.scales, self.zeros.as_ref());
        Narrow { sizes: self.shape, format, scale, alpha: self.alpha, codes, factors, zeros }
    }
}
