//! A layer.

use crate::feed_forward::FeedForward;
use crate::prompt::{Prompt, Wanted};
use crate::scratch::{Gates, Scratch};
use crate::weights::{Norm, Source};
use candle::{bail, DType, Device, Result, Tensor};
use candle_tilegemm::nn::attention::{self, KvCache, Rope, Settings, Workspace};
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm::nn::{MergedLinear, RmsNorm};

/// Attention and a feed-forward part, each with a norm before it and its input added after it.
///
/// On one card a product adds its residual. On a rank of a group products give parts of sums; once the group has added these up, the norm after them adds the residual:
/// then `scratch.x` has the sums of the feed-forward part, and `scratch.between` its residual, until the next layer, or [`Body`](crate::body::Body) after the last.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    group: Group,
    /// Whether x comes from a layer before.
    follows: bool,
    attention_norm: RmsNorm,
    qkv: MergedLinear,
    rope: Rope,
    settings: Settings,
    o: MergedLinear,
    feed_forward_norm: RmsNorm,
    feed_forward: FeedForward,
}

/// A new token of each sequence: (rows) in u32 each.
#[derive(Clone, Copy)]
pub(crate) struct Step<'a> {
    pub positions: &'a Tensor,
    /// Positions + 1.
    pub lengths: &'a Tensor,
    pub slots: &'a Tensor,
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

/// Which keys a layer's queries see, and how scores become weights.
fn settings(source: &mut dyn Source, layer: usize) -> Result<Settings> {
    let config = source.config();
    let settings = Settings::new(config.head_size).with_window(config.windows[layer]);
    let settings = match config.rope_scaling {
        Some(scaling) => settings.with_rope(scaling),
        None => settings,
    };
    Ok(match source.sinks(layer)? {
        Some(sinks) => settings.with_sinks(sinks),
        None => settings,
    })
}

impl Layer {
    pub fn load(source: &mut dyn Source, layer: usize, frequencies: &Tensor) -> Result<Self> {
        let (style, eps, qk_norm) = (source.config().rope_style, source.config().eps, source.config().qk_norm);
        let settings = settings(source, layer)?;
        let rope = Rope::with_inv_freq(style, frequencies.clone());
        let rope = match qk_norm {
            true => rope.with_norms(source.norm(Norm::OfQ(layer))?, source.norm(Norm::OfK(layer))?, eps),
            false => rope,
        };
        Ok(Self {
            group: source.group().clone(),
            follows: layer > 0,
            attention_norm: RmsNorm::new(source.norm(Norm::BeforeAttention(layer))?, eps),
            qkv: source.qkv(layer)?,
            rope,
            settings,
            o: source.o(layer)?,
            feed_forward_norm: RmsNorm::new(source.norm(Norm::BeforeFeedForward(layer))?, eps),
            feed_forward: source.feed_forward(layer)?,
        })
    }

    /// A step: (rows, hidden) to `scratch.x`, which may be x. K and V of the rows are in the cache afterwards.
    pub fn step(
        &self,
        x: &Tensor,
        cache: &KvCache,
        Step { positions, lengths, slots }: Step,
        workspace: &Workspace,
        scratch: &Scratch,
    ) -> Result<()> {
        let Scratch { qkv, q, seen, .. } = scratch;
        self.before_attention(x, scratch)?;
        let (rope, settings) = (&self.rope, &self.settings);
        attention::append_decode_into(
            qkv,
            cache,
            [positions, lengths],
            Some(slots),
            rope,
            settings,
            workspace,
            [q, seen],
        )?;
        self.after_attention(x, scratch)
    }

    /// The tokens of a prompt, in the same way. Of the rows of `scratch.x` those that are wanted have results.
    pub fn prompt(
        &self,
        x: &Tensor,
        cache: &KvCache,
        prompt: &Prompt,
        wanted: Wanted,
        workspace: &Workspace,
        scratch: &Scratch,
    ) -> Result<()> {
        let Scratch { qkv, q, seen, .. } = scratch;
        let (tokens, settings) = (prompt.tokens(), &self.settings);
        self.before_attention(x, scratch)?;
        attention::append_into(qkv, cache, &prompt.positions()?, Some(prompt.slots()), &self.rope, q)?;
        match wanted {
            Wanted::None => Ok(()),
            Wanted::Last => {
                let (last, [length, slot]) = (scratch.row(tokens - 1)?, prompt.end()?);
                attention::decode_into(&last.q, cache, &length, Some(&slot), settings, workspace, &last.seen)?;
                self.after_attention(&x.narrow(0, tokens - 1, 1)?, &last)
            }
            Wanted::All => {
                match cache.scales() {
                    // On a GPU prompts attend to 16 bits. What they see is what the cache holds, as on the CPU and in steps.
                    Some(_) if q.device().is_cuda() => {
                        let wide = cache.widened(prompt.slot, prompt.past + tokens, q.dtype())?;
                        attention::prefill_into(q, &wide, 0, prompt.past, settings, workspace, seen)?;
                    }
                    _ => attention::prefill_into(q, cache, prompt.slot, prompt.past, settings, workspace, seen)?,
                }
                self.after_attention(x, scratch)
            }
        }
    }

    /// From x to `scratch.qkv`.
    fn before_attention(&self, x: &Tensor, scratch: &Scratch) -> Result<()> {
        let Scratch { between, normed, qkv, .. } = scratch;
        match self.follows && self.group.size() > 1 {
            true => self.attention_norm.add_into(x, between, x, normed)?,
            false => self.attention_norm.forward_into(x, normed)?,
        }
        self.qkv.forward_into(normed, qkv)
    }

    /// From `scratch.seen` to `scratch.x`; x is the layer's input.
    fn after_attention(&self, x: &Tensor, scratch: &Scratch) -> Result<()> {
        if self.group.size() > 1 {
            let Scratch { between, normed, seen, .. } = scratch;
            self.o.forward_into(&seen.flatten_from(1)?, between)?;
            self.group.all_reduce(between)?;
            self.feed_forward_norm.add_into(between, x, between, normed)?;
            self.feed_forward.forward(scratch)?;
            return self.group.all_reduce(&scratch.x);
        }
        let between = if self.o.as_linear().is_some() { &scratch.x } else { &scratch.between };
        self.o.forward_residual_into(&scratch.seen.flatten_from(1)?, x, between)?;
        self.feed_forward_norm.forward_into(between, &scratch.normed)?;
        self.feed_forward.add(between, scratch)
    }

    /// Adds what the part after attention needs of memory.
    pub fn reserve(&self, gates: &mut Gates, rows: usize, dtype: DType) -> Result<()> {
        self.feed_forward.reserve(gates, rows, dtype)
    }
}
