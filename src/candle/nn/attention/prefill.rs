//! Attention of many new tokens of one sequence.

use super::attend::{Keys, Weights};
use super::cache::KvCache;
use super::decode::{query_rows, sinks};
use super::settings::Settings;
use crate::candle::numbers::{narrow, wide};
use crate::candle::tensors::{Block, Rows};
use ::candle::{bail, Result, Tensor};
use rayon::prelude::*;

pub(super) const BLOCK: Block = Block("attention::prefill");

/// What [`prefill`](super::prefill) was given, checked.
pub(in crate::candle) struct Prefill<'a> {
    pub q: Rows<'a>,
    pub out: Rows<'a>,
    pub cache: &'a KvCache,
    pub slot: usize,
    pub past: usize,
    pub settings: &'a Settings,
    pub heads: usize,
}

impl<'a> Prefill<'a> {
    pub fn checked(
        q: &'a Tensor,
        cache: &'a KvCache,
        slot: usize,
        past: usize,
        settings: &'a Settings,
        out: &'a Tensor,
    ) -> Result<Self> {
        let (tokens, heads, _) = q.dims3()?;
        let [slots, _, capacity, _] = cache.sizes();
        let rows = query_rows(BLOCK, q, cache, settings)?;
        let out = BLOCK.rows_like("the result", out, rows)?;
        if slot >= slots || past.checked_add(tokens).is_none_or(|end| end > capacity) {
            bail!("attention::prefill: {tokens} tokens from position {past} on in slot {slot}; the cache has {slots} slots of {capacity} positions");
        }
        Ok(Self { q: rows, out, cache, slot, past, settings, heads })
    }

    pub fn on_cpu(&self) -> Result<()> {
        let [_, kv_heads, _, head] = self.cache.sizes();
        let &Settings { scale, window, causal, .. } = self.settings;
        let sinks = sinks(self.settings, self.heads)?;
        let (q, length) = (wide(self.q)?, self.past + self.q.rows);
        let mut out = vec![0.0; q.len()];
        {
            let keys = Keys::of(self.cache);
            let share = self.heads / kv_heads;
            out.par_chunks_mut(head).zip(q.par_chunks(head)).enumerate().try_for_each(|(i, (out, q))| {
                let position = self.past + i / self.heads;
                let end = if causal { position + 1 } else { length };
                let first = if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
                let h = i % self.heads;
                let weights = Weights { scale, sink: sinks[h], is_empty: true };
                keys.attend(q, [self.slot, h / share], first.min(end)..end, weights, out)
            })?;
        }
        narrow(self.out, &out)
    }
}
