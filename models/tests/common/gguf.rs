//! GGUF files with random weights in mixed formats.

#[path = "../../../tests/support/drawn.rs"]
mod drawn;
#[path = "../../../tests/support/gguf.rs"]
pub mod files;

use super::weights;
use candle::quantized::gguf_file::{self, Content, Value};
use candle::quantized::{GgmlDType, QTensor};
use candle::{Device, Result, Tensor};
use candle_tilegemm::nn::attention::{Rope, RopeScaling, RopeStyle};
use candle_tilegemm::nn::QWeights;
use candle_tilegemm::Format;
use candle_tilegemm_models::Config;
use drawn::blocks;
use files::Entry;
use std::collections::HashMap;
use std::io::Cursor;

/// Weights by Hugging Face's names.
pub type Weights = HashMap<String, Tensor>;

pub const HEAD: usize = 64;
pub const LLAMA3: RopeScaling =
    RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_positions: 32 };

/// The config of a file, as Hugging Face would have it. In a qwen3moe the second of three layers has no experts.
pub fn config(arch: &str, tied: bool) -> Result<Config> {
    let (family, layers) = if arch == "qwen3moe" { ("qwen3_moe", 3) } else { (arch, 2) };
    Config::from_json(&format!(
        r#"{{"model_type": "{family}", "vocab_size": 96, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": {layers},
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": {HEAD}, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": true, "mlp_only_layers": [1],
        "rope_theta": 10000.0, "tie_word_embeddings": {tied}, "eos_token_id": 7}}"#
    ))
}

/// The name in a GGUF file, and the format there.
fn named(name: &str, mixed: bool) -> (String, GgmlDType) {
    let parts: Vec<&str> = name.split('.').collect();
    let (to, format) = match parts[..] {
        ["model", "embed_tokens", ..] => ("token_embd.weight".to_string(), GgmlDType::Q8_0),
        ["model", "norm", ..] => ("output_norm.weight".to_string(), GgmlDType::F32),
        ["lm_head", ..] => ("output.weight".to_string(), GgmlDType::Q6K),
        ["model", "layers", layer, .., part, kind] => {
            let (part, format) = match part {
                "q_proj" => ("attn_q", GgmlDType::Q4K),
                "k_proj" => ("attn_k", GgmlDType::Q4K),
                "v_proj" => ("attn_v", GgmlDType::Q6K),
                "o_proj" => ("attn_output", GgmlDType::Q5K),
                "q_norm" => ("attn_q_norm", GgmlDType::F32),
                "k_norm" => ("attn_k_norm", GgmlDType::F32),
                "input_layernorm" => ("attn_norm", GgmlDType::F32),
                "post_attention_layernorm" => ("ffn_norm", GgmlDType::F32),
                "gate_proj" => ("ffn_gate", GgmlDType::Q4_0),
                "up_proj" => ("ffn_up", GgmlDType::Q4_0),
                "down_proj" => ("ffn_down", GgmlDType::Q4_1),
                "gate" => ("ffn_gate_inp", GgmlDType::F32),
                other => panic!("a tensor {other}"),
            };
            let is_dense = kind == "bias" || part == "ffn_gate_inp";
            (format!("blk.{layer}.{part}.{kind}"), if is_dense { GgmlDType::F32 } else { format })
        }
        _ => panic!("a tensor {name}"),
    };
    (to, if mixed { format } else { GgmlDType::F32 })
}

/// The name of a layer's experts in a GGUF file, and the format there: gates and ups of the first layer have one format, those of others two.
fn named_experts(layer: &str, part: &str, mixed: bool) -> (String, GgmlDType) {
    let (to, format) = match part {
        "gate_proj" => ("ffn_gate_exps", GgmlDType::Q4K),
        "up_proj" if layer == "0" => ("ffn_up_exps", GgmlDType::Q4K),
        "up_proj" => ("ffn_up_exps", GgmlDType::Q6K),
        "down_proj" => ("ffn_down_exps", GgmlDType::Q8_0),
        other => panic!("experts {other}"),
    };
    (format!("blk.{layer}.{to}.weight"), if mixed { format } else { GgmlDType::F32 })
}

/// The experts of all layers, a tensor for all of a layer, and their numbers by Hugging Face's names.
fn experts(weights: &Weights, mixed: bool) -> Result<(Vec<(String, QTensor)>, Weights)> {
    let (mut tensors, mut dense) = (vec![], HashMap::new());
    for first in weights.keys() {
        let parts: Vec<&str> = first.split('.').collect();
        let ["model", "layers", layer, "mlp", "experts", "0", part, "weight"] = parts[..] else { continue };
        let name = |expert: usize| format!("model.layers.{layer}.mlp.experts.{expert}.{part}.weight");
        let all: Vec<&Tensor> = (0..).map_while(|expert| weights.get(&name(expert))).collect();
        let (to, format) = named_experts(layer, part, mixed);
        let stored = QTensor::quantize(&Tensor::stack(&all, 0)?, format)?;
        let back = stored.dequantize(&Device::Cpu)?;
        for expert in 0..all.len() {
            dense.insert(name(expert), back.get(expert)?);
        }
        tensors.push((to, stored));
    }
    Ok((tensors, dense))
}

/// The bytes of a file, and the numbers that it has, as Hugging Face would have them.
pub fn file(config: &Config, arch: &str, mixed: bool, more: &[(&str, Value)]) -> Result<(Cursor<Vec<u8>>, Weights)> {
    let weights = weights(config, 31)?;
    let (mut tensors, mut dense) = experts(&weights, mixed)?;
    for (name, tensor) in weights.into_iter().filter(|(name, _)| !name.contains("experts")) {
        let (to, format) = named(&name, mixed);
        let is_turned = arch == "llama" && (name.contains("q_proj") || name.contains("k_proj"));
        // (heads, pairs' sides, pairs, ..) to (heads, pairs, sides, ..), and back.
        let permuted = |tensor: &Tensor, sizes: [usize; 2]| {
            let (rows, columns) = tensor.dims2()?;
            tensor.reshape((rows / HEAD, sizes[0], sizes[1], columns))?.transpose(1, 2)?.reshape((rows, columns))
        };
        let stored = if is_turned { permuted(&tensor, [2, HEAD / 2])? } else { tensor };
        let stored = QTensor::quantize(&stored, format)?;
        let back = stored.dequantize(&Device::Cpu)?;
        dense.insert(name, if is_turned { permuted(&back, [HEAD / 2, 2])? } else { back });
        tensors.push((to, stored));
    }
    if config.rope_scaling.is_some() {
        let plain = Rope::new(RopeStyle::Halves, HEAD, config.rope_base, &Device::Cpu)?;
        let scaled = Rope::scaled(RopeStyle::Halves, HEAD, config.rope_base, LLAMA3, &Device::Cpu)?;
        let factors = (plain.inv_freq().unwrap() / scaled.inv_freq().unwrap())?;
        tensors.push(("rope_freqs.weight".to_string(), QTensor::quantize(&factors, GgmlDType::F32)?));
    }
    let number = |number: usize| Value::U32(number as u32);
    let mut entries = vec![
        ("block_count", number(config.layers)),
        ("context_length", number(config.max_positions)),
        ("embedding_length", number(config.hidden)),
        ("feed_forward_length", number(config.feed_forward)),
        ("attention.head_count", number(config.heads)),
        ("attention.head_count_kv", number(config.kv_heads)),
        ("attention.key_length", number(HEAD)),
        ("attention.layer_norm_rms_epsilon", Value::F32(config.eps as f32)),
        ("rope.freq_base", Value::F32(config.rope_base as f32)),
        ("rope.dimension_count", number(HEAD)),
    ];
    if let Some(experts) = &config.experts {
        entries.extend([
            ("expert_count", number(experts.count)),
            ("expert_used_count", number(experts.per_token)),
            ("expert_feed_forward_length", number(experts.feed_forward)),
        ]);
    }
    let mut metadata = vec![
        ("general.architecture".to_string(), Value::String(arch.to_string())),
        ("tokenizer.ggml.eos_token_id".to_string(), number(7)),
    ];
    let kept = entries.iter().filter(|(name, _)| more.iter().all(|(other, _)| other != name));
    let own = kept.chain(more);
    metadata.extend(own.map(|(name, value)| (format!("{arch}.{name}"), value.clone())));
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut bytes = Cursor::new(vec![]);
    gguf_file::write(&mut bytes, &metadata, &tensors)?;
    bytes.set_position(0);
    Ok((bytes, dense))
}

/// A tensor's format among those that candle does not have, and its name in Hugging Face's words; none of dense tensors.
fn elsewhere(name: &str) -> Option<(Format, String)> {
    let parts: Vec<&str> = name.split('.').collect();
    let (format, to) = match parts[..] {
        ["token_embd", _] => (Format::IQ4_NL, "model.embed_tokens".to_string()),
        ["output", _] => (Format::IQ4_XS, "lm_head".to_string()),
        ["blk", layer, part, "weight"] => {
            let (format, to) = match part {
                "attn_q" => (Format::IQ4_XS, "self_attn.q_proj"),
                "attn_k" => (Format::IQ4_XS, "self_attn.k_proj"),
                "attn_v" => (Format::MXFP4, "self_attn.v_proj"),
                "attn_output" => (Format::IQ4_NL, "self_attn.o_proj"),
                "ffn_gate" => (Format::MXFP4, "mlp.gate_proj"),
                "ffn_up" => (Format::MXFP4, "mlp.up_proj"),
                "ffn_down" => (Format::IQ4_XS, "mlp.down_proj"),
                "ffn_gate_exps" => (Format::MXFP4, "mlp.experts.#.gate_proj"),
                "ffn_up_exps" if layer == "0" => (Format::MXFP4, "mlp.experts.#.up_proj"),
                "ffn_up_exps" => (Format::IQ4_XS, "mlp.experts.#.up_proj"),
                "ffn_down_exps" => (Format::MXFP4, "mlp.experts.#.down_proj"),
                _ => return None,
            };
            (format, format!("model.layers.{layer}.{to}"))
        }
        _ => return None,
    };
    Some((format, to + ".weight"))
}

/// The same of a file whose matrices are all in formats that candle does not have.
pub fn file_elsewhere(config: &Config, arch: &str) -> Result<(Cursor<Vec<u8>>, Weights)> {
    let (mut bytes, mut dense) = file(config, arch, true, &[])?;
    let content = Content::read(&mut bytes)?;
    let mut entries = vec![];
    for (seed, (name, info)) in content.tensor_infos.iter().enumerate() {
        let Some((format, to)) = elsewhere(name) else {
            entries.push(Entry::of_tensor(name, &content.tensor(&mut bytes, name, &Device::Cpu)?)?);
            continue;
        };
        let data = blocks(format, info.shape.elem_count(), seed as u64);
        let numbers = QWeights::from_bytes(format, data.clone(), info.shape.clone(), &Device::Cpu)?;
        let numbers = numbers.dequantize(&Device::Cpu)?;
        if info.shape.rank() == 3 {
            for expert in 0..info.shape.dims()[0] {
                dense.insert(to.replace('#', &expert.to_string()), numbers.get(expert)?);
            }
        } else {
            dense.insert(to, numbers);
        }
        entries.push(Entry::new(name, format, info.shape.dims(), data));
    }
    let metadata: Vec<(&str, Value)> =
        content.metadata.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    Ok((Cursor::new(files::file(&metadata, &entries)), dense))
}
