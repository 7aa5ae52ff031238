//! The names of `candle_transformers::models::qwen3`.

use super::sequences::embed;
use super::{Plain, Sequences};
use crate::body::Body;
use crate::config::Rank;
use crate::decoder::Decoder;
use crate::weights::Dense;
use candle::{Module, Result, Tensor};
use candle_nn::{Activation, VarBuilder};
use serde::Deserialize;

/// A config.json.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[allow(missing_docs)] // the fields of config.json
pub struct Config {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub head_dim: usize,
    pub attention_bias: bool,
    pub num_key_value_heads: usize,
    pub max_position_embeddings: usize,
    pub sliding_window: Option<usize>,
    pub max_window_layers: usize,
    pub tie_word_embeddings: bool,
    pub rope_theta: f64,
    pub rms_norm_eps: f64,
    /// Whether layers from `max_window_layers` on see the newest `sliding_window` positions only.
    pub use_sliding_window: bool,
    pub hidden_act: Activation,
}

impl From<&Config> for crate::Config {
    fn from(config: &Config) -> Self {
        let plain = Plain {
            vocabulary: config.vocab_size,
            hidden: config.hidden_size,
            feed_forward: config.intermediate_size,
            layers: config.num_hidden_layers,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            max_positions: config.max_position_embeddings,
            eps: config.rms_norm_eps,
            rope_base: config.rope_theta,
            tied: config.tie_word_embeddings,
        };
        let window = config.sliding_window.unwrap_or(0);
        let windows = (0..config.num_hidden_layers)
            .map(|layer| if config.use_sliding_window && layer >= config.max_window_layers { window } else { 0 })
            .collect();
        crate::Config {
            head_size: config.head_dim,
            windows,
            qk_norm: true,
            qkv_bias: config.attention_bias,
            o_bias: config.attention_bias,
            activation: config.hidden_act,
            ..plain.config()
        }
    }
}

/// The layers of a Qwen 3, without the product to logits.
#[derive(Debug, Clone)]
pub struct Model {
    body: Body,
    sequences: Sequences,
}

impl Model {
    /// Layers with weights of Hugging Face's names.
    ///
    /// # Errors
    /// Missing weights, and weights of other shapes than the config has.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let body = Body::load(&mut Dense::new(&Rank::whole(&cfg.into()), vb))?;
        Ok(Self { body, sequences: Sequences::default() })
    }

    /// The last layer's result after the norm, (sequences, tokens) in u32 to (sequences, tokens, hidden). The first token is at `offset`.
    ///
    /// # Errors
    /// A position that the cache has not reached, and more tokens than the model's longest sequence.
    pub fn forward(&mut self, input: &Tensor, offset: usize) -> Result<Tensor> {
        let x = embed(&self.body, input)?;
        self.body.norm().forward(&self.sequences.forward(&self.body, &x, offset)?)
    }

    /// Gives the cache back.
    pub fn clear_kv_cache(&mut self) {
        self.sequences.clear();
    }
}

/// A Qwen 3.
///
/// ```
/// use candle::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use candle_tilegemm_models::models::qwen3::{Config, ModelForCausalLM};
///
/// let config: Config = serde_json::from_str(
///     r#"{"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
///         "num_key_value_heads": 1, "max_position_embeddings": 64, "max_window_layers": 1, "tie_word_embeddings": true,
///         "rope_theta": 1e6, "rms_norm_eps": 1e-6, "use_sliding_window": false, "hidden_act": "silu",
///         "sliding_window": null, "head_dim": 8, "attention_bias": false}"#,
/// )
/// .unwrap();
/// let weights = VarMap::new();
/// let vb = VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
/// let mut model = ModelForCausalLM::new(&config, vb)?;
/// let logits = model.forward(&Tensor::new(&[[1u32, 2, 3]], &Device::Cpu)?, 0)?;
/// assert_eq!(logits.dims(), [1, 1, 32]);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ModelForCausalLM {
    decoder: Decoder,
    sequences: Sequences,
}

impl ModelForCausalLM {
    /// A model with weights of Hugging Face's names.
    ///
    /// # Errors
    /// Missing weights, and weights of other shapes than the config has.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let config = cfg.into();
        Ok(Self { decoder: Decoder::load(&config, vb)?, sequences: Sequences::default() })
    }

    /// The logits of each sequence's last token, (sequences, tokens) in u32 to (sequences, 1, vocabulary). The first token is at `offset`.
    ///
    /// # Errors
    /// A position that the cache has not reached, more tokens than the model's longest sequence, and a device without room.
    pub fn forward(&mut self, input: &Tensor, offset: usize) -> Result<Tensor> {
        let body = &self.decoder.body;
        let x = self.sequences.last(body, &embed(body, input)?, offset)?;
        self.decoder.logits(&x)?.to_dtype(self.decoder.dtype())?.unsqueeze(1)
    }

    /// Gives the cache back.
    pub fn clear_kv_cache(&mut self) {
        self.sequences.clear();
    }
}
