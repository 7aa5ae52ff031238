//! Attention over a static cache of keys and values.
//!
//! A layer takes two steps: [`append`] normalises and turns q and k of new tokens and writes k and v to the [`KvCache`]; [`decode`] (one new token of each
//! sequence) or [`prefill`] (many new tokens of one sequence) attends to the cache. No matrix of scores is in memory, and K and V are neither converted nor
//! repeated for the heads of q that share them.
//!
//! | tensor | shape | type |
//! |---|---|---|
//! | `qkv`, the merged product | (tokens, (heads + 2 kv_heads) head) | f16, bf16; f32 on the CPU |
//! | `q`, results | (tokens, heads, head) | as `qkv` |
//! | `positions` | (tokens), from 0 | u32 |
//! | `lengths` | (sequences): rows of the cache that are valid, the newest included | u32 |
//! | `slots`, optional | (tokens) or (sequences): a sequence's place in the cache; one that the cache lacks, such as `u32::MAX`: a row of padding | u32 |
//!
//! Positions, lengths and slots are tensors on the device, so that a captured graph serves all steps. They are in u32, because candle
//! has few kernels for i32; the kernels here read numbers from 2^31 on as negative ones. Without `slots`, row i has slot i.
//!
//! Scores, softmax and sums are in f32. On a GPU the functions need the feature `layers`, heads of 64, 96, 128 or 256 numbers, and for [`decode`] at most 16
//! heads of q for one of K and V. The CPU takes all even sizes, and computes everything in f32. No gradient passes. The functions whose names end in `_into`
//! allocate nothing and are legal in a capture after [`prepare`](crate::prepare).
//!
//! ```
//! use candle::{DType, Device, Tensor};
//! use candle_tilegemm::nn::attention::{self, KvCache, Rope, RopeStyle, Settings, Workspace};
//!
//! let (device, heads, kv_heads, head) = (&Device::Cpu, 4, 2, 64);
//! let cache = KvCache::new(2, kv_heads, 32, head, DType::F32, device)?; // 2 sequences of up to 32 positions
//! let rope = Rope::new(RopeStyle::Halves, head, 10_000.0, device)?;
//! let workspace = Workspace::new(2, heads, head, device)?;
//! let settings = Settings::new(head);
//! let list = |numbers: &[u32]| Tensor::new(numbers, device);
//!
//! // The prompt of the sequence in slot 1: 3 tokens.
//! let qkv = Tensor::randn(0f32, 1f32, (3, (heads + 2 * kv_heads) * head), device)?;
//! let q = attention::append(&qkv, &cache, &list(&[0, 1, 2])?, Some(&list(&[1, 1, 1])?), &rope)?;
//! let out = attention::prefill(&q, &cache, 1, 0, &settings, &workspace)?;
//! assert_eq!(out.dims(), [3, heads, head]);
//!
//! // The next token of both sequences; slot 0 is empty so far.
//! let qkv = Tensor::randn(0f32, 1f32, (2, (heads + 2 * kv_heads) * head), device)?;
//! let q = attention::append(&qkv, &cache, &list(&[0, 3])?, None, &rope)?;
//! let out = attention::decode(&q, &cache, &list(&[1, 4])?, None, &settings, &workspace)?;
//! assert_eq!(out.dims(), [2, heads, head]);
//! # Ok::<(), candle::Error>(())
//! ```

mod append;
mod attend;
mod cache;
mod decode;
mod functions;
mod prefill;
mod rope;
mod settings;
mod widened;

pub use crate::layer::RopeStyle;
#[cfg(feature = "layers")]
pub(in crate::candle) use append::Append;
pub use cache::KvCache;
#[cfg(feature = "layers")]
pub(in crate::candle) use decode::Decode;
pub use functions::{append, append_decode_into, append_into, decode, decode_into, prefill, prefill_into};
#[cfg(feature = "layers")]
pub(in crate::candle) use prefill::Prefill;
pub use rope::{Rope, RopeScaling};
pub use settings::{Settings, Workspace};
