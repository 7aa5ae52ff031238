//! The functions of attention: checks, and the device.

use super::append::{self, Append};
use super::cache::KvCache;
use super::decode::{self, Decode};
use super::prefill::{self, Prefill};
use super::rope::Rope;
use super::settings::{Settings, Workspace};
#[cfg(feature = "layers")]
use crate::candle::cuda::layers;
use crate::candle::tensors::unwritten;
use ::candle::{Device, Result, Tensor};

/// Normalises and turns q and k of new tokens as `rope` says, writes k and v to the cache at `positions`, and returns q.
///
/// A row of `qkv` is the heads of q, then those of k, then those of v. A row of padding (a slot that the cache lacks) and a position that
/// the cache lacks write nothing; their q is computed all the same. Positions of one sequence differ.
///
/// # Errors
/// Shapes, types and devices that do not fit, and tensors that track gradients.
pub fn append(
    qkv: &Tensor,
    cache: &KvCache,
    positions: &Tensor,
    slots: Option<&Tensor>,
    rope: &Rope,
) -> Result<Tensor> {
    let [_, kv_heads, _, head] = cache.sizes();
    let (tokens, columns) = qkv.dims2()?;
    let heads = (columns / head).saturating_sub(2 * kv_heads);
    let q = unwritten(&[tokens, heads, head], qkv.dtype(), qkv.device())?;
    append_into(qkv, cache, positions, slots, rope, &q)?;
    Ok(q)
}

/// [`append`] into a tensor that exists, (tokens, heads, head) or (tokens, heads head). It may be the part of `qkv` that q is. Allocates nothing, and is legal
/// in a capture.
///
/// # Errors
/// As for [`append`].
pub fn append_into(
    qkv: &Tensor,
    cache: &KvCache,
    positions: &Tensor,
    slots: Option<&Tensor>,
    rope: &Rope,
    q: &Tensor,
) -> Result<()> {
    let append = Append::checked(qkv, cache, positions, slots, rope, q)?;
    match qkv.device() {
        Device::Cpu => append.on_cpu(),
        #[cfg(feature = "layers")]
        Device::Cuda(device) => layers::append(device, &append),
        other => append::BLOCK.elsewhere(other),
    }
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
    let decode = Decode::checked(q, cache, lengths, slots, settings, out)?;
    match q.device() {
        Device::Cpu => decode.on_cpu(),
        #[cfg(feature = "layers")]
        Device::Cuda(device) => layers::decode(device, &decode, workspace, false),
        other => decode::BLOCK.elsewhere(other),
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
    let decode = Decode::checked(q, cache, lengths, slots, settings, out)?;
    match q.device() {
        Device::Cpu => {
            append.on_cpu()?;
            decode.on_cpu()
        }
        #[cfg(feature = "layers")]
        Device::Cuda(device) => {
            layers::append(device, &append)?;
            layers::decode(device, &decode, workspace, true)
        }
        other => decode::BLOCK.elsewhere(other),
    }?;
    let _ = workspace;
    Ok(())
}

/// The attention of the query rows of one sequence, (tokens, heads, head), whose positions are `past`, `past + 1`, ..., and whose keys and values are in the
/// cache already.
///
/// Query i sees positions 0 to `past + i`, or with [`Settings::bidirectional`] all `past + tokens`, and of these the newest `settings.window` up to its own. A
/// query that sees none gives zeros. On a GPU the cache is in q's type; for a cache in fp8, give [`KvCache::widened`].
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
    let prefill = Prefill::checked(q, cache, slot, past, settings, out)?;
    match q.device() {
        Device::Cpu => prefill.on_cpu(),
        #[cfg(feature = "layers")]
        Device::Cuda(device) => layers::prefill(device, &prefill, workspace),
        other => prefill::BLOCK.elsewhere(other),
    }?;
    let _ = workspace;
    Ok(())
}
