//! K and V of all sequences.

use super::check::{Check, Rows};
use crate::error::Result;
use crate::ffi;
use crate::launch::layers;
use crate::problem::Format;
use std::ffi::c_void;
use std::ptr::null_mut;

/// A static cache of keys and values: two arrays of slots x kv_heads x capacity x head numbers. A sequence has a slot. With [`Format::F8E4M3`] a number is
/// the stored one times the scale of its head and row: two arrays of slots x kv_heads x capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cache {
    /// Keys.
    pub k: *mut c_void,
    /// Values.
    pub v: *mut c_void,
    /// The scales of K and V; null unless the format is fp8.
    pub scales: [*mut f32; 2],
    /// f16, bf16 or fp8.
    pub format: Format,
    /// Sequences that the cache has room for.
    pub slots: usize,
    /// Heads of K and V.
    pub kv_heads: usize,
    /// Rows of a head: positions.
    pub capacity: usize,
    /// Numbers of a row.
    pub head: usize,
}

impl Cache {
    /// A cache without scales.
    pub const fn new(k: *mut c_void, v: *mut c_void, format: Format, sizes: [usize; 4]) -> Self {
        let [slots, kv_heads, capacity, head] = sizes;
        Self { k, v, scales: [null_mut(); 2], format, slots, kv_heads, capacity, head }
    }

    /// The cache for a kernel whose other numbers are in `format`.
    pub(super) fn checked(&self, check: &Check, format: Format, fp8: bool) -> Result<ffi::tg_cache> {
        let among: &[Format] = if fp8 { &[format, Format::F8E4M3] } else { &[format] };
        let of = check.format("a cache", self.format, among)?;
        let is_fp8 = self.format == Format::F8E4M3;
        check.that(!is_fp8 || self.scales.iter().all(|scale| !scale.is_null()), || {
            "a cache in fp8 without scales; give both".into()
        })?;
        let (head, size) = (check.head(self.head)?, if is_fp8 { 1 } else { 2 });
        for (what, at) in [("K", self.k), ("V", self.v)] {
            check.aligned(what, Rows::new(at, i64::from(head)), size, 16)?;
        }
        let head_stride = self.capacity as i64 * i64::from(head);
        Ok(ffi::tg_cache {
            k: self.k,
            v: self.v,
            k_scale: self.scales[0],
            v_scale: self.scales[1],
            slot_stride: self.kv_heads as i64 * head_stride,
            head_stride,
            row_stride: head.into(),
            scale_slot_stride: (self.kv_heads * self.capacity) as i64,
            scale_head_stride: self.capacity as i64,
            slots: check.count("slots", self.slots)?,
            kv_heads: check.count("heads of K and V", self.kv_heads)?,
            capacity: check.count("rows of a cache", self.capacity)?,
            head,
            format: of,
        })
    }
}

/// The first rows of a slot of a cache in fp8 as numbers, for kernels that read no fp8.
#[derive(Debug, Clone, Copy)]
pub struct Widen {
    /// The cache, in fp8.
    pub cache: Cache,
    /// The slot.
    pub slot: usize,
    /// Rows from the first on.
    pub rows: usize,
    /// The results: kv_heads x rows x head numbers of K and of V, contiguous.
    pub out: [*mut c_void; 2],
    /// Of the results: f16 or bf16.
    pub format: Format,
}

impl Widen {
    /// Launches on a stream of the current device.
    ///
    /// # Errors
    /// As for [`RmsNorm::launch`](super::RmsNorm::launch).
    ///
    /// # Safety
    /// As for [`RmsNorm::launch`](super::RmsNorm::launch).
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<()> {
        let check = Check("KvCache");
        let format = check.format("the results", self.format, &[Format::F16, Format::BF16])?;
        check
            .that(self.cache.format == Format::F8E4M3, || format!("a cache in {}; expected fp8", self.cache.format))?;
        check.that(self.slot < self.cache.slots && self.rows <= self.cache.capacity, || {
            let Cache { slots, capacity, .. } = self.cache;
            format!("{} rows of slot {}; the cache has {slots} slots of {capacity} rows", self.rows, self.slot)
        })?;
        let cache = self.cache.checked(&check, self.format, true)?;
        for (what, at) in [("K", self.out[0]), ("V", self.out[1])] {
            check.aligned(what, Rows::new(at, i64::from(cache.head)), 2, 16)?;
        }
        let args = ffi::tg_widen {
            cache,
            k: self.out[0],
            v: self.out[1],
            slot: self.slot as i32,
            rows: self.rows as i32,
            format,
        };
        // SAFETY: the caller's promises.
        layers::answer(check.0, unsafe { ffi::tg_widen_launch(&args, &layers::on(stream)?) })
    }
}
