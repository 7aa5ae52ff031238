//! Attention of one new token of each sequence.

use super::append::Append;
use super::attend::Keys;
use super::cache::KvCache;
use super::rope::Rope;
use super::settings::{Settings, Workspace};
#[cfg(feature = "layers")]
use crate::candle::cuda::layers;
use crate::candle::numbers::{integers, narrow, wide};
use crate::candle::tensors::{unwritten, Block, Rows, FLOATS};
use ::candle::{bail, DType, Device, Result, Tensor};
use rayon::prelude::*;

const BLOCK: Block = Block("attention::decode");

/// What [`decode`] was given, checked.
pub(in crate::candle) struct Decode<'a> {
    pub q: Rows<'a>,
    pub out: Rows<'a>,
    pub cache: &'a KvCache,
    pub lengths: &'a Tensor,
    pub slots: Option<&'a Tensor>,
    pub settings: Settings,
    pub heads: usize,
}

/// The attention of each sequence's query row, (sequences, heads, head), to the newest `settings.window` of its `lengths` rows of the cache.
///
/// A length of 0 and a row of padding give zeros, and a length above the cache's capacity counts as the capacity. What lies behind a length is not read. On a
/// GPU a sequence's bits depend on its q, its rows and its length alone: neither on the other sequences nor on the card's number of multiprocessors.
///
/// # Errors
/// Shapes, types and devices that do not fit, heads that are no multiple of the cache's, a scale that is not positive, a workspace for fewer sequences or heads,
/// and tensors that track gradients.
pub fn decode(
    q: &Tensor,
    cache: &KvCache,
    lengths: &Tensor,
    slots: Option<&Tensor>,
    settings: &Settings,
    workspace: &Workspace,
) -> Result<Tensor> {
    let out = unwritten(q.dims(), q.dtype(), q.device())?;
    decode_into(q, cache, lengths, slots, settings, workspace, &out)?;
    Ok(out)
}

/// [`decode`] into a tensor that exists, of q's shape. Allocates nothing, and is legal in a capture.
///
/// # Errors
/// As for [`decode`].
pub fn decode_into(
    q: &Tensor,
    cache: &KvCache,
    lengths: &Tensor,
    slots: Option<&Tensor>,
    settings: &Settings,
    workspace: &Workspace,
    out: &Tensor,
) -> Result<()> {
    let decode = Decode::checked(q, cache, lengths, slots, *settings, out)?;
    match q.device() {
        Device::Cpu => decode.on_cpu(),
        #[cfg(feature = "layers")]
        Device::Cuda(device) => layers::decode(device, &decode, workspace, false),
        other => BLOCK.elsewhere(other),
    }?;
    let _ = workspace;
    Ok(())
}

/// [`append_into`](super::append_into) and [`decode_into`] of one new token of each sequence. On a GPU from Hopper on, attention starts to read the cache while
/// the append still runs. Allocates nothing, and is legal in a capture.
///
/// # Errors
/// As for [`append`](super::append) and [`decode`].
#[allow(clippy::too_many_arguments)] // those of both
pub fn append_decode_into(
    qkv: &Tensor,
    cache: &KvCache,
    [positions, lengths]: [&Tensor; 2],
    slots: Option<&Tensor>,
    rope: &Rope,
    settings: &Settings,
    workspace: &Workspace,
    [q, out]: [&Tensor; 2],
) -> Result<()> {
    let append = Append::checked(qkv, cache, positions, slots, rope, q)?;
    let decode = Decode::checked(q, cache, lengths, slots, *settings, out)?;
    match q.device() {
        Device::Cpu => {
            append.on_cpu()?;
            decode.on_cpu()
        }
        #[cfg(feature = "layers")]
        Device::Cuda(device) => {
            layers::append(device, &append, true)?;
            layers::decode(device, &decode, workspace, true)
        }
        other => BLOCK.elsewhere(other),
    }?;
    let _ = workspace;
    Ok(())
}

impl<'a> Decode<'a> {
    fn checked(
        q: &'a Tensor,
        cache: &'a KvCache,
        lengths: &'a Tensor,
        slots: Option<&'a Tensor>,
        settings: Settings,
        out: &'a Tensor,
    ) -> Result<Self> {
        let (sequences, heads, _) = q.dims3()?;
        let rows = query_rows(BLOCK, q, cache, settings)?;
        let out = BLOCK.rows_like("the result", out, rows)?;
        BLOCK.list("lengths", lengths, DType::U32, sequences, q.device())?;
        BLOCK.list_of("slots", slots, DType::U32, sequences, q.device())?;
        Ok(Self { q: rows, out, cache, lengths, slots, settings, heads })
    }

    fn on_cpu(&self) -> Result<()> {
        let [slots_count, kv_heads, capacity, head] = self.cache.sizes();
        let (q, lengths) = (wide(self.q)?, integers(self.lengths)?);
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
                keys.attend(q, at, first..length, self.settings.scale, false, out)
            })?;
        }
        narrow(self.out, &out)
    }
}

/// q as rows, checked against the cache.
pub(super) fn query_rows<'a>(block: Block, q: &'a Tensor, cache: &KvCache, settings: Settings) -> Result<Rows<'a>> {
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
    block.rows("q", q, heads * head)
}
