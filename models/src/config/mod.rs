//! What a decoder is made of.

mod device;
mod gguf;
mod json;
mod ranks;

pub(crate) use ranks::Rank;

use candle::{bail, Result};
use candle_nn::Activation;
use candle_tilegemm::nn::attention::{RopeScaling, RopeStyle};
use candle_tilegemm::nn::moe::MoeCfg;
use candle_tilegemm::nn::narrow::Quantizer;
use candle_tilegemm::nn::{GateFunction, QuantizationConfig};

/// What a decoder is made of: one description for every family.
///
/// [`from_json`](Self::from_json) reads a config.json, and [`from_gguf`](Self::from_gguf) the metadata of a GGUF file.
///
/// ```
/// use candle_tilegemm_models::Config;
///
/// let text = r#"{"model_type": "qwen2", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
///     "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
///     "tie_word_embeddings": true, "eos_token_id": [3, 5]}"#;
/// let config = Config::from_json(text)?;
/// assert!(config.qkv_bias && config.tied && config.head_size == 8 && config.end_tokens == [3, 5]);
///
/// let dynamic = text.replacen('{', r#"{"rope_scaling": {"rope_type": "dynamic", "factor": 4.0},"#, 1);
/// let error = Config::from_json(&dynamic).unwrap_err().to_string();
/// assert!(error.contains("rope_scaling") && error.contains("dynamic"), "{error}");
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Numbers of a token between layers.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Heads of q.
    pub heads: usize,
    /// Heads of K and V.
    pub kv_heads: usize,
    /// Numbers of a head; even.
    pub head_size: usize,
    /// Numbers between the two products of a feed-forward part without experts.
    pub feed_forward: usize,
    /// The function of the gates.
    pub activation: Activation,
    /// The experts, if there are any.
    pub experts: Option<Experts>,
    /// What the norms add to the mean of squares.
    pub eps: f64,
    /// The base of rotations.
    pub rope_base: f64,
    /// How rotations are slowed down, if they are.
    pub rope_scaling: Option<RopeScaling>,
    /// The numbers of a head that turn together: interleaved in the llama of GGUF files, else halves.
    pub rope_style: RopeStyle,
    /// For each layer the newest positions that a token sees, its own included; 0: all.
    pub windows: Vec<usize>,
    /// Whether each head of q has a sink, a number that joins the softmax of its scores (gpt-oss).
    pub sinks: bool,
    /// Whether each head of q and k has a norm (qwen3).
    pub qk_norm: bool,
    /// Whether the products to q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether the product after attention has a bias.
    pub o_bias: bool,
    /// Whether the head has the weights of the embedding.
    pub tied: bool,
    /// The most positions of a sequence.
    pub max_positions: usize,
    /// Tokens.
    pub vocabulary: usize,
    /// The token before a text, if there is one.
    pub first_token: Option<u32>,
    /// Tokens after which a sequence ends.
    pub end_tokens: Vec<u32>,
    /// How the products of layers have their weights in safetensors.
    pub quantization: Quantization,
}

/// How the products of layers have their weights in safetensors. Embedding, norms and routers have 16 or 32 bits.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub enum Quantization {
    /// In 16 or 32 bits.
    #[default]
    None,
    /// As a `quantization_config` says, the head included.
    Stored(QuantizationConfig),
    /// In 16 or 32 bits, rounded to the nearest in fewer as they are loaded. The head stays as it is.
    Rounded(Quantizer),
}

/// The experts of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts of a token.
    pub per_token: usize,
    /// Numbers between the two products of an expert.
    pub feed_forward: usize,
    /// Whether the weights of a token's experts add up to 1.
    pub normalise: bool,
    /// For each layer, whether it has experts.
    pub layers: Vec<bool>,
    /// What an expert is.
    pub form: ExpertForm,
}

/// What an expert is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub enum ExpertForm {
    /// Two products without biases, and the gate of the decoder's activation.
    #[default]
    Gated,
    /// gpt-oss's: biases of both products and of the router, weights in MXFP4, and (up + 1) gate sigmoid(alpha gate) of numbers up to a limit.
    Clamped {
        /// The factor in the sigmoid.
        alpha: f32,
        /// The largest gate, and the largest magnitude of the number that it multiplies.
        limit: f32,
    },
}

impl Config {
    /// The same description, for weights that are stored so, or to be rounded so.
    ///
    /// ModelOpt has its description in a file of its own: `config.with_quantization(Quantization::Stored(QuantizationConfig::from_json(&hf_quant_config)?))`.
    pub fn with_quantization(self, quantization: Quantization) -> Self {
        Self { quantization, ..self }
    }

    /// The same description with activations as they come, where stored weights ask for activations in 8 bits.
    pub fn with_wide_activations(self) -> Self {
        match self.quantization {
            Quantization::Stored(stored) => {
                Self { quantization: Quantization::Stored(stored.with_wide_activations()), ..self }
            }
            _ => self,
        }
    }

    /// The function of the gates, as the blocks name it.
    pub(crate) fn gate(&self) -> Result<GateFunction> {
        Ok(match self.activation {
            Activation::Silu | Activation::Swish => GateFunction::SwiGlu,
            Activation::Gelu => GateFunction::GeGluErf,
            Activation::NewGelu | Activation::GeluPytorchTanh => GateFunction::GeGluTanh,
            Activation::Relu2 => GateFunction::Relu2,
            other => {
                bail!("config: hidden_act is {other:?}; expected silu, gelu, gelu_new, gelu_pytorch_tanh or relu2")
            }
        })
    }

    /// What a layer's experts are, for `FusedMoe`; none in a layer without experts.
    pub(crate) fn experts_of(&self, layer: usize) -> Option<MoeCfg> {
        let experts = self.experts.as_ref().filter(|experts| experts.layers[layer])?;
        Some(MoeCfg {
            hidden_size: self.hidden,
            num_experts: experts.count,
            num_experts_per_tok: experts.per_token,
            moe_intermediate_size: experts.feed_forward,
            norm_topk_prob: experts.normalise,
            act: self.activation,
            decoder_sparse_step: None,
        })
    }

    /// The numbers of the merged q, k and v of a token.
    pub(crate) fn qkv_columns(&self) -> [usize; 3] {
        [self.heads, self.kv_heads, self.kv_heads].map(|heads| heads * self.head_size)
    }

    /// The same description, if its sizes go together.
    ///
    /// # Errors
    /// Sizes of 0, an odd head, heads of q that are no multiple of those of K and V, and lists of another length than there are layers.
    pub fn checked(self) -> Result<Self> {
        let sizes = [
            ("hidden_size", self.hidden),
            ("num_hidden_layers", self.layers),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("head_dim", self.head_size),
            ("intermediate_size", self.feed_forward),
            ("max_position_embeddings", self.max_positions),
            ("vocab_size", self.vocabulary),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            bail!("config: {name} is 0; expected 1 and more");
        }
        if !self.head_size.is_multiple_of(2) {
            bail!("config: head_dim is {}; expected an even number", self.head_size);
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            bail!(
                "config: num_attention_heads is {}; expected a multiple of num_key_value_heads, {}",
                self.heads,
                self.kv_heads
            );
        }
        if self.windows.len() != self.layers {
            bail!("config: {} windows for {} layers; expected one for each layer", self.windows.len(), self.layers);
        }
        if let Some(experts) = &self.experts {
            if experts.layers.len() != self.layers {
                bail!("config: experts.layers has {} entries; expected {}", experts.layers.len(), self.layers);
            }
            if experts.per_token == 0 || experts.per_token > experts.count || experts.feed_forward == 0 {
                bail!(
                    "config: num_experts_per_tok is {} of num_experts {}, and moe_intermediate_size {}; expected 1 to num_experts, and 1 and more",
                    experts.per_token,
                    experts.count,
                    experts.feed_forward
                );
            }
        }
        self.gate()?;
        Ok(self)
    }
}
