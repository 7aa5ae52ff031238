//! What attention is told beside q and the cache, and the memory between its kernels.

use super::rope::RopeScaling;
use ::candle::{Device, Result, Tensor};

/// Which keys a query sees, the factor of scores, and what else joins their softmax.
///
/// ```
/// use candle::{DType, Device, Tensor};
/// use candle_tilegemm::nn::attention::{self, KvCache, Rope, Settings, Workspace};
///
/// // One position, whose score is 0: half of the weight goes to a sink of 0, and all of it where there is no sink.
/// let (device, at) = (&Device::Cpu, Tensor::new(&[0u32], &Device::Cpu)?);
/// let cache = KvCache::new(1, 1, 1, 2, DType::F32, device)?;
/// attention::append(&Tensor::new(&[[0f32, 0., 0., 0., 4., 6.]], device)?, &cache, &at, None, &Rope::none())?;
/// let (q, workspace) = (Tensor::zeros((1, 1, 2), DType::F32, device)?, Workspace::new(1, 1, 2, device)?);
/// let of = |settings: &Settings| attention::prefill(&q, &cache, 0, 0, settings, &workspace)?.flatten_all()?.to_vec1::<f32>();
/// assert_eq!(of(&Settings::new(2))?, [4., 6.]);
/// assert_eq!(of(&Settings::new(2).with_sinks(Tensor::zeros(1, DType::F32, device)?))?, [2., 3.]);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    /// Scores are q * k times this; positive.
    pub scale: f32,
    /// The newest positions that a query sees, its own included; 0: all.
    pub window: usize,
    /// Whether a query of [`prefill`](super::prefill) sees no later position. [`decode`](super::decode) has no later ones.
    pub causal: bool,
    /// For each head of q a number that joins the softmax of its scores, and has no value: (heads) in f32, where q is.
    pub sinks: Option<Tensor>,
}

impl Settings {
    /// Causal, all positions, and scores over the root of `head`.
    pub fn new(head: usize) -> Self {
        Self { scale: (1.0 / (head as f64).sqrt()) as f32, window: 0, causal: true, sinks: None }
    }

    /// The same with another factor of scores.
    pub fn with_scale(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    /// The same with scores as the scaling of a rope has them: the scale times its attention factor squared.
    pub fn with_rope(self, scaling: RopeScaling) -> Self {
        let factor = scaling.attention_factor();
        Self { scale: (f64::from(self.scale) * factor * factor) as f32, ..self }
    }

    /// The same for the newest `window` positions.
    pub fn with_window(self, window: usize) -> Self {
        Self { window, ..self }
    }

    /// The same with all positions for every query of a prompt: an encoder's attention.
    pub fn bidirectional(self) -> Self {
        Self { causal: false, ..self }
    }

    /// The same with attention sinks (gpt-oss): e^sink of a head joins the sum of the head's weights. A sink of -inf is none, and one of inf leaves zeros.
    pub fn with_sinks(self, sinks: Tensor) -> Self {
        Self { sinks: Some(sinks), ..self }
    }
}

/// Memory that the kernels of [`decode`](super::decode) and [`prefill`](super::prefill) keep sums in, for calls one after another on one stream: all layers of
/// a model share one. On a GPU it has 256 (head + 2) bytes for each sequence and head, or some 13 MiB where that is more; on the CPU none.
#[derive(Debug, Clone)]
pub struct Workspace {
    /// In u32: the counter of `prefill` in 16 bytes, sums, and from the byte `counters` on the counters of `decode`. Counters are zeros between calls.
    #[cfg_attr(not(feature = "layers"), expect(dead_code))]
    pub(in crate::candle) memory: Option<Tensor>,
    #[cfg_attr(not(feature = "layers"), expect(dead_code))]
    pub(in crate::candle) counters: usize,
    #[cfg_attr(not(feature = "layers"), expect(dead_code))]
    pub(in crate::candle) sizes: [usize; 3],
}

impl Workspace {
    /// Memory for at most so many sequences in a call, heads of q, and numbers of a head.
    ///
    /// # Errors
    /// A device without room, and a GPU without the feature `layers`.
    pub fn new(sequences: usize, heads: usize, head: usize, device: &Device) -> Result<Self> {
        let sizes = [sequences, heads, head];
        match device {
            Device::Cpu => Ok(Self { memory: None, counters: 0, sizes }),
            #[cfg(feature = "layers")]
            Device::Cuda(of) => {
                use crate::layer::{decode_workspace, prefill_workspace};
                let behind = 4 * (sequences * heads).next_multiple_of(32);
                let sums = decode_workspace(sequences, heads, head) as usize - behind;
                let parts = prefill_workspace(crate::candle::cuda::multiprocessors(of)?, head) as usize;
                let counters = 16 + sums.max(parts).next_multiple_of(16);
                let memory = Tensor::zeros((counters + behind) / 4, ::candle::DType::U32, device)?;
                Ok(Self { memory: Some(memory), counters, sizes })
            }
            other => crate::candle::tensors::Block("attention::Workspace").elsewhere(other),
        }
    }
}
