//! The names of `candle_transformers::models::llama`.

use super::sequences::embed;
use super::{Plain, Sequences};
use crate::decoder::Decoder;
use candle::{bail, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm::nn::attention::RopeScaling;
use serde::Deserialize;

/// The longest sequence of the first llamas.
pub const DEFAULT_MAX_SEQ_LEN: usize = 4096;

/// How rotations are slowed down.
#[derive(Debug, Clone, Deserialize, Default)]
pub enum Llama3RopeType {
    /// As in llama 3.
    #[serde(rename = "llama3")]
    Llama3,
    /// Not at all.
    #[default]
    #[serde(rename = "default")]
    Default,
}

/// The scaling of llama 3.
#[derive(Debug, Clone, Deserialize, Default)]
#[allow(missing_docs)] // the fields of config.json
pub struct Llama3RopeConfig {
    pub factor: f32,
    pub low_freq_factor: f32,
    pub high_freq_factor: f32,
    pub original_max_position_embeddings: usize,
    pub rope_type: Llama3RopeType,
}

/// Tokens after which a text ends.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum LlamaEosToks {
    /// One.
    Single(u32),
    /// Several.
    Multiple(Vec<u32>),
}

/// A config.json.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs)] // the fields of config.json
pub struct LlamaConfig {
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub vocab_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: Option<usize>,
    pub rms_norm_eps: f64,
    #[serde(default = "default_rope")]
    pub rope_theta: f32,
    pub bos_token_id: Option<u32>,
    pub eos_token_id: Option<LlamaEosToks>,
    pub rope_scaling: Option<Llama3RopeConfig>,
    pub max_position_embeddings: usize,
    pub tie_word_embeddings: Option<bool>,
}

fn default_rope() -> f32 {
    10_000.0
}

impl LlamaConfig {
    /// Heads of K and V.
    pub fn num_key_value_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// The config of a model. `use_flash_attn` changes nothing: attention is always this crate's.
    pub fn into_config(self, use_flash_attn: bool) -> Config {
        Config {
            num_key_value_heads: self.num_key_value_heads(),
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            vocab_size: self.vocab_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            use_flash_attn,
            rms_norm_eps: self.rms_norm_eps,
            rope_theta: self.rope_theta,
            bos_token_id: self.bos_token_id,
            eos_token_id: self.eos_token_id,
            rope_scaling: self.rope_scaling,
            max_position_embeddings: self.max_position_embeddings,
            tie_word_embeddings: self.tie_word_embeddings.unwrap_or(false),
        }
    }
}

/// What a model is made of.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // the fields of config.json
pub struct Config {
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub vocab_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    /// Changes nothing.
    pub use_flash_attn: bool,
    pub rms_norm_eps: f64,
    pub rope_theta: f32,
    pub bos_token_id: Option<u32>,
    pub eos_token_id: Option<LlamaEosToks>,
    pub rope_scaling: Option<Llama3RopeConfig>,
    pub max_position_embeddings: usize,
    pub tie_word_embeddings: bool,
}

impl Config {
    /// Llama 7B.
    pub fn config_7b_v1(use_flash_attn: bool) -> Self {
        Self { rms_norm_eps: 1e-6, ..Self::config_7b_v2(use_flash_attn) }
    }

    /// Llama 2 7B.
    pub fn config_7b_v2(use_flash_attn: bool) -> Self {
        Self {
            hidden_size: 4096,
            intermediate_size: 11008,
            vocab_size: 32000,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: 32,
            use_flash_attn,
            rms_norm_eps: 1e-5,
            rope_theta: 10_000.0,
            bos_token_id: None,
            eos_token_id: None,
            rope_scaling: None,
            max_position_embeddings: DEFAULT_MAX_SEQ_LEN,
            tie_word_embeddings: false,
        }
    }
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
            rope_base: f64::from(config.rope_theta),
            tied: config.tie_word_embeddings,
        };
        let rope_scaling = match &config.rope_scaling {
            Some(scaling) if matches!(scaling.rope_type, Llama3RopeType::Llama3) => Some(RopeScaling::Llama3 {
                factor: f64::from(scaling.factor),
                low_freq_factor: f64::from(scaling.low_freq_factor),
                high_freq_factor: f64::from(scaling.high_freq_factor),
                original_positions: scaling.original_max_position_embeddings,
            }),
            _ => None,
        };
        let end_tokens = match &config.eos_token_id {
            None => vec![],
            Some(LlamaEosToks::Single(token)) => vec![*token],
            Some(LlamaEosToks::Multiple(tokens)) => tokens.clone(),
        };
        crate::Config { rope_scaling, first_token: config.bos_token_id, end_tokens, ..plain.config() }
    }
}

/// The sequences of a batch. Its memory is allocated at the first call of a model.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Whether a call sees the calls before it.
    pub use_kv_cache: bool,
    dtype: DType,
    sequences: Sequences,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// None; the signature is candle_transformers'.
    pub fn new(use_kv_cache: bool, dtype: DType, config: &Config, device: &Device) -> Result<Self> {
        let _ = (config, device);
        Ok(Self { use_kv_cache, dtype, sequences: Sequences::default() })
    }
}

/// A llama.
///
/// ```
/// use candle::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use candle_tilegemm_models::models::llama::{Cache, Config, Llama};
///
/// let config = Config {
///     hidden_size: 16,
///     intermediate_size: 32,
///     vocab_size: 32,
///     num_hidden_layers: 1,
///     num_attention_heads: 2,
///     num_key_value_heads: 1,
///     ..Config::config_7b_v2(false)
/// };
/// let weights = VarMap::new();
/// let llama = Llama::load(VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu), &config)?;
/// let mut cache = Cache::new(true, DType::F32, &config, &Device::Cpu)?;
/// let logits = llama.forward(&Tensor::new(&[[1u32, 2, 3]], &Device::Cpu)?, 0, &mut cache)?;
/// assert_eq!(logits.dims(), [1, 32]);
/// let logits = llama.forward(&Tensor::new(&[[4u32]], &Device::Cpu)?, 3, &mut cache)?;
/// assert_eq!(logits.dims(), [1, 32]);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Llama {
    decoder: Decoder,
}

impl Llama {
    /// The rows of tokens, (sequences, tokens) in u32 to (sequences, tokens, hidden).
    ///
    /// # Errors
    /// Tokens of another type or rank.
    pub fn embed(&self, x: &Tensor) -> Result<Tensor> {
        embed(&self.decoder.body, x)
    }

    /// [`forward`](Self::forward) of rows, (sequences, tokens, hidden), instead of tokens.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward).
    pub fn forward_input_embed(&self, input_embed: &Tensor, index_pos: usize, cache: &mut Cache) -> Result<Tensor> {
        if cache.dtype != self.decoder.dtype() {
            bail!("llama: the cache is in {:?}; expected the model's {:?}", cache.dtype, self.decoder.dtype());
        }
        if !cache.use_kv_cache {
            if index_pos > 0 {
                bail!("llama: position {index_pos} without a cache; give the whole sequence at 0, or set use_kv_cache");
            }
            cache.sequences.clear();
        }
        let x = cache.sequences.last(&self.decoder.body, input_embed, index_pos)?;
        self.decoder.logits(&x)
    }

    /// The logits of each sequence's last token, (sequences, tokens) in u32 to (sequences, vocabulary) in f32. The first token is at `index_pos`.
    ///
    /// # Errors
    /// A position that the cache has not reached, more tokens than the model's longest sequence, and a device without room.
    pub fn forward(&self, x: &Tensor, index_pos: usize, cache: &mut Cache) -> Result<Tensor> {
        self.forward_input_embed(&self.embed(x)?, index_pos, cache)
    }

    /// A model with weights of Hugging Face's names.
    ///
    /// # Errors
    /// Missing weights, and weights of other shapes than the config has.
    pub fn load(vb: VarBuilder, cfg: &Config) -> Result<Self> {
        Ok(Self { decoder: Decoder::load(&cfg.into(), vb)? })
    }
}
