//! The static cache.

use ::candle::{bail, DType, Device, Result, Tensor};

/// Keys and values of a layer's sequences: two tensors (slots, kv_heads, capacity, head) in f16, bf16 or fp8 (e4m3), or in f32 on the CPU.
///
/// A sequence has a slot, and position p of a sequence is row p of the slot. In fp8 a number is the stored one times a scale in f32 of its head and row: the
/// largest magnitude of the row / 448. [`decode`](super::decode) reads every type, [`prefill`](super::prefill) on a GPU f16 and bf16: see [`widened`](Self::widened).
///
/// A cache has 2 slots kv_heads capacity head numbers of 2 bytes (f32: 4, fp8: 1), and in fp8 2 slots kv_heads capacity scales of 4 bytes:
///
/// ```
/// use candle::{DType, Device};
/// use candle_tilegemm::nn::attention::KvCache;
///
/// // A layer of Llama 3 8B: 8 heads of 128. 32 sequences of 8192 positions are 1 GiB a layer, and 32 GiB for the model's 32 layers.
/// assert_eq!(KvCache::bytes(32, 8, 8192, 128, DType::BF16)?, 1 << 30);
/// assert_eq!(KvCache::bytes(32, 8, 8192, 128, DType::F8E4M3)?, (1 << 29) + (1 << 24));
/// assert!(KvCache::new(0, 8, 8192, 128, DType::BF16, &Device::Cpu).is_err());
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct KvCache {
    k: Tensor,
    v: Tensor,
    scales: Option<[Tensor; 2]>,
}

impl KvCache {
    /// The bytes of a cache.
    ///
    /// # Errors
    /// Sizes of 0, an odd `head`, other types, and more bytes than a `usize` counts.
    pub fn bytes(slots: usize, kv_heads: usize, capacity: usize, head: usize, dtype: DType) -> Result<usize> {
        let sizes = [slots, kv_heads, capacity, head];
        if sizes.contains(&0) || !head.is_multiple_of(2) {
            bail!("KvCache: {slots} slots of {kv_heads} heads with {capacity} rows of {head} numbers; expected 1 and more, and an even head");
        }
        let number = match dtype {
            DType::F8E4M3 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::F32 => 4,
            _ => bail!("KvCache: there are no caches in {dtype:?}; expected f16, bf16, f8e4m3, or f32 on the CPU"),
        };
        let rows = [2, slots, kv_heads].into_iter().try_fold(capacity, usize::checked_mul);
        let row = head.checked_mul(number).map(|row| row + if dtype == DType::F8E4M3 { 4 } else { 0 });
        match rows.zip(row).and_then(|(rows, row)| rows.checked_mul(row)) {
            Some(bytes) => Ok(bytes),
            None => bail!("KvCache: {slots} slots of {kv_heads} heads with {capacity} rows of {head} numbers have more bytes than there are addresses"),
        }
    }

    /// The bytes that a GPU can allocate now; none of the CPU, which nobody asks.
    ///
    /// ```
    /// use candle::Device;
    /// use candle_tilegemm::nn::attention::KvCache;
    ///
    /// assert_eq!(KvCache::free_bytes(&Device::Cpu)?, None);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// A device whose driver does not answer.
    pub fn free_bytes(device: &Device) -> Result<Option<usize>> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = device {
            return Ok(Some(crate::candle::cuda::free_bytes(device)?));
        }
        let _ = device;
        Ok(None)
    }

    /// An empty cache.
    ///
    /// # Errors
    /// As for [`bytes`](Self::bytes); f32 on a GPU; and on a GPU more bytes than are free, before anything is allocated.
    pub fn new(
        slots: usize,
        kv_heads: usize,
        capacity: usize,
        head: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let bytes = Self::bytes(slots, kv_heads, capacity, head, dtype)?;
        if dtype == DType::F32 && !device.is_cpu() {
            bail!("KvCache: a cache in f32 is for the CPU; take f16, bf16 or f8e4m3");
        }
        if let Some(free) = Self::free_bytes(device)?.filter(|free| bytes > *free) {
            bail!(
                "KvCache: {slots} slots of {kv_heads} heads with {capacity} rows of {head} numbers in {dtype:?} are {} MiB, and {} MiB are free; take fewer slots or rows, or f8e4m3",
                bytes >> 20,
                free >> 20
            );
        }
        let zeros = || Tensor::zeros((slots, kv_heads, capacity, head), dtype, device);
        let scales = || Tensor::zeros((slots, kv_heads, capacity), DType::F32, device);
        let scales = (dtype == DType::F8E4M3).then(|| Ok::<_, ::candle::Error>([scales()?, scales()?])).transpose()?;
        Ok(Self { k: zeros()?, v: zeros()?, scales })
    }

    /// A cache with more rows for each slot, and the content of this one. Both exist until this one is dropped.
    ///
    /// # Errors
    /// Fewer rows than this cache has; those of [`new`](Self::new).
    pub fn grown(&self, capacity: usize) -> Result<Self> {
        let [slots, kv_heads, have, head] = self.sizes();
        if capacity < have {
            bail!("KvCache: {capacity} rows; expected at least the {have} that the cache has");
        }
        let cache = Self::new(slots, kv_heads, capacity, head, self.dtype(), self.k.device())?;
        cache.k.slice_set(&self.k, 2, 0)?;
        cache.v.slice_set(&self.v, 2, 0)?;
        for (to, from) in cache.scales.iter().flatten().zip(self.scales.iter().flatten()) {
            to.slice_set(from, 2, 0)?;
        }
        Ok(cache)
    }

    /// A cache without scales.
    pub(super) fn of(k: Tensor, v: Tensor) -> Self {
        Self { k, v, scales: None }
    }

    /// Keys, (slots, kv_heads, capacity, head).
    pub fn k(&self) -> &Tensor {
        &self.k
    }

    /// Values, (slots, kv_heads, capacity, head).
    pub fn v(&self) -> &Tensor {
        &self.v
    }

    /// The scales of K and V in fp8, (slots, kv_heads, capacity).
    pub fn scales(&self) -> Option<&[Tensor; 2]> {
        self.scales.as_ref()
    }

    /// Slots, heads, rows of a head, and numbers of a row.
    pub fn sizes(&self) -> [usize; 4] {
        let &[slots, kv_heads, capacity, head] = self.k.dims() else { unreachable!("a cache has four dimensions") };
        [slots, kv_heads, capacity, head]
    }

    /// The type of the stored numbers.
    pub fn dtype(&self) -> DType {
        self.k.dtype()
    }
}
