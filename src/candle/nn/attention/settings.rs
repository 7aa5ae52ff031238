//! What attention is told beside its tensors, and the memory between its kernels.

use ::candle::{Device, Result, Tensor};

/// Which keys a query sees, and the factor of scores.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// Scores are q * k times this; positive.
    pub scale: f32,
    /// The newest positions that a query sees, its own included; 0: all.
    pub window: usize,
    /// Whether a query of [`prefill`](super::prefill) sees no later position. [`decode`](super::decode) has no later ones.
    pub causal: bool,
}

impl Settings {
    /// Causal, all positions, and scores over the root of `head`.
    pub fn new(head: usize) -> Self {
        Self { scale: (1.0 / (head as f64).sqrt()) as f32, window: 0, causal: true }
    }

    /// The same with another factor of scores.
    pub fn with_scale(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    /// The same for the newest `window` positions.
    pub fn with_window(self, window: usize) -> Self {
        Self { window, ..self }
    }

    /// The same with all positions for every query of a prompt: an encoder's attention.
    pub fn bidirectional(self) -> Self {
        Self { causal: false, ..self }
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
