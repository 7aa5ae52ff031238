//! A layer.

use crate::feed_forward::FeedForward;
use crate::scratch::{Gates, Scratch};
use crate::weights::{Norm, Source};
use candle::{bail, DType, Device, Result, Tensor};
use candle_tilegemm::nn::attention::{self, KvCache, Rope, Settings, Workspace};
use candle_tilegemm::nn::{MergedLinear, RmsNorm};

/// Attention and a feed-forward part, each with a norm before it and its input added after it.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    attention_norm: RmsNorm,
    qkv: MergedLinear,
    rope: Rope,
    settings: Settings,
    o: MergedLinear,
    feed_forward_norm: RmsNorm,
    feed_forward: FeedForward,
}

/// Where the rows of a call belong.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// (rows) in u32.
    pub positions: &'a Tensor,
    /// (rows) in u32.
    pub slots: &'a Tensor,
    pub span: Span<'a>,
    pub workspace: &'a Workspace,
}

/// Whether the rows are of one sequence or of many.
#[derive(Clone, Copy)]
pub(crate) enum Span<'a> {
    /// New tokens of one sequence, after `past` tokens in the cache.
    Prompt { slot: usize, past: usize },
    /// A new token of each sequence, whose lengths, (rows) in u32, count it.
    Step { lengths: &'a Tensor },
}

/// The frequencies of a model's rotations, (head / 2) in f32.
pub(crate) fn frequencies(source: &mut dyn Source, device: &Device) -> Result<Tensor> {
    let factors = source.rope_factors()?;
    let config = source.config();
    let (style, head, base) = (config.rope_style, config.head_size, config.rope_base);
    let rope = match config.rope_scaling {
        Some(scaling) => Rope::scaled(style, head, base, scaling, &Device::Cpu)?,
        None => Rope::new(style, head, base, &Device::Cpu)?,
    };
    let Some(frequencies) = rope.inv_freq() else { bail!("a rope without frequencies") };
    match factors {
        Some(factors) => (frequencies / Tensor::new(factors, &Device::Cpu)?)?.to_device(device),
        None => frequencies.to_device(device),
    }
}

impl Layer {
    pub fn load(source: &mut dyn Source, layer: usize, frequencies: &Tensor) -> Result<Self> {
        let (style, eps, qk_norm) = (source.config().rope_style, source.config().eps, source.config().qk_norm);
        let settings = Settings::new(source.config().head_size).with_window(source.config().windows[layer]);
        let rope = Rope::with_inv_freq(style, frequencies.clone());
        let rope = match qk_norm {
            true => rope.with_norms(source.norm(Norm::OfQ(layer))?, source.norm(Norm::OfK(layer))?, eps),
            false => rope,
        };
        Ok(Self {
            attention_norm: RmsNorm::new(source.norm(Norm::BeforeAttention(layer))?, eps),
            qkv: source.qkv(layer)?,
            rope,
            settings,
            o: source.o(layer)?,
            feed_forward_norm: RmsNorm::new(source.norm(Norm::BeforeFeedForward(layer))?, eps),
            feed_forward: source.feed_forward(layer)?,
        })
    }

    /// (rows, hidden) to `scratch.x`, which may be x. K and V of the rows are in the cache afterwards.
    pub fn forward(&self, x: &Tensor, cache: &KvCache, rows: &Rows, scratch: &Scratch) -> Result<()> {
        let Scratch { x: out, normed, qkv, q, seen, .. } = scratch;
        let (positions, slots) = (rows.positions, Some(rows.slots));
        self.attention_norm.forward_into(x, normed)?;
        self.qkv.forward_into(normed, qkv)?;
        match rows.span {
            Span::Prompt { slot, past } => {
                attention::append_into(qkv, cache, positions, slots, &self.rope, q)?;
                let (settings, workspace) = (&self.settings, rows.workspace);
                // On a GPU prompts attend to 16 bits. What they see is what the cache holds, as on the CPU and in steps.
                match cache.scales() {
                    Some(_) if q.device().is_cuda() => {
                        let wide = cache.widened(slot, past + q.dim(0)?, q.dtype())?;
                        attention::prefill_into(q, &wide, 0, past, settings, workspace, seen)?;
                    }
                    _ => attention::prefill_into(q, cache, slot, past, settings, workspace, seen)?,
                }
            }
            Span::Step { lengths } => attention::append_decode_into(
                qkv,
                cache,
                [positions, lengths],
                slots,
                &self.rope,
                &self.settings,
                rows.workspace,
                [q, seen],
            )?,
        }
        self.o.forward_residual_into(&seen.flatten_from(1)?, x, out)?;
        self.feed_forward_norm.forward_into(out, normed)?;
        self.feed_forward.add(scratch)
    }

    /// Adds what the part after attention needs of memory.
    pub fn reserve(&self, gates: &mut Gates, rows: usize, dtype: DType) -> Result<()> {
        self.feed_forward.reserve(gates, rows, dtype)
    }
}
