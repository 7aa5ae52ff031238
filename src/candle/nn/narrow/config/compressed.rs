//! The config of compressed-tensors.

use super::fields::Fields;
use super::pattern::Pattern;
use super::rules::Rules;
use crate::candle::nn::narrow::scheme::{Activations, Fp8, Granularity, Integers, Nvfp4, Scheme};
use ::candle::Result;
use serde_json::Value;

const NAME: &str = "quantization_config of compressed-tensors";
/// The formats that readers have.
const FORMATS: [&str; 9] = [
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "dense",
    "mixed-precision",
];

pub(super) fn rules(config: &Value) -> Result<Rules> {
    let fields = Fields::of(NAME, config)?;
    let unread = ["sparsity_config", "transform_config", "moe_sparsity_config"];
    fields.known(
        &[&["quant_method", "format", "config_groups", "ignore"][..], &unread].concat(),
        &["quantization_status", "global_compression_ratio", "kv_cache_scheme", "version"],
    )?;
    if let Some(sparsity) = fields.get(unread[0]) {
        let is_dense = ["format", "sparsity_structure"].iter().all(|name| {
            sparsity
                .get(name)
                .and_then(Value::as_str)
                .is_none_or(|text| ["dense", "0:0", "unstructured"].contains(&text))
        });
        if !is_dense {
            return Err(fields.wrong(unread[0], "dense weights: no reader has sparse ones"));
        }
    }
    fields.absent(&unread[1..])?;
    let format = fields.among("format", &FORMATS)?;
    let ignored = fields.texts("ignore")?.into_iter().map(Pattern::of_compressed).collect::<Result<_>>()?;
    let mut rules = Rules { ignored, groups: vec![] };
    let Some(groups) = fields.get("config_groups") else { return Err(fields.wrong("config_groups", "an object")) };
    for (name, group) in Fields::of("config_groups", groups)?.iter() {
        let name = format!("{NAME}, {name}");
        let group = Fields::of(&name, group)?;
        group.known(&["targets", "weights", "input_activations", "format"], &["output_activations"])?;
        let format = group.among("format", &FORMATS[..8])?.or(format);
        let scheme = scheme(&group, format)?;
        for target in group.texts("targets")? {
            rules.groups.push((Pattern::of_compressed(target)?, scheme));
        }
    }
    Ok(rules)
}

fn scheme(group: &Fields, format: Option<&str>) -> Result<Scheme> {
    let (Some(weights), Some(format)) = (group.get("weights"), format) else {
        return match group.get("weights") {
            None => Ok(Scheme::Plain),
            Some(_) => Err(group.wrong("format", "a format here or beside config_groups")),
        };
    };
    let name = format!("{}, weights", group.name);
    let fields = Fields::of(&name, weights)?;
    fields.known(
        &["num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic"],
        &["actorder", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"],
    )?;
    fields.absent(&["dynamic"])?;
    let bits = fields.number("num_bits")?.unwrap_or(8);
    let kind = fields.among("type", &["int", "float"])?.unwrap_or("int");
    let symmetric = fields.flag("symmetric")?.unwrap_or(true);
    let granularity = granularity(&fields)?;
    let rounds = (bits == 8 && symmetric).then_some((kind, granularity));
    let activations = activations(group, rounds)?;
    let integers = |bits: usize| Integers { bits, granularity, symmetric, activations };
    let wrong_bits = |expected: &str| Err(fields.wrong("num_bits", &format!("{expected} in {format}")));
    Ok(match (format, kind, bits) {
        ("dense", ..) => Scheme::Plain,
        ("pack-quantized", "int", 4 | 8) => Scheme::Packed(integers(bits as usize)),
        ("int-quantized" | "naive-quantized", "int", 8) => Scheme::Int8(integers(8)),
        ("float-quantized" | "naive-quantized", "float", 8) if symmetric => {
            Scheme::Fp8(Fp8 { granularity: Some(granularity), activations })
        }
        ("nvfp4-pack-quantized", "float", 4) if granularity == Granularity::Group(16) => {
            Scheme::Nvfp4(Nvfp4::CompressedTensors)
        }
        ("mxfp4-pack-quantized", "float", 4) if granularity == Granularity::Group(32) => Scheme::Mxfp4,
        ("mxfp8-quantized", "float", 8) if granularity == Granularity::Group(32) => Scheme::Mxfp8,
        ("pack-quantized", "int", _) => return wrong_bits("4 or 8"),
        ("int-quantized" | "naive-quantized", "int", _) => return wrong_bits("8"),
        ("nvfp4-pack-quantized", "float", 4) => return Err(fields.wrong("group_size", "16 in nvfp4-pack-quantized")),
        ("mxfp4-pack-quantized" | "mxfp8-quantized", "float", 4 | 8) => {
            return Err(fields.wrong("group_size", &format!("32 in {format}")))
        }
        ("float-quantized" | "naive-quantized", "float", 8) => {
            return Err(fields.wrong("symmetric", &format!("true in {format} of floating point")))
        }
        ("mixed-precision", ..) => {
            return Err(group.wrong("format", "a format of its own, as the whole is mixed-precision"))
        }
        _ => return Err(fields.wrong("type", &format!("another type or num_bits, not {bits}, in {format}"))),
    })
}

/// The weights that share a factor; without `strategy` as the library infers it.
fn granularity(fields: &Fields) -> Result<Granularity> {
    let strategies = ["tensor", "channel", "group", "tensor_group", "block"];
    let group = fields.group("group_size")?;
    Ok(match (fields.among("strategy", &strategies)?, group, fields.block("block_structure")?) {
        (Some("group" | "tensor_group") | None, Some(group), _) => Granularity::Group(group),
        (Some("group" | "tensor_group"), None, _) => return Err(fields.wrong("group_size", "a positive integer")),
        (Some("block"), _, Some(block)) => Granularity::Block(block),
        (Some("block"), _, None) => return Err(fields.wrong("block_structure", "two positive integers")),
        (Some("channel"), ..) => Granularity::Channel,
        // -1 without a strategy.
        (None, None, _) if fields.get("group_size").is_some() => Granularity::Channel,
        _ => Granularity::Tensor,
    })
}

/// The activations beside weights. `rounds`: the kind and granularity of weights beside which kernels round x; beside others x stays as it comes.
fn activations(group: &Fields, rounds: Option<(&str, Granularity)>) -> Result<Activations> {
    let Some(of_input) = group.get("input_activations") else { return Ok(Activations::Wide) };
    let name = format!("{}, input_activations", group.name);
    let fields = Fields::of(&name, of_input)?;
    let unread = ["block_structure", "actorder"];
    fields.known(
        &[&["num_bits", "type", "symmetric", "strategy", "group_size", "dynamic"][..], &unread].concat(),
        &["observer", "observer_kwargs", "scale_dtype", "zp_dtype"],
    )?;
    fields.absent(&unread)?;
    let bits = fields.number("num_bits")?.unwrap_or(8);
    if ![4, 8].contains(&bits) {
        return Err(fields.wrong("num_bits", "4 or 8"));
    }
    let of_type = fields.among("type", &["int", "float"])?.unwrap_or("int");
    let symmetric = fields.flag("symmetric")?.unwrap_or(true);
    let size = fields.group("group_size")?;
    let strategies = ["tensor", "token", "group", "tensor_group"];
    let inferred = if size.is_some() { "group" } else { "tensor" };
    let strategy = fields.among("strategy", &strategies)?.unwrap_or(inferred);
    let is_dynamic = match fields.get("dynamic") {
        None | Some(Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(value) if value == "local" => true,
        Some(_) => return Err(fields.wrong("dynamic", "true, false or local")),
    };
    let (kind, granularity) = match (bits, is_dynamic, rounds) {
        (8, false, _) => return Ok(Activations::Static),
        (8, true, Some(of_weights)) => of_weights,
        (8, true, None) => return Ok(Activations::Dynamic),
        _ => return Ok(Activations::Wide),
    };
    let wrong = |name: &str, expected: &str| {
        let instead = "remove input_activations to leave x as it comes";
        Err(fields.wrong(name, &format!("{expected}; {instead}")))
    };
    match granularity {
        _ if of_type != kind => wrong("type", &format!("{kind}, as the weights")),
        _ if !symmetric => wrong("symmetric", "true: no kernel has zero points of x"),
        Granularity::Tensor | Granularity::Channel if strategy != "token" => wrong("strategy", "token"),
        Granularity::Block([_, 128]) if strategy != "group" => wrong("strategy", "group beside blocks of 128 columns"),
        Granularity::Block([_, 128]) if size != Some(128) => wrong("group_size", "128 beside blocks of 128 columns"),
        _ => Ok(Activations::Dynamic),
    }
}
