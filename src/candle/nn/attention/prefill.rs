//! Attention of many new tokens of one sequence.

use super::attend::Keys;
use super::cache::KvCache;
use super::decode::query_rows;
use super::settings::{Settings, Workspace};
#[cfg(feature = "layers")]
use crate::candle::cuda::layers;
use crate::candle::numbers::{narrow, wide};
use crate::candle::tensors::{unwritten, Block, Rows};
use ::candle::{bail, Device, Result, Tensor};
use rayon::prelude::*;

const BLOCK: Block = Block("attention::prefill");

/// What [`prefill`] was given, checked.
pub(in crate::candle) struct Prefill<'a> {
    pub q: Rows<'a>,
    pub out: Rows<'a>,
    pub cache: &'a KvCache,
    pub slot: usize,
    pub past: usize,
    pub settings: Settings,
    pub heads: usize,
}

/// The attention of the query rows of one sequence, (tokens, heads, head), whose positions are `past`, `past + 1`, ..., and whose keys and values are in the
/// cache already.
///
/// Query i sees positions 0 to `past + i`, or with [`Settings::bidirectional`] all `past + tokens`, and of these the newest `settings.window` up to its own. A
/// query that sees none gives zeros. On a GPU the cache is in q's type; for a cache in fp8, append the prompt to a cache of one slot in q's type, too, and give
/// that one.
///
/// # Errors
/// As for [`decode`](super::decode); positions or a slot that the cache lacks.
pub fn prefill(
    q: &Tensor,
    cache: &KvCache,
    slot: usize,
    past: usize,
    settings: &Settings,
    workspace: &Workspace,
) -> Result<Tensor> {
    let out = unwritten(q.dims(), q.dtype(), q.device())?;
    prefill_into(q, cache, slot, past, settings, workspace, &out)?;
    Ok(out)
}

/// [`prefill`] into a tensor that exists, of q's shape. Allocates nothing, and is legal in a capture.
///
/// # Errors
/// As for [`prefill`].
pub fn prefill_into(
    q: &Tensor,
    cache: &KvCache,
    slot: usize,
    past: usize,
    settings: &Settings,
    workspace: &Workspace,
    out: &Tensor,
) -> Result<()> {
    let (tokens, heads, _) = q.dims3()?;
    let [slots, _, capacity, _] = cache.sizes();
    let rows = query_rows(BLOCK, q, cache, *settings)?;
    let out = BLOCK.rows_like("the result", out, rows)?;
    if slot >= slots || past.checked_add(tokens).is_none_or(|end| end > capacity) {
        bail!("attention::prefill: {tokens} tokens from position {past} on in slot {slot}; the cache has {slots} slots of {capacity} positions");
    }
    let prefill = Prefill { q: rows, out, cache, slot, past, settings: *settings, heads };
    match q.device() {
        Device::Cpu => prefill.on_cpu(),
        #[cfg(feature = "layers")]
        Device::Cuda(device) => layers::prefill(device, &prefill, workspace),
        other => BLOCK.elsewhere(other),
    }?;
    let _ = workspace;
    Ok(())
}

impl Prefill<'_> {
    fn on_cpu(&self) -> Result<()> {
        let [_, kv_heads, _, head] = self.cache.sizes();
        let Settings { scale, window, causal } = self.settings;
        let (q, length) = (wide(self.q)?, self.past + self.q.rows);
        let mut out = vec![0.0; q.len()];
        {
            let keys = Keys::of(self.cache);
            let share = self.heads / kv_heads;
            out.par_chunks_mut(head).zip(q.par_chunks(head)).enumerate().try_for_each(|(i, (out, q))| {
                let position = self.past + i / self.heads;
                let end = if causal { position + 1 } else { length };
                let first = if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
                keys.attend(q, [self.slot, i % self.heads / share], first.min(end)..end, scale, true, out)
            })?;
        }
        narrow(self.out, &out)
    }
}
