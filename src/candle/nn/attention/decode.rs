//! Attention of one new token of each sequence.

use super::attend::{Keys, Weights};
use super::cache::KvCache;
use super::settings::Settings;
use crate::candle::numbers::{integers, narrow, wide};
use crate::candle::tensors::{Block, Rows, FLOATS};
use ::candle::{bail, DType, Result, Tensor};
use rayon::prelude::*;

pub(super) const BLOCK: Block = Block("attention::decode");

/// What [`decode`](super::decode) was given, checked.
pub(in crate::candle) struct Decode<'a> {
    pub q: Rows<'a>,
    pub out: Rows<'a>,
    pub cache: &'a KvCache,
    pub lengths: &'a Tensor,
    pub slots: Option<&'a Tensor>,
    pub settings: &'a Settings,
    pub heads: usize,
}

impl<'a> Decode<'a> {
    pub fn checked(
        q: &'a Tensor,
        cache: &'a KvCache,
        lengths: &'a Tensor,
        slots: Option<&'a Tensor>,
        settings: &'a Settings,
        out: &'a Tensor,
    ) -> Result<Self> {
        let (sequences, heads, _) = q.dims3()?;
        let rows = query_rows(BLOCK, q, cache, settings)?;
        let out = BLOCK.rows_like("the result", out, rows)?;
        BLOCK.list("lengths", lengths, DType::U32, sequences, q.device())?;
        BLOCK.list_of("slots", slots, DType::U32, sequences, q.device())?;
        Ok(Self { q: rows, out, cache, lengths, slots, settings, heads })
    }

    pub fn on_cpu(&self) -> Result<()> {
        let [slots_count, kv_heads, capacity, head] = self.cache.sizes();
        let (q, lengths) = (wide(self.q)?, integers(self.lengths)?);
        let sinks = sinks(self.settings, self.heads)?;
        let slots = self.slots.map_or_else(|| Ok((0..self.q.rows as i32).collect()), integers)?;
        let mut out = vec![0.0; q.len()];
        {
            let keys = Keys::of(self.cache);
            let share = self.heads / kv_heads;
            out.par_chunks_mut(head).zip(q.par_chunks(head)).enumerate().try_for_each(|(i, (out, q))| {
                let (sequence, h) = (i / self.heads, i % self.heads);
                if !(0..slots_count as i32).contains(&slots[sequence]) {
                    return Ok(());
                }
                let length = (lengths[sequence].max(0) as usize).min(capacity);
                let first = if self.settings.window == 0 { 0 } else { length.saturating_sub(self.settings.window) };
                let at = [slots[sequence] as usize, h / share];
                let weights = Weights { scale: self.settings.scale, sink: sinks[h], is_empty: false };
                keys.attend(q, at, first..length, weights, out)
            })?;
        }
        narrow(self.out, &out)
    }
}

/// The sinks of all heads on the CPU; -inf: none.
pub(super) fn sinks(settings: &Settings, heads: usize) -> Result<Vec<f32>> {
    settings.sinks.as_ref().map_or_else(|| Ok(vec![f32::NEG_INFINITY; heads]), Tensor::to_vec1)
}

/// q as rows, checked against the cache and the settings.
pub(super) fn query_rows<'a>(block: Block, q: &'a Tensor, cache: &KvCache, settings: &Settings) -> Result<Rows<'a>> {
    let [_, kv_heads, _, head] = cache.sizes();
    let (_, heads, of_head) = q.dims3()?;
    block.among("q", q, &FLOATS)?;
    if of_head != head || heads == 0 || !heads.is_multiple_of(kv_heads) {
        bail!(
            "{}: q has the shape {:?}; expected a multiple of {kv_heads} heads, of {head} numbers each",
            block.0,
            q.dims()
        );
    }
    if ![q.dtype(), DType::F8E4M3].contains(&cache.dtype()) || !cache.k().device().same_device(q.device()) {
        let (have, at) = (cache.dtype(), cache.k().device().location());
        bail!(
            "{}: the cache is {have:?} on {at:?}; expected {:?} or fp8 on {:?}",
            block.0,
            q.dtype(),
            q.device().location()
        );
    }
    if !(settings.scale > 0.0 && settings.scale.is_finite()) {
        bail!("{}: a scale of {}; expected a positive number", block.0, settings.scale);
    }
    block.list_of("the sinks", settings.sinks.as_ref(), DType::F32, heads, q.device())?;
    block.rows("q", q, heads * head)
}
