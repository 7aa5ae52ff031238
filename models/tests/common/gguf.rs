//! GGUF files with random weights in mixed formats.

use super::weights;
use candle::quantized::gguf_file::{self, Value};
use candle::quantized::{GgmlDType, QTensor};
use candle::{Device, Result, Tensor};
use candle_tilegemm::nn::attention::{Rope, RopeScaling, RopeStyle};
use candle_tilegemm_models::Config;
use std::collections::HashMap;
use std::io::Cursor;

/// Weights by Hugging Face's names.
pub type Weights = HashMap<String, Tensor>;

pub const HEAD: usize = 64;
pub const LLAMA3: RopeScaling =
    RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_positions: 32 };

/// The config of a file, as Hugging Face would have it.
pub fn config(arch: &str, tied: bool) -> Result<Config> {
    Config::from_json(&format!(
        r#"{{"model_type": "{arch}", "vocab_size": 96, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": {HEAD}, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
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
                other => panic!("a tensor {other}"),
            };
            (format!("blk.{layer}.{part}.{kind}"), if kind == "bias" { GgmlDType::F32 } else { format })
        }
        _ => panic!("a tensor {name}"),
    };
    (to, if mixed { format } else { GgmlDType::F32 })
}

/// The bytes of a file, and the numbers that it has, as Hugging Face would have them.
pub fn file(config: &Config, arch: &str, mixed: bool, more: &[(&str, Value)]) -> Result<(Cursor<Vec<u8>>, Weights)> {
    let (mut tensors, mut dense) = (vec![], HashMap::new());
    for (name, tensor) in weights(config, 31)? {
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
    let entries = [
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
