//! Kernels of a model's layers that are no products, on device pointers (feature `layers`): norms, embeddings, gates, attention over a static cache, and
//! the choice of the next token. The module `nn` has them for candle's tensors.
//!
//! There is one kernel for a task, and no dispatcher. Every launch checks its arguments, launches one kernel on a stream, waits for nothing, allocates
//! nothing, and is legal in a CUDA graph capture after `launch::prepare`. `csrc/layer/layer.h` states what each kernel computes. `RmsNorm` has an example.

#[cfg(feature = "layers")]
mod attention;
#[cfg(feature = "layers")]
mod cache;
#[cfg(feature = "layers")]
mod check;
pub(crate) mod kinds;
#[cfg(feature = "layers")]
mod quantise;
#[cfg(feature = "layers")]
mod rows;
#[cfg(feature = "layers")]
mod sample;

#[cfg(feature = "layers")]
pub use attention::{decode_workspace, prefill_workspace, Append, Decode, Prefill, Rope};
#[cfg(feature = "layers")]
pub use cache::{Cache, Widen};
#[cfg(feature = "layers")]
pub use check::Rows;
pub use kinds::{GateFunction, RopeStyle, Sampling};
#[cfg(feature = "layers")]
pub use quantise::{Factors, Quantise};
#[cfg(feature = "layers")]
pub use rows::{Embedding, Gated, Gather, RmsNorm};
#[cfg(feature = "layers")]
pub use sample::{sample_workspace, Sample};
