//! `quantization_config` of config.json.

use super::checkpoint;
use candle_tilegemm::nn::narrow::{Activations, Awq, Fp8, Gptq, GptqZeros, Granularity, Integers, Nvfp4, Scheme};
use candle_tilegemm::nn::QuantizationConfig;

const UP: &str = "model.layers.0.mlp.up_proj";

fn config(text: &str) -> QuantizationConfig {
    QuantizationConfig::from_json(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn scheme(text: &str) -> Scheme {
    config(text).scheme(UP)
}

/// The error of a config, which has to name this.
fn refused(text: &str, names: &[&str]) {
    let error = QuantizationConfig::from_json(text).expect_err(text).to_string();
    assert!(names.iter().all(|name| error.contains(name)), "{error}; expected {names:?}");
}

fn of_compressed(group: &str) -> String {
    format!(r#"{{"quant_method":"compressed-tensors","config_groups":{{"group_0":{group}}},"ignore":["lm_head"]}}"#)
}

#[test]
fn a_config_without_quantisation_leaves_all_as_it_is() {
    for text in [r#"{"model_type":"llama"}"#, r#"{"quantization_config":null}"#] {
        let config = config(text);
        assert_eq!((config.method(), config.scheme(UP)), (None, Scheme::Plain));
    }
    refused("{", &["config.json"]);
}

#[test]
fn fp8() {
    let blocks = r#"{"quantization_config":{"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[128,64],
        "modules_to_not_convert":["lm_head","model.layers.0.mlp.gate","model.layers.*.self_attn"],"scale_fmt":"ue8m0"}}"#;
    let expected = Fp8 { granularity: Some(Granularity::Block([128, 64])), activations: Activations::Dynamic };
    assert_eq!(scheme(blocks), Scheme::Fp8(expected));
    for (path, is_plain) in [
        ("lm_head", true),
        ("model.layers.0.mlp.gate", true),
        ("model.layers.0.mlp.gate_proj", false),
        ("model.layers.17.self_attn.q_proj", true),
    ] {
        assert_eq!(config(blocks).scheme(path) == Scheme::Plain, is_plain, "{path}");
    }
    for (fields, activations) in [("", Activations::Wide), (r#","activation_scheme":"static""#, Activations::Static)] {
        let text = format!(r#"{{"quant_method":"fp8"{fields}}}"#);
        assert_eq!(scheme(&text), Scheme::Fp8(Fp8 { granularity: None, activations }));
    }
    refused(
        r#"{"quant_method":"fp8","activation_scheme":"sometimes"}"#,
        &["activation_scheme", "sometimes", "dynamic, static"],
    );
    refused(r#"{"quant_method":"fp8","fmt":"e5m2"}"#, &["fmt", "e5m2"]);
    refused(r#"{"quant_method":"fp8","weight_block_size":[128]}"#, &["weight_block_size", "[128]"]);
    refused(r#"{"quant_method":"fp8","weight_twist":3}"#, &["unknown field weight_twist"]);
}

#[test]
fn gptq() {
    let of = |fields: &str| {
        format!(r#"{{"quant_method":"gptq","bits":4,"group_size":128,"desc_act":true,"sym":false{fields}}}"#)
    };
    let expected = Gptq { bits: 4, group: Some(128), symmetric: false, zeros: GptqZeros::LessOne };
    assert_eq!(scheme(&of("")), Scheme::Gptq(expected));
    let second = Gptq { zeros: GptqZeros::AsTheyAre, ..expected };
    assert_eq!(scheme(&of(r#","checkpoint_format":"gptq_v2""#)), Scheme::Gptq(second));
    let borrowed = Gptq { zeros: GptqZeros::LessOneBorrowed, ..expected };
    assert_eq!(
        scheme(&of(r#","checkpoint_format":"gptq","meta":{"quantizer":["gptqmodel:5.0"]}"#)),
        Scheme::Gptq(borrowed)
    );
    // Expressions of gptqmodel.
    let dynamic = config(&of(
        r#","meta":{"quantizer":["gptqmodel:5.0"]},"dynamic":{"-:.*down":{},"+:.*\\.1\\..*up":{"bits":8,"group_size":-1},".*v_proj":{"bits":3}}"#,
    ));
    assert_eq!(dynamic.scheme(UP), Scheme::Gptq(borrowed));
    assert_eq!(dynamic.scheme("model.layers.1.mlp.up_proj"), Scheme::Gptq(Gptq { bits: 8, group: None, ..borrowed }));
    assert_eq!(dynamic.scheme("model.layers.1.mlp.down_proj"), Scheme::Plain);
    assert_eq!(dynamic.scheme("model.layers.1.self_attn.v_proj"), Scheme::Gptq(Gptq { bits: 3, ..borrowed }));
    // The first one that fits counts.
    let ordered = config(
        r#"{"quant_method":"gptq","bits":3,"group_size":128,"sym":false,"meta":{"quantizer":["gptqmodel:5.0"]},
            "dynamic":{"+:.*up":{"bits":4},"-:.*_proj":{},".*down":{"bits":8}}}"#,
    );
    assert_eq!(ordered.scheme(UP), Scheme::Gptq(borrowed));
    assert_eq!(ordered.scheme("model.layers.1.mlp.down_proj"), Scheme::Plain);
    assert_eq!(ordered.scheme("lm_head"), Scheme::Gptq(Gptq { bits: 3, ..borrowed }));
    // quantize_config.json of auto-gptq.
    let older = r#"{"bits":8,"group_size":-1,"damp_percent":0.01,"desc_act":false,"sym":true,"true_sequential":true,"model_name_or_path":null}"#;
    assert_eq!(scheme(older), Scheme::Gptq(Gptq { bits: 8, group: None, symmetric: true, zeros: GptqZeros::LessOne }));
    refused(&of(r#","checkpoint_format":"marlin""#), &["checkpoint_format", "marlin", "gptq_v2"]);
    refused(&of(r#","is_marlin_format":true"#), &["is_marlin_format"]);
    refused(r#"{"quant_method":"gptq","bits":5}"#, &["bits is 5", "2, 3, 4 or 8"]);
    refused(r#"{"quant_method":"gptq","bits":4,"group_size":0}"#, &["group_size is 0"]);
    refused(r#"{"quant_method":"gptq","group_size":32}"#, &["bits is null"]);
    refused(&of(r#","rotation":"hadamard""#), &["rotation", "hadamard"]);
}

#[test]
fn awq() {
    let of = |version: &str| {
        format!(
            r#"{{"quant_method":"awq","bits":4,"group_size":64,"zero_point":true,"version":"{version}","modules_to_not_convert":["visual"]}}"#
        )
    };
    let expected = Scheme::Awq(Awq { group: Some(64), zeros: true });
    assert_eq!(scheme(&of("gemm")), expected);
    assert_eq!(scheme(&of("GEMM")), expected);
    assert_eq!(config(&of("gemm")).scheme("visual.blocks.0.attn.qkv"), Scheme::Plain);
    assert_eq!(scheme(r#"{"zero_point":true,"q_group_size":64,"w_bit":4,"version":"GEMM"}"#), expected);
    refused(&of("gemv"), &["version", "gemv", "gemm"]);
    refused(r#"{"quant_method":"awq","bits":8}"#, &["bits is 8"]);
    refused(r#"{"quant_method":"awq","bits":4,"backend":"llm-awq"}"#, &["backend", "llm-awq"]);
}

#[test]
fn compressed_tensors() {
    let group = |format: &str, weights: &str, more: &str| {
        of_compressed(&format!(r#"{{"targets":["Linear"],"format":"{format}","weights":{weights}{more}}}"#))
    };
    let int4 = r#"{"num_bits":4,"type":"int","symmetric":false,"strategy":"group","group_size":128,"actorder":"weight","observer":"mse"}"#;
    let integers =
        Integers { bits: 4, granularity: Granularity::Group(128), symmetric: false, activations: Activations::Wide };
    assert_eq!(scheme(&group("pack-quantized", int4, "")), Scheme::Packed(integers));
    assert_eq!(config(&group("pack-quantized", int4, "")).scheme("lm_head"), Scheme::Plain);
    let int8 = r#"{"num_bits":8,"type":"int","symmetric":true,"strategy":"channel"}"#;
    let dynamic = r#","input_activations":{"num_bits":8,"type":"int","dynamic":true,"strategy":"token"}"#;
    let integers =
        Integers { bits: 8, granularity: Granularity::Channel, symmetric: true, activations: Activations::Dynamic };
    assert_eq!(scheme(&group("int-quantized", int8, dynamic)), Scheme::Int8(integers));
    let fp8 = r#"{"num_bits":8,"type":"float","symmetric":true,"strategy":"block","block_structure":[128,128]}"#;
    let expected = Fp8 { granularity: Some(Granularity::Block([128, 128])), activations: Activations::Static };
    assert_eq!(scheme(&group("float-quantized", fp8, r#","input_activations":{"num_bits":8}"#)), Scheme::Fp8(expected));
    let of4 = |size: usize| format!(r#"{{"num_bits":4,"type":"float","symmetric":true,"group_size":{size}}}"#);
    let wide = r#","input_activations":{"num_bits":4,"type":"float","dynamic":"local"}"#;
    assert_eq!(scheme(&group("nvfp4-pack-quantized", &of4(16), wide)), Scheme::Nvfp4(Nvfp4::CompressedTensors));
    assert_eq!(scheme(&group("mxfp4-pack-quantized", &of4(32), "")), Scheme::Mxfp4);
    assert_eq!(scheme(&group("dense", &of4(32), "")), Scheme::Plain);
    refused(&group("mxfp4-pack-quantized", &of4(16), ""), &["group_size is 16", "32"]);
    refused(&group("marlin-24", int4, ""), &["format", "marlin-24", "pack-quantized"]);
    refused(&group("pack-quantized", &int4.replace('4', "5"), ""), &["num_bits is 5", "4 or 8"]);
    refused(&group("pack-quantized", &int4.replace("group\"", "attn_head\""), ""), &["strategy", "attn_head"]);
    refused(&group("pack-quantized", r#"{"num_bits":4,"spin":1}"#, ""), &["group_0, weights: unknown field spin"]);
    refused(&of_compressed(r#"{"targets":["Linear"],"weights":{"num_bits":4}}"#), &["group_0: format is null"]);
    refused(&of_compressed(r#"["Linear"]"#), &["group_0", "expected an object"]);
    let sparse = of_compressed(r#"{"targets":["Linear"],"weights":null}"#)
        .replace("\"ignore\"", "\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"},\"ignore\"");
    refused(&sparse, &["sparsity_config", "sparse-24-bitmask"]);
}

/// Activations are rounded as the config says, or it is refused: to the weights' type, without zero points, by row or by 128 numbers.
#[test]
fn activations_of_compressed_tensors() {
    let group = |format: &str, weights: &str, inputs: &str| {
        of_compressed(&format!(
            r#"{{"targets":["Linear"],"format":"{format}","weights":{{{weights}}},"input_activations":{{{inputs}}}}}"#
        ))
    };
    let rows = r#""num_bits":8,"type":"int","symmetric":true,"strategy":"channel""#;
    let int8 = |inputs: &str| group("int-quantized", rows, inputs);
    let blocks = r#""num_bits":8,"type":"float","strategy":"block","block_structure":[128,128]"#;
    let fp8 = |inputs: &str| group("float-quantized", blocks, inputs);
    let token = r#""num_bits":8,"type":"int","symmetric":true,"strategy":"token","dynamic":true"#;
    let by_128 = r#""num_bits":8,"type":"float","group_size":128,"dynamic":true"#;
    let nulls =
        r#","actorder":null,"block_structure":null,"group_size":null,"observer":"memoryless","observer_kwargs":{}"#;
    let activations = |text: &str| scheme(text).activations();
    assert_eq!(activations(&int8(&format!("{token}{nulls}"))), Activations::Dynamic);
    assert_eq!(activations(&fp8(by_128)), Activations::Dynamic);
    assert_eq!(activations(&fp8(&format!(r#"{by_128},"strategy":"group""#))), Activations::Dynamic);
    // x stays as it comes: nothing rounds it otherwise than they say.
    assert_eq!(activations(&int8(r#""num_bits":8,"symmetric":false"#)), Activations::Static);
    assert_eq!(activations(&int8(r#""num_bits":4,"type":"int","strategy":"token","dynamic":true"#)), Activations::Wide);
    let int4 = r#""num_bits":4,"group_size":128"#;
    assert_eq!(activations(&group("pack-quantized", int4, by_128)), Activations::Dynamic);
    let beside_int8 = |from: &str, to: &str| int8(&token.replace(from, to));
    let beside_fp8 = |from: &str, to: &str| fp8(&by_128.replace(from, to));
    for (text, names) in [
        (beside_int8("\"symmetric\":true", "\"symmetric\":false"), ["symmetric is false", "expected true"]),
        (beside_int8("\"int\"", "\"float\""), ["type is \"float\"", "expected int"]),
        (beside_int8("\"int\"", "\"complex\""), ["type is \"complex\"", "int, float"]),
        (beside_int8("\"token\"", "\"tensor\""), ["strategy is \"tensor\"", "expected token"]),
        (beside_int8(",\"strategy\":\"token\"", ""), ["strategy is null", "expected token"]),
        (beside_int8("\"token\"", "\"attn_head\""), ["strategy is \"attn_head\"", "token"]),
        (beside_int8("\"num_bits\":8", "\"num_bits\":6"), ["num_bits is 6", "4 or 8"]),
        (beside_int8("\"dynamic\":true", "\"dynamic\":\"often\""), ["dynamic is \"often\"", "true, false or local"]),
        (int8(&format!(r#"{token},"spin":1"#)), ["unknown field spin", "1"]),
        (int8(&format!(r#"{token},"actorder":"group""#)), ["actorder is \"group\"", "no such field"]),
        (beside_fp8("\"float\"", "\"int\""), ["type is \"int\"", "expected float"]),
        (beside_fp8("\"group_size\":128", "\"strategy\":\"token\""), ["strategy is \"token\"", "expected group"]),
        (beside_fp8("128", "64"), ["group_size is 64", "expected 128"]),
    ] {
        refused(&text, &[&names[..], &["group_0, input_activations"]].concat());
    }
    refused(&int8(&token.replace("true,\"strategy", "false,\"strategy")), &["remove input_activations"]);
}

#[test]
fn groups_of_compressed_tensors_go_from_paths_to_classes() {
    let group = |target: &str, bits: usize| {
        format!(
            r#"{{"targets":["{target}"],"format":"pack-quantized","weights":{{"num_bits":{bits},"strategy":"channel"}}}}"#
        )
    };
    let text = format!(
        r#"{{"quant_method":"compressed-tensors","config_groups":{{"a":{},"b":{},"c":{},"d":{}}},"ignore":["re:.*lm_head","re:model\\.layers\\.\\d+\\.mlp\\.gate$"]}}"#,
        group("Linear", 4),
        group("re:.*up_proj", 8),
        group("model.layers.3.mlp.up_proj", 4),
        group("Embedding", 8)
    );
    let config = config(&text);
    let bits = |path: &str| match config.scheme(path) {
        Scheme::Packed(integers) => integers.bits,
        _ => 16,
    };
    for (path, expected) in [
        ("model.layers.0.mlp.down_proj", 4),
        (UP, 8),
        ("model.layers.3.mlp.up_proj", 4),
        ("lm_head", 16),
        ("model.layers.12.mlp.gate", 16),
        ("model.layers.12.mlp.gate_proj", 4),
    ] {
        assert_eq!(bits(path), expected, "{path}");
    }
}

#[test]
fn mxfp4_and_modelopt() {
    let (gpt_oss, _) = checkpoint("gpt-oss");
    assert_eq!(gpt_oss.scheme("model.layers.3.self_attn.q_proj"), Scheme::Plain);
    assert_eq!(gpt_oss.scheme("model.layers.3.mlp.router"), Scheme::Plain);
    assert_eq!(gpt_oss.scheme("model.layers.3.mlp.experts"), Scheme::Mxfp4);
    refused(r#"{"quant_method":"mxfp4","dequantize":true}"#, &["dequantize"]);
    let own_file = r#"{"producer":{"name":"modelopt"},"quantization":{"quant_algo":"NVFP4","kv_cache_quant_algo":"FP8","group_size":16,"exclude_modules":["lm_head","*.mlp.gate"]}}"#;
    assert_eq!(config(own_file).method(), Some("modelopt"));
    assert_eq!(scheme(own_file), Scheme::Nvfp4(Nvfp4::ModelOpt));
    assert_eq!(config(own_file).scheme("model.layers.0.mlp.gate"), Scheme::Plain);
    let mixed = r#"{"quantization":{"quant_algo":"MIXED_PRECISION","quantized_layers":{"a.up":{"quant_algo":"FP8"},"a.down":{"quant_algo":"NVFP4","group_size":16}}}}"#;
    let fp8 = Fp8 { granularity: Some(Granularity::Tensor), activations: Activations::Static };
    assert_eq!(config(mixed).scheme("a.up"), Scheme::Fp8(fp8));
    assert_eq!(config(mixed).scheme("a.down"), Scheme::Nvfp4(Nvfp4::ModelOpt));
    assert_eq!(config(mixed).scheme("a.gate"), Scheme::Plain);
    refused(r#"{"quant_method":"modelopt","quant_algo":"W4A8_AWQ"}"#, &["quant_algo", "W4A8_AWQ", "NVFP4"]);
    refused(r#"{"quant_method":"modelopt","quant_algo":"NVFP4","group_size":32}"#, &["group_size is 32", "16"]);
}

#[test]
fn other_methods_are_named() {
    refused(
        r#"{"quantization_config":{"quant_method":"bitsandbytes","load_in_4bit":true}}"#,
        &["bitsandbytes", "compressed-tensors"],
    );
    refused(r#"{"quantization_config":{"bits":4}}"#, &["no quant_method"]);
    refused(r#"{"quantization_config":{"quant_method":7}}"#, &["quant_method is 7"]);
}
