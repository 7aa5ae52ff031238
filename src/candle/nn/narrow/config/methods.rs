//! The configs of fp8, GPTQ, AWQ and MXFP4.

use super::fields::Fields;
use super::pattern::Pattern;
use super::rules::Rules;
use crate::candle::nn::narrow::scheme::{Activations, Awq, Fp8, Gptq, GptqZeros, Granularity, Scheme};
use ::candle::{bail, Result};
use serde_json::Value;

/// Modules that stay as they are, by parts of their paths.
fn ignored(fields: &Fields, names: &[&str]) -> Result<Vec<Pattern>> {
    let lists = names.iter().map(|name| fields.texts(name)).collect::<Result<Vec<_>>>()?;
    Ok(lists.concat().into_iter().map(Pattern::within).collect())
}

pub(super) fn fp8(config: &Value) -> Result<Rules> {
    let fields = Fields::of("quantization_config of fp8", config)?;
    let lists = ["modules_to_not_convert", "ignored_layers"];
    fields.known(
        &["quant_method", "activation_scheme", "weight_block_size", "fmt", lists[0], lists[1], "dequantize"],
        // Of activations and caches.
        &["scale_fmt", "kv_cache_scheme", "kv_cache_quant_method"],
    )?;
    fields.absent(&["dequantize"])?;
    fields.among("fmt", &["e4m3", "float8_e4m3fn"])?;
    let activations = match fields.among("activation_scheme", &["dynamic", "static"])? {
        None => Activations::Wide,
        Some("static") => Activations::Static,
        Some(_) => Activations::Dynamic,
    };
    let granularity = fields.block("weight_block_size")?.map(Granularity::Block);
    Ok(Rules::all_but(ignored(&fields, &lists)?, Scheme::Fp8(Fp8 { granularity, activations })))
}

/// Fields of GPTQ's configs that say how the weights came about, or how other programs run them.
const OF_GPTQ: [&str; 34] = [
    "act_group_aware",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "desc_act",
    "disable_exllama",
    "exllama_config",
    "hyb_act",
    "lm_head",
    "max_input_length",
    "meta",
    "method",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "mse",
    "offload_to_disk",
    "offload_to_disk_path",
    "pack_impl",
    "pad_token_id",
    "quant_method",
    "quantizer",
    "static_groups",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
    "version",
];

pub(super) fn gptq(config: &Value) -> Result<Rules> {
    let fields = Fields::of("quantization_config of gptq", config)?;
    fields.known(
        &[
            "bits",
            "group_size",
            "sym",
            "checkpoint_format",
            "format",
            "is_marlin_format",
            "dynamic",
            "pack_dtype",
            "rotation",
            "adapter",
        ],
        &OF_GPTQ,
    )?;
    fields.absent(&["is_marlin_format", "rotation", "adapter"])?;
    fields.among("pack_dtype", &["int32"])?;
    let formats = ["gptq", "gptq_v2"];
    let format = match fields.among("checkpoint_format", &formats)? {
        None => fields.among("format", &formats)?,
        format => format,
    };
    let quantizer = fields.get("meta").and_then(|meta| meta.get("quantizer")).map(Value::to_string);
    let is_gptqmodel = quantizer.is_some_and(|quantizer| quantizer.contains("gptqmodel"));
    let zeros = match format {
        Some("gptq_v2") => GptqZeros::AsTheyAre,
        _ if is_gptqmodel => GptqZeros::LessOneBorrowed,
        _ => GptqZeros::LessOne,
    };
    if fields.get("bits").is_none() {
        return Err(fields.wrong("bits", "2, 3, 4 or 8"));
    }
    let all = gptq_of(&fields, Gptq { bits: 4, group: None, symmetric: true, zeros })?;
    let mut rules = Rules::all_but(vec![], Scheme::Gptq(all));
    // gptqmodel: expressions for paths, of which the first that fits counts, with what differs there; `-:` excludes modules.
    if let Some(dynamic) = fields.get("dynamic").filter(|value| **value != Value::Bool(false)) {
        for (expression, change) in Fields::of("dynamic of gptq", dynamic)?.iter() {
            if let Some(expression) = expression.strip_prefix("-:") {
                rules.groups.push((Pattern::regex(expression)?, Scheme::Plain));
                continue;
            }
            let change = Fields::of("dynamic of gptq", change)?;
            change.known(&["bits", "group_size", "sym"], &["desc_act", "damp_percent", "mse", "static_groups"])?;
            let pattern = Pattern::regex(expression.strip_prefix("+:").unwrap_or(expression))?;
            rules.groups.push((pattern, Scheme::Gptq(gptq_of(&change, all)?)));
        }
    }
    Ok(rules)
}

/// What fields say, elsewhere as before.
fn gptq_of(fields: &Fields, before: Gptq) -> Result<Gptq> {
    let bits = match fields.number("bits")? {
        None => before.bits,
        Some(bits @ (2 | 3 | 4 | 8)) => bits as usize,
        Some(_) => return Err(fields.wrong("bits", "2, 3, 4 or 8")),
    };
    let group = if fields.get("group_size").is_some() { fields.group("group_size")? } else { before.group };
    Ok(Gptq { bits, group, symmetric: fields.flag("sym")?.unwrap_or(before.symmetric), ..before })
}

pub(super) fn awq(config: &Value) -> Result<Rules> {
    let fields = Fields::of("quantization_config of awq", config)?;
    let names = ["bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "format", "checkpoint_format"];
    fields.known(
        &[&names[..], &["modules_to_not_convert", "backend"]].concat(),
        &[
            "quant_method",
            "desc_act",
            "do_fuse",
            "exllama_config",
            "fuse_max_seq_len",
            "lm_head",
            "meta",
            "modules_to_fuse",
            "pack_dtype",
            "sym",
        ],
    )?;
    fields.among("backend", &["autoawq"])?;
    for name in ["bits", "w_bit"] {
        if fields.number(name)?.is_some_and(|bits| bits != 4) {
            return Err(fields.wrong(name, "4"));
        }
    }
    for name in ["version", "format", "checkpoint_format"] {
        if fields.text(name)?.is_some_and(|version| !version.eq_ignore_ascii_case("gemm")) {
            return Err(fields.wrong(name, "gemm: no reader has another layout"));
        }
    }
    if names[..2].iter().all(|name| fields.get(name).is_none()) {
        bail!("quantization_config of awq: no bits; expected 4");
    }
    let name = if fields.get("group_size").is_some() { "group_size" } else { "q_group_size" };
    let scheme = Awq { group: fields.group(name)?, zeros: fields.flag("zero_point")?.unwrap_or(true) };
    Ok(Rules::all_but(ignored(&fields, &["modules_to_not_convert"])?, Scheme::Awq(scheme)))
}

pub(super) fn mxfp4(config: &Value) -> Result<Rules> {
    let fields = Fields::of("quantization_config of mxfp4", config)?;
    fields.known(&["quant_method", "modules_to_not_convert", "dequantize"], &[])?;
    fields.absent(&["dequantize"])?;
    Ok(Rules::all_but(ignored(&fields, &["modules_to_not_convert"])?, Scheme::Mxfp4))
}
