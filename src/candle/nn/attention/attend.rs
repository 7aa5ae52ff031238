//! Attention of one query row and head on the CPU.

use super::cache::KvCache;
use crate::candle::numbers::Numbers;
use ::candle::{Layout, Result, StorageRef};
use std::ops::Range;

/// A cache on the CPU.
pub(super) struct Keys<'a> {
    guards: [(StorageRef<'a>, &'a Layout); 2],
    scales: Option<[(StorageRef<'a>, &'a Layout); 2]>,
    sizes: [usize; 4],
}

/// How scores become weights.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    pub scale: f32,
    /// -inf: none.
    pub sink: f32,
    /// Whether the result is zeros, too, where every weight is 0.
    pub is_empty: bool,
}

impl<'a> Keys<'a> {
    pub fn of(cache: &'a KvCache) -> Self {
        let guards = [cache.k(), cache.v()].map(|tensor| tensor.storage_and_layout());
        let scales = cache.scales().map(|scales| scales.each_ref().map(|tensor| tensor.storage_and_layout()));
        Self { guards, scales, sizes: cache.sizes() }
    }

    /// softmax(scale q . K^T) V over these rows of a head; zeros where there is no row.
    pub fn attend(
        &self,
        q: &[f32],
        [slot, kv_head]: [usize; 2],
        rows: Range<usize>,
        Weights { scale, sink, is_empty }: Weights,
        out: &mut [f32],
    ) -> Result<()> {
        let [_, kv_heads, capacity, head] = self.sizes;
        let first = (slot * kv_heads + kv_head) * capacity;
        let mut row = vec![0.0; head];
        // The row `at` of K (0) or V (1).
        let read = |which: usize, at: usize, row: &mut [f32]| -> Result<()> {
            let (storage, layout) = &self.guards[which];
            Numbers::of(storage)?.read(layout.start_offset() + (first + at) * head, row);
            if let Some(scales) = &self.scales {
                let (storage, layout) = &scales[which];
                let mut scale = [0.0];
                Numbers::of(storage)?.read(layout.start_offset() + first + at, &mut scale);
                row.iter_mut().for_each(|x| *x *= scale[0]);
            }
            Ok(())
        };
        let mut weights = Vec::with_capacity(rows.len());
        for at in rows.clone() {
            read(0, at, &mut row)?;
            weights.push(scale * q.iter().zip(&row).map(|(q, k)| q * k).sum::<f32>());
        }
        let top = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let base = if top == f32::NEG_INFINITY { 0.0 } else { top };
        weights.iter_mut().for_each(|weight| *weight = (*weight - base).exp());
        let sum = weights.iter().sum::<f32>() + (sink - base).exp();
        out.fill(0.0);
        for (at, weight) in rows.clone().zip(&weights) {
            read(1, at, &mut row)?;
            out.iter_mut().zip(&row).for_each(|(out, v)| *out += weight * v);
        }
        if !(rows.is_empty() || is_empty && sum == 0.0) {
            out.iter_mut().for_each(|out| *out /= sum);
        }
        Ok(())
    }
}
