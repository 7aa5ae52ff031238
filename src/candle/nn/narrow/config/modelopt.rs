//! The config of ModelOpt, in config.json or in hf_quant_config.json.

use super::fields::Fields;
use super::pattern::Pattern;
use super::rules::Rules;
use crate::candle::nn::narrow::scheme::{Activations, Fp8, Granularity, Nvfp4, Scheme};
use ::candle::Result;
use serde_json::Value;

const NAME: &str = "quantization_config of modelopt";
const ALGORITHMS: [&str; 5] = ["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "MXFP8", "MIXED_PRECISION"];

pub(super) fn rules(config: &Value) -> Result<Rules> {
    let fields = Fields::of(NAME, config.get("quantization").unwrap_or(config))?;
    let unread = ["has_zero_point", "pre_quant_scale"];
    fields.known(
        &[&["quant_method", "quant_algo", "group_size", "exclude_modules", "ignore", "quantized_layers"][..], &unread]
            .concat(),
        &["config_groups", "kv_cache_quant_algo", "kv_cache_scheme", "producer"],
    )?;
    fields.absent(&unread)?;
    let lists = [fields.texts("exclude_modules")?, fields.texts("ignore")?].concat();
    let mut rules =
        Rules { ignored: lists.into_iter().map(|entry| Pattern::Glob(entry.into())).collect(), groups: vec![] };
    match fields.among("quant_algo", &ALGORITHMS)? {
        None => {}
        Some("MIXED_PRECISION") => {
            let Some(layers) = fields.get("quantized_layers") else {
                return Err(fields.wrong("quantized_layers", "an object, as quant_algo is MIXED_PRECISION"));
            };
            for (path, layer) in Fields::of("quantized_layers of modelopt", layers)?.iter() {
                let name = format!("{NAME}, {path}");
                let layer = Fields::of(&name, layer)?;
                layer.known(&["quant_algo", "group_size"], &[])?;
                rules.groups.push((Pattern::Path(path.into()), scheme(&layer)?));
            }
        }
        Some(_) => rules.groups.push((Pattern::Linear, scheme(&fields)?)),
    }
    Ok(rules)
}

fn scheme(fields: &Fields) -> Result<Scheme> {
    let of_algorithm = match fields.among("quant_algo", &ALGORITHMS[..4])? {
        Some("FP8") => {
            return Ok(Scheme::Fp8(Fp8 { granularity: Some(Granularity::Tensor), activations: Activations::Static }))
        }
        Some("FP8_PER_CHANNEL_PER_TOKEN") => {
            return Ok(Scheme::Fp8(Fp8 { granularity: Some(Granularity::Channel), activations: Activations::Dynamic }))
        }
        Some("NVFP4") => (Scheme::Nvfp4(Nvfp4::ModelOpt), 16),
        Some(_) => (Scheme::Mxfp8, 32),
        None => return Ok(Scheme::Plain),
    };
    match fields.number("group_size")? {
        Some(group) if group != of_algorithm.1 => Err(fields.wrong("group_size", &of_algorithm.1.to_string())),
        _ => Ok(of_algorithm.0),
    }
}
