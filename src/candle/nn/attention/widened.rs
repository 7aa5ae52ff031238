//! A cache in fp8 as numbers in 16 or 32 bits.

use super::cache::KvCache;
#[cfg(feature = "layers")]
use crate::candle::cuda::layers;
#[cfg(feature = "layers")]
use crate::candle::tensors::unwritten;
use crate::candle::tensors::FLOATS;
#[cfg(feature = "layers")]
use ::candle::Device;
use ::candle::{bail, DType, Result, Tensor};

impl KvCache {
    /// The first rows of a slot as a cache of that slot alone, with as many positions, in another type: what [`prefill`](super::prefill) on a GPU takes in place
    /// of a cache in fp8.
    ///
    /// ```
    /// use candle::{DType, Device};
    /// use candle_tilegemm::nn::attention::KvCache;
    ///
    /// let cache = KvCache::new(2, 3, 16, 64, DType::F8E4M3, &Device::Cpu)?;
    /// let wide = cache.widened(1, 5, DType::BF16)?;
    /// assert_eq!((wide.sizes(), wide.dtype(), wide.scales().is_none()), ([1, 3, 5, 64], DType::BF16, true));
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// A slot or rows that the cache lacks, and types other than f16, bf16 and f32.
    pub fn widened(&self, slot: usize, rows: usize, dtype: DType) -> Result<Self> {
        let [slots, _, capacity, _] = self.sizes();
        if slot >= slots || rows == 0 || rows > capacity || !FLOATS.contains(&dtype) {
            bail!("KvCache: {rows} rows of slot {slot} in {dtype:?}; the cache has {slots} slots of {capacity} rows, and they can be in f16, bf16 and f32");
        }
        #[cfg(feature = "layers")]
        if let (Device::Cuda(device), Some(_), DType::F16 | DType::BF16) = (self.k().device(), self.scales(), dtype) {
            let shape = [1, self.sizes()[1], rows, self.sizes()[3]];
            let [k, v] = [0, 1].map(|_| unwritten(&shape, dtype, self.k().device()));
            let (k, v) = (k?, v?);
            layers::widen(device, self, slot, [&k, &v])?;
            return Ok(Self::of(k, v));
        }
        let of = |tensor: &Tensor, scales: Option<&Tensor>| {
            let numbers = tensor.narrow(0, slot, 1)?.narrow(2, 0, rows)?;
            let Some(scales) = scales else { return numbers.force_contiguous()?.to_dtype(dtype) };
            let scales = scales.narrow(0, slot, 1)?.narrow(2, 0, rows)?.unsqueeze(3)?;
            numbers.to_dtype(DType::F32)?.broadcast_mul(&scales)?.to_dtype(dtype)
        };
        let [k_scales, v_scales] = [0, 1].map(|i| self.scales().map(|scales| &scales[i]));
        Ok(Self::of(of(self.k(), k_scales)?, of(self.v(), v_scales)?))
    }
}
