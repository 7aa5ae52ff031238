//! q, k and v of new tokens: norms, rotation, and the way into the cache.

use super::cache::KvCache;
use super::rope::Rope;
use crate::candle::numbers::{change, integers, narrow, store, wide};
use crate::candle::tensors::{Block, Rows, FLOATS};
use crate::layer::RopeStyle;
use ::candle::{bail, CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

pub(super) const BLOCK: Block = Block("attention::append");

/// What [`append`](super::append) was given, checked.
pub(in crate::candle) struct Append<'a> {
    pub qkv: Rows<'a>,
    pub q: Rows<'a>,
    pub cache: &'a KvCache,
    pub positions: &'a Tensor,
    pub slots: Option<&'a Tensor>,
    pub rope: &'a Rope,
    pub heads: usize,
}

impl<'a> Append<'a> {
    pub fn checked(
        qkv: &'a Tensor,
        cache: &'a KvCache,
        positions: &'a Tensor,
        slots: Option<&'a Tensor>,
        rope: &'a Rope,
        q: &'a Tensor,
    ) -> Result<Self> {
        let [_, kv_heads, _, head] = cache.sizes();
        let (tokens, columns) = qkv.dims2()?;
        let device = qkv.device();
        let heads = (columns / head).saturating_sub(2 * kv_heads);
        if (heads + 2 * kv_heads) * head != columns || heads == 0 {
            bail!(
                "attention::append: qkv has the shape {:?}; expected rows of (heads + 2 * {kv_heads}) * {head} numbers",
                qkv.dims()
            );
        }
        BLOCK.among("qkv", qkv, &FLOATS)?;
        let is_of_cache = [qkv.dtype(), DType::F8E4M3].contains(&cache.dtype());
        if !is_of_cache || !cache.k().device().same_device(device) {
            bail!(
                "attention::append: the cache is {:?} on {:?}; expected {:?} or fp8 on {:?}",
                cache.dtype(),
                cache.k().device().location(),
                qkv.dtype(),
                device.location()
            );
        }
        let qkv = BLOCK.rows("qkv", qkv, columns)?;
        BLOCK.same("q", q, qkv.tensor)?;
        let q = BLOCK.rows("q", q, heads * head)?;
        if q.rows != tokens {
            bail!("attention::append: q has {} rows; expected {tokens}", q.rows);
        }
        BLOCK.list("positions", positions, DType::U32, tokens, device)?;
        BLOCK.list_of("slots", slots, DType::U32, tokens, device)?;
        BLOCK.list_of("the rope's inv_freq", rope.inv_freq(), DType::F32, head / 2, device)?;
        for weight in rope.norms().map_or(&[][..], |(weights, _)| weights) {
            BLOCK.list("a norm's weight", weight, qkv.tensor.dtype(), head, device)?;
        }
        Ok(Self { qkv, q, cache, positions, slots, rope, heads })
    }

    pub fn on_cpu(&self) -> Result<()> {
        let [slots_count, kv_heads, capacity, head] = self.cache.sizes();
        let (tokens, heads) = (self.qkv.rows, self.heads);
        let mut values = wide(self.qkv)?;
        let positions = integers(self.positions)?;
        let slots = self.slots.map_or_else(|| Ok((0..tokens as i32).collect()), integers)?;
        let inv_freq = self.rope.inv_freq().map(Tensor::to_vec1::<f32>).transpose()?;
        let wide_list = |weight: &Tensor| wide(BLOCK.rows("a norm's weight", weight, head)?);
        let norms = match self.rope.norms() {
            Some(([q, k], eps)) => Some(([wide_list(q)?, wide_list(k)?], eps as f32)),
            None => None,
        };
        values.par_chunks_mut(self.qkv.columns).zip(&positions).for_each(|(row, &position)| {
            for (h, x) in row.chunks_mut(head).take(heads + kv_heads).enumerate() {
                if let Some((weights, eps)) = &norms {
                    let mean = x.iter().map(|x| x * x).sum::<f32>() / head as f32;
                    let factor = 1.0 / (mean + eps).sqrt();
                    x.iter_mut().zip(&weights[usize::from(h >= heads)]).for_each(|(x, w)| *x *= factor * w);
                }
                if let (Some(inv_freq), Some(style)) = (&inv_freq, self.rope.style()) {
                    turn(x, inv_freq, style, position);
                }
            }
        });
        let q: Vec<f32> = values.chunks(self.qkv.columns).flat_map(|row| &row[..heads * head]).copied().collect();
        narrow(self.q, &q)?;
        for (which, tensor) in [self.cache.k(), self.cache.v()].into_iter().enumerate() {
            let mut scales = vec![];
            change(tensor, |storage, layout| {
                let is_fp8 = matches!(storage, CpuStorage::F8E4M3(_));
                for (t, row) in values.chunks(self.qkv.columns).enumerate() {
                    let (slot, position) = (slots[t], positions[t]);
                    let is_there = (0..slots_count as i32).contains(&slot) && (0..capacity as i32).contains(&position);
                    let of_cache = row[(heads + which * kv_heads) * head..].chunks(head).take(kv_heads).enumerate();
                    for (h, x) in of_cache.filter(|_| is_there) {
                        let at = (slot as usize * kv_heads + h) * capacity + position as usize;
                        if is_fp8 {
                            let (x, scale) = in_fp8(x);
                            store(storage, layout.start_offset() + at * head, &x)?;
                            scales.push((at, scale));
                        } else {
                            store(storage, layout.start_offset() + at * head, x)?;
                        }
                    }
                }
                Ok(())
            })?;
            if let Some(tensors) = self.cache.scales() {
                change(&tensors[which], |storage, layout| {
                    scales.iter().try_for_each(|(at, scale)| store(storage, layout.start_offset() + at, &[*scale]))
                })?;
            }
        }
        Ok(())
    }
}

/// Turns the pairs of a head.
fn turn(x: &mut [f32], inv_freq: &[f32], style: RopeStyle, position: i32) {
    let half = x.len() / 2;
    for (i, frequency) in inv_freq.iter().enumerate() {
        let (sin, cos) = (f64::from(position) * f64::from(*frequency)).sin_cos();
        let (sin, cos) = (sin as f32, cos as f32);
        let [a, b] = match style {
            RopeStyle::Halves => [i, i + half],
            RopeStyle::Interleaved => [2 * i, 2 * i + 1],
        };
        (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
    }
}

/// A row over its scale: the largest magnitude / 448, NaN where the row holds inf or NaN.
fn in_fp8(x: &[f32]) -> (Vec<f32>, f32) {
    let scale = match x.iter().all(|x| x.is_finite()) {
        true => x.iter().fold(0f32, |most, x| most.max(x.abs())) * (1.0 / 448.0),
        false => f32::NAN,
    };
    // A row of subnormal numbers counts as zeros.
    let inverse = if scale >= 1e-37 { 1.0 / scale } else { 0.0 };
    (x.iter().map(|x| if inverse == 0.0 { 0.0 } else { x * inverse }).collect(), scale)
}
