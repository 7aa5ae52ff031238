//! Decoders for candle on the blocks of `candle_tilegemm`: llama, mistral, qwen2, qwen3 and qwen3_moe from safetensors and from GGUF files,
//! gpt_oss from safetensors.
//!
//! There is one [`Decoder`]. A [`Config`] says what it is made of; what a config.json or a GGUF file asks and the decoder does not have is an error that names the
//! field. A [`Cache`] holds the sequences, each in a slot of its own. [`Decoder::prefill`] appends tokens to a slot, and a [`Step`] chooses the next token of
//! every sequence at once.
//!
//! ```
//! use candle::{DType, Device};
//! use candle_nn::{VarBuilder, VarMap};
//! use candle_tilegemm_models::{Cache, Config, Decoder, Sampler};
//!
//! let config = Config::from_json(
//!     r#"{"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
//!         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}"#,
//! )?;
//! let weights = VarMap::new(); // random; `VarBuilder::from_mmaped_safetensors` reads files
//! let decoder = Decoder::load(&config, VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu))?;
//!
//! let mut cache = Cache::new(&decoder, 2)?; // two sequences
//! decoder.prefill(0, &[1, 2, 3], &mut cache)?;
//! decoder.prefill(1, &[4], &mut cache)?;
//! let mut step = decoder.step(&mut cache, Sampler::greedy())?;
//! let tokens = step.next()?;
//! assert!(tokens.iter().all(|token| token.is_some_and(|token| token < 32)));
//! # Ok::<(), candle::Error>(())
//! ```
//!
//! [`models`] has the names and signatures of candle_transformers: a program changes one `use` line.
//!
//! On a GPU a decoder needs the feature `layers`, with quantised weights `gguf`, with experts `experts`, and with narrow ones `narrow`. There is no scheduler, no paging and no server here.

#![deny(missing_docs)]

mod batch;
mod batches;
mod body;
mod cache;
mod config;
mod decoder;
mod feed_forward;
mod layer;
mod mail;
pub mod models;
mod prefill;
mod prompt;
mod replay;
mod rows;
mod sampler;
mod scratch;
mod split;
mod step;
mod store;
mod weights;

pub use cache::Cache;
pub use config::{Config, ExpertForm, Experts, Quantization};
pub use decoder::Decoder;
pub use sampler::Sampler;
pub use split::{ExpertSplit, Split};
pub use step::Step;
