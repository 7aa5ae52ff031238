//! A config.json.

use super::{Config, ExpertForm, Experts, Quantization};
use candle::{bail, Error, Result};
use candle_nn::Activation;
use candle_tilegemm::nn::attention::{RopeScaling, RopeStyle};
use candle_tilegemm::nn::QuantizationConfig;
use serde::Deserialize;
use serde_json::Value;

const GPT_OSS: &str = "gpt_oss";

/// The fields that we read.
#[derive(Deserialize)]
struct Fields {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_act: Option<String>,
    max_position_embeddings: usize,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Scaling>,
    /// Where newer files have `rope_theta` and `rope_scaling`.
    rope_parameters: Option<Scaling>,
    attention_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    bos_token_id: Option<Tokens>,
    eos_token_id: Option<Tokens>,
    num_experts: Option<usize>,
    /// gpt-oss's name of `num_experts`.
    num_local_experts: Option<usize>,
    swiglu_alpha: Option<f32>,
    swiglu_limit: Option<f32>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<usize>,
    mlp_only_layers: Option<Vec<usize>>,
}

#[derive(Deserialize)]
struct Scaling {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
    /// The older name of `rope_type`. Some files have both.
    r#type: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    truncate: Option<bool>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Tokens {
    One(u32),
    Many(Vec<u32>),
}

impl Tokens {
    fn list(self) -> Vec<u32> {
        match self {
            Self::One(token) => vec![token],
            Self::Many(tokens) => tokens,
        }
    }
}

/// Fields that change what a model computes, and the value with which they change nothing, beside null.
const NEUTRAL: [(&str, &str); 9] = [
    ("mlp_bias", "false"),
    ("partial_rotary_factor", "1.0"),
    ("attn_logit_softcapping", "null"),
    ("final_logit_softcapping", "null"),
    ("num_local_experts", "0"),
    ("swiglu_alpha", "null"),
    ("swiglu_limit", "null"),
    ("logits_scaling", "1.0"),
    ("embedding_multiplier", "1.0"),
];

impl Config {
    /// The description in a config.json of the types llama, mistral, qwen2, qwen3, qwen3_moe and gpt_oss.
    ///
    /// # Errors
    /// Text that is no such JSON, missing fields, and what a field asks and the decoder does not have, those of `quantization_config` included: the error names the field.
    pub fn from_json(text: &str) -> Result<Self> {
        let wrong = |error: serde_json::Error| Error::msg(format!("config.json: {error}"));
        let value: Value = serde_json::from_str(text).map_err(wrong)?;
        let is_gpt_oss = value.get("model_type").is_some_and(|family| family == GPT_OSS);
        let read = |name: &str| is_gpt_oss && ["num_local_experts", "swiglu_alpha", "swiglu_limit"].contains(&name);
        for (name, neutral) in NEUTRAL.into_iter().filter(|(name, _)| !read(name)) {
            let Some(asked) = value.get(name).filter(|asked| !asked.is_null()) else { continue };
            let is_neutral = match serde_json::from_str::<Value>(neutral) {
                Ok(neutral) => asked == &neutral || asked.as_f64().is_some_and(|asked| Some(asked) == neutral.as_f64()),
                Err(_) => false,
            };
            if !is_neutral {
                bail!("config.json: {name} is {asked}, which the decoder does not have; expected {neutral} or no such field");
            }
        }
        let stored = QuantizationConfig::from_value(&value)?;
        let quantization = if stored.method().is_some() { Quantization::Stored(stored) } else { Quantization::None };
        Ok(Self::from_fields(serde_json::from_value(value).map_err(wrong)?)?.with_quantization(quantization))
    }

    fn from_fields(fields: Fields) -> Result<Self> {
        let family = fields.model_type.as_str();
        if !["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", GPT_OSS].contains(&family) {
            bail!("config.json: model_type is {family}; expected llama, mistral, qwen2, qwen3, qwen3_moe or gpt_oss");
        }
        let (is_qwen3, is_gpt_oss) = (family.starts_with("qwen3"), family == GPT_OSS);
        let attention_bias =
            fields.attention_bias.unwrap_or(is_gpt_oss) && (family == "llama" || is_qwen3 || is_gpt_oss);
        let head_size = match fields.head_dim {
            Some(size) => size,
            None if fields.num_attention_heads > 0 && fields.hidden_size.is_multiple_of(fields.num_attention_heads) => {
                fields.hidden_size / fields.num_attention_heads
            }
            None => bail!(
                "config.json: hidden_size is {}, which {} num_attention_heads do not divide; state head_dim",
                fields.hidden_size,
                fields.num_attention_heads
            ),
        };
        let windows = fields.windows()?;
        let experts = match family {
            "qwen3_moe" => fields.experts()?,
            GPT_OSS => Some(fields.clamped_experts()?),
            _ => None,
        };
        let (rope_base, rope_scaling) = fields.rope()?;
        Self {
            hidden: fields.hidden_size,
            layers: fields.num_hidden_layers,
            heads: fields.num_attention_heads,
            kv_heads: fields.num_key_value_heads.unwrap_or(fields.num_attention_heads),
            head_size,
            feed_forward: fields.intermediate_size,
            activation: activation(fields.hidden_act.as_deref().unwrap_or("silu"))?,
            experts,
            eps: fields.rms_norm_eps.unwrap_or(1e-6),
            rope_base,
            rope_scaling,
            rope_style: RopeStyle::Halves,
            windows,
            sinks: is_gpt_oss,
            qk_norm: is_qwen3,
            qkv_bias: attention_bias || family == "qwen2",
            o_bias: attention_bias,
            tied: fields.tie_word_embeddings.unwrap_or(false),
            max_positions: fields.max_position_embeddings,
            vocabulary: fields.vocab_size,
            first_token: fields.bos_token_id.and_then(|tokens| tokens.list().first().copied()),
            end_tokens: fields.eos_token_id.map_or_else(Vec::new, Tokens::list),
            quantization: Quantization::None,
        }
        .checked()
    }
}

impl Fields {
    fn windows(&self) -> Result<Vec<usize>> {
        let layers = self.num_hidden_layers;
        let asked = self.sliding_window.unwrap_or(0);
        if let Some(types) = &self.layer_types {
            let window = |name: &String| match name.as_str() {
                "full_attention" => Ok(0),
                "sliding_attention" if asked > 0 => Ok(asked),
                "sliding_attention" => {
                    bail!("config.json: layer_types has sliding_attention, but there is no sliding_window")
                }
                other => bail!("config.json: layer_types has {other}; expected full_attention or sliding_attention"),
            };
            if types.len() != layers {
                bail!("config.json: layer_types has {} entries; expected num_hidden_layers, {layers}", types.len());
            }
            return types.iter().map(window).collect();
        }
        if self.model_type == GPT_OSS {
            return Ok((0..layers).map(|layer| if layer % 2 == 0 { asked } else { 0 }).collect());
        }
        // Of the qwens only the later layers have a window, and llama has none.
        let first = match self.model_type.as_str() {
            "mistral" => 0,
            "llama" => layers,
            _ if self.use_sliding_window == Some(true) => self.max_window_layers.unwrap_or(layers),
            _ => layers,
        };
        Ok((0..layers).map(|layer| if layer >= first { asked } else { 0 }).collect())
    }

    fn experts(&self) -> Result<Option<Experts>> {
        let count = self.num_experts.unwrap_or(0);
        if count == 0 {
            return Ok(None);
        }
        let (Some(per_token), Some(feed_forward)) = (self.num_experts_per_tok, self.moe_intermediate_size) else {
            bail!("config.json: num_experts is {count}; expected num_experts_per_tok and moe_intermediate_size, too");
        };
        let step = self.decoder_sparse_step.unwrap_or(1).max(1);
        let dense = self.mlp_only_layers.as_deref().unwrap_or(&[]);
        let layers = (0..self.num_hidden_layers)
            .map(|layer| (layer + 1).is_multiple_of(step) && !dense.contains(&layer))
            .collect();
        let normalise = self.norm_topk_prob.unwrap_or(false);
        Ok(Some(Experts { count, per_token, feed_forward, normalise, layers, form: ExpertForm::Gated }))
    }

    /// Those of gpt-oss: the weights of a token's experts are the softmax of their logits.
    fn clamped_experts(&self) -> Result<Experts> {
        let (Some(count), Some(per_token)) = (self.num_local_experts, self.num_experts_per_tok) else {
            bail!(
                "config.json: num_local_experts is {:?} and num_experts_per_tok {:?}; expected both",
                self.num_local_experts,
                self.num_experts_per_tok
            );
        };
        if !matches!(self.hidden_act.as_deref(), None | Some("silu")) {
            bail!("config.json: hidden_act is {:?}; expected silu for {GPT_OSS}", self.hidden_act);
        }
        let (alpha, limit) = (self.swiglu_alpha.unwrap_or(1.702), self.swiglu_limit.unwrap_or(7.0));
        if limit <= 0.0 {
            bail!("config.json: swiglu_limit is {limit}; expected a positive number");
        }
        Ok(Experts {
            count,
            per_token,
            feed_forward: self.intermediate_size,
            normalise: true,
            layers: vec![true; self.num_hidden_layers],
            form: ExpertForm::Clamped { alpha, limit },
        })
    }

    /// The base and the scaling.
    fn rope(&self) -> Result<(f64, Option<RopeScaling>)> {
        let parameters = self.rope_parameters.as_ref();
        let base = self.rope_theta.or(parameters.and_then(|parameters| parameters.rope_theta)).unwrap_or(10_000.0);
        let (name, scaling) = match (&self.rope_scaling, parameters) {
            (Some(scaling), _) => ("rope_scaling", scaling),
            (None, Some(parameters)) => ("rope_parameters", parameters),
            // transformers slows it down all the same: better to say so than to guess.
            (None, None) if self.model_type == GPT_OSS => {
                bail!("config.json: rope_scaling is missing, which {GPT_OSS} needs")
            }
            (None, None) => return Ok((base, None)),
        };
        let number = |field: &str, number: Option<f64>| match number {
            Some(number) if number > 0.0 => Ok(number),
            _ => bail!("config.json: {name}.{field} is {number:?}; expected a positive number"),
        };
        let original = |kind: &str| match scaling.original_max_position_embeddings {
            Some(positions) => Ok(positions),
            None => bail!("config.json: {name}.original_max_position_embeddings is missing, which {kind} needs"),
        };
        let scaling = match scaling.rope_type.as_deref().or(scaling.r#type.as_deref()) {
            None | Some("default") => None,
            Some("linear") => Some(RopeScaling::Linear { factor: number("factor", scaling.factor)? }),
            Some("llama3") => Some(RopeScaling::Llama3 {
                factor: number("factor", scaling.factor)?,
                low_freq_factor: number("low_freq_factor", scaling.low_freq_factor)?,
                high_freq_factor: number("high_freq_factor", scaling.high_freq_factor)?,
                original_positions: original("llama3")?,
            }),
            Some("yarn") => {
                let original_positions = original("yarn")?;
                let stretch = self.max_position_embeddings as f64 / original_positions as f64;
                let factor = number("factor", scaling.factor.or(Some(stretch)))?;
                Some(RopeScaling::Yarn {
                    factor,
                    beta_fast: number("beta_fast", scaling.beta_fast.or(Some(32.0)))?,
                    beta_slow: number("beta_slow", scaling.beta_slow.or(Some(1.0)))?,
                    original_positions,
                    truncate: scaling.truncate.unwrap_or(true),
                    attention_factor: number("attention_factor", Some(scaling.attention_factor_of_yarn(factor)))?,
                })
            }
            Some(other) => bail!("config.json: {name}.rope_type is {other}; expected default, linear, llama3 or yarn"),
        };
        Ok((base, scaling))
    }
}

impl Scaling {
    fn attention_factor_of_yarn(&self, factor: f64) -> f64 {
        let scaled = |mscale: f64| 1.0 + mscale * (RopeScaling::yarn_factor(factor) - 1.0);
        match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(stated), ..) => stated,
            // As transformers has it: 0 counts as missing.
            (None, Some(one), Some(all)) if one != 0.0 && all != 0.0 => scaled(one) / scaled(all),
            _ => scaled(1.0),
        }
    }
}

fn activation(name: &str) -> Result<Activation> {
    Ok(match name {
        "silu" | "swish" => Activation::Silu,
        "gelu" => Activation::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluPytorchTanh,
        "relu2" => Activation::Relu2,
        other => bail!("config.json: hidden_act is {other}; expected silu, gelu, gelu_new, gelu_pytorch_tanh or relu2"),
    })
}
