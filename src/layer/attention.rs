//! Attention over a cache, and the way of q, k and v to it.

use super::cache::Cache;
use super::check::{Check, Rows};
use super::kinds::{RopeStyle, MOST_HEADS};
use crate::error::Result;
use crate::ffi;
use crate::launch::layers;
use crate::problem::Format;
use std::ffi::c_void;
use std::ptr::null;

const HALVES: [Format; 2] = [Format::F16, Format::BF16];

/// The rotation of q and k by their position.
#[derive(Debug, Clone, Copy)]
pub struct Rope {
    /// The pairs.
    pub style: RopeStyle,
    /// The angle of a position, in radians: head / 2 numbers.
    pub inv_freq: *const f32,
}

/// q, k and v of tokens: q and k are normalised and turned, k and v go into the cache.
#[derive(Debug, Clone, Copy)]
pub struct Append {
    /// The merged product, tokens x (heads + 2 kv_heads) head.
    pub qkv: Rows,
    /// tokens x heads head; may be the rows of `qkv`.
    pub q: Rows,
    /// Where k and v go.
    pub cache: Cache,
    /// The position of each token.
    pub positions: *const i32,
    /// The slot of each token; null: token t has slot t. A negative slot is a row of padding.
    pub slots: *const i32,
    /// The rotation, if any.
    pub rope: Option<Rope>,
    /// Weights of the norms of q and k, of head numbers; null: no norm.
    pub norms: [*const c_void; 2],
    /// The norms' epsilon.
    pub eps: f32,
    /// Tokens.
    pub tokens: usize,
    /// Heads of q.
    pub heads: usize,
    /// The format of `qkv`, `q` and the norms' weights: f16 or bf16.
    pub format: Format,
}

impl Append {
    /// Launches on a stream of the current device.
    ///
    /// # Errors
    /// [`Error::Layer`](crate::Error::Layer) where the kernel does not take the arguments, and CUDA's errors.
    ///
    /// # Safety
    /// All pointers are memory of the current device of the sizes above, which stays allocated until the stream has passed the launch.
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<()> {
        let check = Check("attention::append");
        let format = check.format("q, k and v", self.format, &HALVES)?;
        let cache = self.cache.checked(&check, self.format, true)?;
        check.aligned("the merged product", self.qkv, 2, 16)?;
        check.aligned("q", self.q, 2, 16)?;
        for norm in self.norms {
            check.aligned("the norms of q and k", Rows::new(norm.cast_mut(), 0), 2, 16)?;
        }
        let rope = match self.rope.map(|rope| rope.style) {
            None => ffi::tg_rope::TG_ROPE_NONE,
            Some(RopeStyle::Halves) => ffi::tg_rope::TG_ROPE_HALVES,
            Some(RopeStyle::Interleaved) => ffi::tg_rope::TG_ROPE_INTERLEAVED,
        };
        let args = ffi::tg_append {
            qkv: self.qkv.at,
            qkv_stride: self.qkv.stride,
            q_out: self.q.at,
            q_stride: self.q.stride,
            cache,
            positions: self.positions,
            slots: self.slots,
            inv_freq: self.rope.map_or(null(), |rope| rope.inv_freq),
            cos: null(),
            sin: null(),
            q_norm: self.norms[0],
            k_norm: self.norms[1],
            tokens: check.count("tokens", self.tokens)?,
            heads: check.count("heads", self.heads)?,
            table_rows: 0,
            rope,
            eps: self.eps,
            format,
        };
        // SAFETY: the caller's promises.
        layers::answer(check.0, unsafe { ffi::tg_append_launch(&args, &layers::on(stream)?) })
    }
}

/// Attention of one query row a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Decode {
    /// sequences x heads head.
    pub q: Rows,
    /// Like q.
    pub out: Rows,
    /// K and V.
    pub cache: Cache,
    /// The rows of the cache that each sequence has, the newest included.
    pub lengths: *const i32,
    /// The slot of each sequence; null: sequence s has slot s. A negative slot is a row of padding, whose result is zeros.
    pub slots: *const i32,
    /// For each head a number that joins the softmax of its scores, and has no value; null: none.
    pub sinks: *const f32,
    /// [`decode_workspace`] bytes, zeroed before the first use.
    pub workspace: *mut c_void,
    /// Its bytes, the same in all launches with it.
    pub workspace_bytes: u64,
    /// Sequences.
    pub sequences: usize,
    /// Heads of q.
    pub heads: usize,
    /// The newest rows that count; 0: all.
    pub window: usize,
    /// The factor of scores.
    pub scale: f32,
    /// The format of q and the result: f16 or bf16.
    pub format: Format,
    /// The launch before on the stream is [`Append`], of the same sequences.
    pub after_append: bool,
}

/// The bytes of a workspace for [`Decode`] of at most so many sequences, heads and numbers of a head.
pub fn decode_workspace(sequences: usize, heads: usize, head: usize) -> u64 {
    // As tg_attention_decode_workspace has it: at most 64 parts of a sequence, and the counters.
    let parts = sequences as u64 * heads as u64 * 64;
    4 * (sequences as u64 * heads as u64).next_multiple_of(32) + parts * (4 * head as u64 + 8)
}

impl Decode {
    /// Launches on a stream of the current device.
    ///
    /// # Errors
    /// As for [`Append::launch`].
    ///
    /// # Safety
    /// As for [`Append::launch`].
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<()> {
        let check = Check("attention::decode");
        let format = check.format("q", self.format, &HALVES)?;
        let cache = self.cache.checked(&check, self.format, true)?;
        check.aligned("q", self.q, 2, 16)?;
        check.aligned("the result", self.out, 2, 16)?;
        check.that(self.scale > 0.0, || format!("a scale of {}; expected a positive one", self.scale))?;
        let kv_heads = self.cache.kv_heads;
        check.that(
            kv_heads > 0 && self.heads.is_multiple_of(kv_heads) && self.heads <= MOST_HEADS * kv_heads,
            || {
                format!(
                    "{} heads over {kv_heads} of K and V; the kernel has 1 to {MOST_HEADS} times as many",
                    self.heads
                )
            },
        )?;
        let need = decode_workspace(self.sequences, self.heads, self.cache.head);
        check.that(self.workspace_bytes >= need, || {
            format!("a workspace of {} bytes; expected {need} and more", self.workspace_bytes)
        })?;
        let args = ffi::tg_attention_decode {
            q: self.q.at,
            out: self.out.at,
            q_stride: self.q.stride,
            out_stride: self.out.stride,
            cache,
            lengths: self.lengths,
            slots: self.slots,
            sinks: self.sinks,
            workspace: self.workspace,
            workspace_bytes: self.workspace_bytes as i64,
            sequences: check.count("sequences", self.sequences)?,
            heads: check.count("heads", self.heads)?,
            window: check.count("rows of a window", self.window)?,
            scale: self.scale,
            format,
            after_append: self.after_append.into(),
        };
        // SAFETY: the caller's promises.
        layers::answer(check.0, unsafe { ffi::tg_attention_decode_launch(&args, &layers::on(stream)?) })
    }
}

/// The bytes of a workspace with which every [`Prefill`] of so many numbers of a head fills a device of so many multiprocessors.
pub fn prefill_workspace(multiprocessors: u32, head: usize) -> u64 {
    // Parts, tokens and heads are at most the rows of all blocks at once; each has head sums and two numbers.
    u64::from(multiprocessors) * if head == 64 { 192 } else { 128 } * (head as u64 + 2) * 4
}

/// Attention of the last `tokens` positions of a sequence, whose rows are in the cache already.
#[derive(Debug, Clone, Copy)]
pub struct Prefill {
    /// tokens x heads head.
    pub q: Rows,
    /// Like q.
    pub out: Rows,
    /// K and V in q's format.
    pub cache: Cache,
    /// The sequence's slot.
    pub slot: usize,
    /// For each head a number that joins the softmax of its scores, and has no value; null: none.
    pub sinks: *const f32,
    /// A number of the device, 0 before the first launch, for launches one after another.
    pub counter: *mut u32,
    /// Memory for sums of parts of the keys, which few tokens after many positions take; may be null.
    pub workspace: *mut c_void,
    /// Its bytes; [`prefill_workspace`] is enough for every launch.
    pub workspace_bytes: u64,
    /// Query rows.
    pub tokens: usize,
    /// Positions before them.
    pub past: usize,
    /// Heads of q.
    pub heads: usize,
    /// Whether a query sees no later position.
    pub causal: bool,
    /// The newest positions that a query sees; 0: all.
    pub window: usize,
    /// The factor of scores.
    pub scale: f32,
    /// The format of q, the cache and the result: f16 or bf16.
    pub format: Format,
}

impl Prefill {
    /// Launches on a stream of the current device.
    ///
    /// # Errors
    /// As for [`Append::launch`].
    ///
    /// # Safety
    /// As for [`Append::launch`].
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<()> {
        let check = Check("attention::prefill");
        let format = check.format("q", self.format, &HALVES)?;
        check.that(self.cache.format != Format::F8E4M3, || {
            "a cache in fp8; give its rows in q's format, such as `KvCache::widened`".into()
        })?;
        let cache = self.cache.checked(&check, self.format, false)?;
        check.aligned("q", self.q, 2, 16)?;
        check.aligned("the result", self.out, 2, 16)?;
        check.that(self.scale > 0.0 && self.scale.is_finite(), || {
            format!("a scale of {}; expected a positive number", self.scale)
        })?;
        check.that(self.cache.kv_heads > 0 && self.heads.is_multiple_of(self.cache.kv_heads), || {
            format!("{} heads over {} of K and V; expected a multiple", self.heads, self.cache.kv_heads)
        })?;
        check.that(self.slot < self.cache.slots && self.past + self.tokens <= self.cache.capacity, || {
            let end = self.past + self.tokens;
            format!(
                "positions to {end} of slot {}, in {} slots of {}",
                self.slot, self.cache.slots, self.cache.capacity
            )
        })?;
        let launch = layers::on(stream)?;
        let offset = self.slot * cache.slot_stride as usize * 2;
        let head = i64::from(cache.head);
        let args = ffi::tg_prefill_args {
            format,
            causal: self.causal.into(),
            tokens: self.tokens as i64,
            heads: self.heads as i64,
            kv_heads: cache.kv_heads.into(),
            head,
            past: self.past as i64,
            window: self.window as i64,
            scale: self.scale,
            q: self.q.at,
            q_row_stride: self.q.stride,
            q_head_stride: head,
            k: cache.k.cast::<u8>().wrapping_add(offset).cast(),
            k_head_stride: cache.head_stride,
            k_row_stride: cache.row_stride,
            v: cache.v.cast::<u8>().wrapping_add(offset).cast(),
            v_head_stride: cache.head_stride,
            v_row_stride: cache.row_stride,
            o: self.out.at,
            o_row_stride: self.out.stride,
            o_head_stride: head,
            sinks: self.sinks,
            counter: self.counter,
            workspace: self.workspace,
            workspace_bytes: self.workspace_bytes as i64,
            sm_count: launch.multiprocessors,
            overlap: launch.overlap,
            stream,
        };
        // SAFETY: the caller's promises.
        layers::answer(check.0, unsafe { ffi::tg_prefill_launch(&args) })
    }
}

#[cfg(test)]
mod tests {
    use super::{decode_workspace, prefill_workspace, Append, Decode, Prefill};
    use crate::ffi;
    use crate::layer::{Cache, Rows};
    use crate::problem::Format;
    use std::ffi::c_void;
    use std::ptr::{null, null_mut};

    const AT: *mut c_void = std::ptr::without_provenance_mut(1 << 40);

    fn cache(head: usize, format: Format) -> Cache {
        Cache::new(AT, AT, format, [2, 2, 16, head])
    }

    fn decode(cache: Cache) -> Decode {
        let rows = Rows::new(AT, 8 * cache.head as i64);
        Decode {
            q: rows,
            out: rows,
            cache,
            lengths: null(),
            slots: null(),
            sinks: null(),
            workspace: AT,
            workspace_bytes: decode_workspace(2, 8, cache.head),
            sequences: 2,
            heads: 8,
            window: 0,
            scale: 1.0,
            format: Format::BF16,
            after_append: false,
        }
    }

    /// Checks come before the first call of CUDA, and before any memory is read.
    #[test]
    fn what_the_kernels_do_not_take_is_an_error_that_says_what_they_do() {
        let of = decode(cache(64, Format::BF16));
        let [fp8, f16, wide] = [(64, Format::F8E4M3), (64, Format::F16), (80, Format::BF16)].map(|(h, f)| cache(h, f));
        let odd = Rows::new(AT.wrapping_byte_add(8), 512);
        let prefill = Prefill {
            q: of.q,
            out: of.out,
            cache: of.cache,
            slot: 1,
            sinks: null(),
            counter: null_mut(),
            workspace: null_mut(),
            workspace_bytes: 0,
            tokens: 4,
            past: 12,
            heads: 8,
            causal: true,
            window: 0,
            scale: 1.0,
            format: Format::BF16,
        };
        let append = Append {
            qkv: of.q,
            q: odd,
            cache: of.cache,
            positions: null(),
            slots: null(),
            rope: None,
            norms: [null(); 2],
            eps: 0.0,
            tokens: 1,
            heads: 4,
            format: Format::BF16,
        };
        // SAFETY: the arguments are refused.
        let errors = unsafe {
            [
                (
                    Decode { cache: wide, ..of }.launch(null_mut()),
                    "heads of 80 numbers; the kernels have 64, 96, 128 and 256",
                ),
                (Decode { cache: f16, ..of }.launch(null_mut()), "a cache in f16; expected bf16 or f8e4m3"),
                (Decode { cache: fp8, ..of }.launch(null_mut()), "a cache in fp8 without scales"),
                (Decode { heads: 7, ..of }.launch(null_mut()), "7 heads over 2 of K and V"),
                (Decode { scale: f32::NAN, ..of }.launch(null_mut()), "a scale of NaN; expected a positive one"),
                (Decode { sequences: 3, ..of }.launch(null_mut()), "a workspace of"),
                (Decode { q: odd, ..of }.launch(null_mut()), "the rows of q start at no multiples of 16 bytes"),
                (Prefill { cache: fp8, ..prefill }.launch(null_mut()), "a cache in fp8; give its rows in q's format"),
                (Prefill { past: 13, ..prefill }.launch(null_mut()), "positions to 17 of slot 1, in 2 slots of 16"),
                (append.launch(null_mut()), "the rows of q start at no multiples of 16 bytes"),
            ]
        };
        for (result, words) in errors {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(words), "{error}\ndoes not have\n{words}");
        }
    }

    /// The sizes that Rust computes are those of the kernels.
    #[test]
    fn workspaces_are_as_large_as_the_kernels_say() {
        for (sequences, heads, head) in [(1, 1, 64), (32, 32, 128), (3, 9, 96), (64, 16, 256)] {
            // SAFETY: a function without pointers.
            let bytes = unsafe { ffi::tg_attention_decode_workspace(sequences, heads, head) };
            assert_eq!(decode_workspace(sequences as usize, heads as usize, head as usize), bytes as u64);
        }
        assert_eq!(prefill_workspace(132, 128), 132 * 128 * 130 * 4);
    }
}
