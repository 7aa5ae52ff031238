//! The names and signatures of candle_transformers' models, on the [`Decoder`](crate::Decoder): a program changes one `use` line.
//!
//! ```
//! // use candle_transformers::models::llama::{Cache, Config, Llama, LlamaConfig};
//! use candle_tilegemm_models::models::llama::{Cache, Config, Llama, LlamaConfig};
//! ```
//!
//! As in candle_transformers, a position goes from call to call as a number, all sequences of a batch have the same length, and logits are read back for each
//! token. A [`Step`](crate::Step) needs none of that, and is faster.

pub mod llama;
pub mod quantized_llama;
pub mod quantized_qwen3_moe;
pub mod qwen2;
pub mod qwen3;
pub mod qwen3_moe;
mod sequences;

use crate::config::{Config, Quantization};
use candle_nn::Activation;
use candle_tilegemm::nn::attention::RopeStyle;
use sequences::Sequences;

/// What every config of candle_transformers has.
struct Plain {
    vocabulary: usize,
    hidden: usize,
    feed_forward: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    max_positions: usize,
    eps: f64,
    rope_base: f64,
    tied: bool,
}

impl Plain {
    /// A decoder without biases, windows, norms of q and k, and experts.
    fn config(self) -> Config {
        Config {
            hidden: self.hidden,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_size: self.hidden.checked_div(self.heads).unwrap_or(0),
            feed_forward: self.feed_forward,
            activation: Activation::Silu,
            experts: None,
            eps: self.eps,
            rope_base: self.rope_base,
            rope_scaling: None,
            rope_style: RopeStyle::Halves,
            windows: vec![0; self.layers],
            sinks: false,
            qk_norm: false,
            qkv_bias: false,
            o_bias: false,
            tied: self.tied,
            max_positions: self.max_positions,
            vocabulary: self.vocabulary,
            first_token: None,
            end_tokens: vec![],
            quantization: Quantization::None,
        }
    }
}
