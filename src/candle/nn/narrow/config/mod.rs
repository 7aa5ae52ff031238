//! `quantization_config` of a config.json: what a module's weights are.

mod compressed;
mod fields;
mod methods;
mod modelopt;
mod pattern;
mod rules;

use super::scheme::Scheme;
use ::candle::{bail, Error, Result};
use rules::Rules;
use serde_json::Value;

/// What a checkpoint's config says of the weights of its modules.
///
/// ```
/// use candle_tilegemm::nn::narrow::{Fp8, Granularity, Scheme};
/// use candle_tilegemm::nn::QuantizationConfig;
///
/// let config = QuantizationConfig::from_json(
///     r#"{"model_type": "qwen3", "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
///         "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}}"#,
/// )?;
/// assert_eq!(config.method(), Some("fp8"));
/// assert_eq!(config.scheme("lm_head"), Scheme::Plain);
/// let Scheme::Fp8(Fp8 { granularity, .. }) = config.scheme("model.layers.0.mlp.up_proj") else { panic!() };
/// assert_eq!(granularity, Some(Granularity::Block([128, 128])));
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuantizationConfig {
    method: Option<String>,
    rules: Rules,
    has_wide_activations: bool,
}

impl QuantizationConfig {
    /// Of a config.json, whose `quantization_config` may be missing, of this object alone, or of ModelOpt's hf_quant_config.json.
    ///
    /// Methods: fp8, gptq, awq, compressed-tensors, mxfp4 and modelopt.
    ///
    /// # Errors
    /// Text that is no JSON, and methods, fields and values of fields that no reader has: the error names them.
    pub fn from_json(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text).map_err(|error| Error::msg(format!("config.json: {error}")))?;
        Self::from_value(&value)
    }

    /// The same of JSON that was read before.
    ///
    /// # Errors
    /// As for [`from_json`](Self::from_json).
    pub fn from_value(value: &Value) -> Result<Self> {
        let has = |name: &str| value.get(name).filter(|value| !value.is_null());
        // Models of text and images have a config of each.
        let nested = has("text_config").and_then(|config| config.get("quantization_config"));
        let config = ["quantization_config", "compression_config"].iter().find_map(|name| has(name));
        match config.or(nested.filter(|value| !value.is_null())) {
            Some(config) => Self::of(config),
            None if has("quant_method").is_some() || is_modelopt(value) || is_older(value) => Self::of(value),
            None => Ok(Self::default()),
        }
    }

    fn of(config: &Value) -> Result<Self> {
        let method = match config.get("quant_method").map(|method| (method, method.as_str())) {
            Some((_, Some(method))) => method,
            Some((method, None)) => bail!("quantization_config: quant_method is {method}; expected a string"),
            None if is_modelopt(config) => "modelopt",
            None if config.get("w_bit").is_some() => "awq",
            None if config.get("desc_act").is_some() => "gptq",
            None => bail!("quantization_config: no quant_method"),
        };
        let rules = match method {
            "fp8" => methods::fp8(config),
            "gptq" => methods::gptq(config),
            "awq" => methods::awq(config),
            "mxfp4" => methods::mxfp4(config),
            "compressed-tensors" => compressed::rules(config),
            "modelopt" | "modelopt_fp4" => modelopt::rules(config),
            other => bail!(
                "quantization_config: quant_method is {other}; expected fp8, gptq, awq, compressed-tensors, mxfp4 or modelopt"
            ),
        }?;
        Ok(Self { method: Some(method.into()), rules, has_wide_activations: false })
    }

    /// The name of the method; none where the config has no `quantization_config`.
    pub fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// What the weights of the module with this path are, such as `model.layers.0.mlp.up_proj`.
    pub fn scheme(&self, path: &str) -> Scheme {
        let scheme = self.rules.scheme(path);
        if self.has_wide_activations {
            scheme.with_wide_activations()
        } else {
            scheme
        }
    }

    /// The same config with activations as they come (W8A16), where the file asks for activations in 8 bits.
    pub fn with_wide_activations(self) -> Self {
        Self { has_wide_activations: true, ..self }
    }
}

/// Whether it is ModelOpt's: a file of its own has `quantization`.
fn is_modelopt(value: &Value) -> bool {
    value.get("quantization").is_some_and(|value| value.get("quant_algo").is_some())
        || value.get("quant_algo").is_some()
}

/// Whether it is a quantize_config.json of auto-gptq or a quant_config.json of AutoAWQ, which name no method.
fn is_older(value: &Value) -> bool {
    value.get("w_bit").is_some() || (value.get("bits").is_some() && value.get("desc_act").is_some())
}
