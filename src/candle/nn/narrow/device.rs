//! Narrow weights as tensors of a device.

use super::scales::ScaleFormat;
use super::weight::QuantWeight;
use ::candle::{DType, Device, Result, Tensor};

/// The parts of a [`QuantWeight`] as tensors of a device, for kernels.
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
}

impl QuantWeight {
    /// Copies the parts to a device.
    ///
    /// # Errors
    /// A device without room.
    pub fn to_device(&self, device: &Device) -> Result<DeviceWeight> {
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
        })
    }
}
