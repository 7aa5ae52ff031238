//! GGUF files with random weights in mixed formats, against a decoder of the same weights dequantised.

mod common;

use candle::quantized::gguf_file::{self, Content, Value};
use candle::quantized::{GgmlDType, QTensor};
use candle::{Device, Result, Tensor};
use candle_tilegemm::nn::attention::{Rope, RopeScaling, RopeStyle};
use candle_tilegemm_models::{Cache, Config, Decoder};
use common::{builder, difference, weights, Random, ROUNDING};
use std::collections::HashMap;
use std::io::Cursor;

/// Weights by Hugging Face's names.
type Weights = HashMap<String, Tensor>;

const HEAD: usize = 64;
const LLAMA3: RopeScaling =
    RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_positions: 32 };

/// The config of a file, as Hugging Face would have it.
fn config(arch: &str, tied: bool) -> Result<Config> {
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
fn file(config: &Config, arch: &str, mixed: bool, more: &[(&str, Value)]) -> Result<(Cursor<Vec<u8>>, Weights)> {
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

fn agrees(arch: &str, tied: bool, scaling: Option<RopeScaling>, mixed: bool) -> Result<()> {
    let config = Config { rope_scaling: scaling, ..config(arch, tied)? };
    let (mut bytes, dense) = file(&config, arch, mixed, &[])?;
    let content = Content::read(&mut bytes)?;
    let decoder = Decoder::from_gguf(&content, &mut bytes, &Device::Cpu)?;
    let truth = Decoder::load(&config, builder(&dense))?;
    let read = decoder.config();
    assert_eq!((read.tied, &read.end_tokens[..], read.windows.len()), (tied, &[7][..], 2));
    let (mut cache, mut other) = (Cache::new(&decoder, 1)?, Cache::new(&truth, 1)?);
    let mut random = Random(3);
    for count in [9, 1, 4] {
        let tokens = random.tokens(count, config.vocabulary);
        let logits = decoder.prefill(0, &tokens, &mut cache)?;
        let apart = difference(&logits, &truth.prefill(0, &tokens, &mut other)?)?;
        assert!(apart < ROUNDING, "{arch}, tied {tied}, mixed {mixed}: {apart:e}");
    }
    Ok(())
}

/// One test, as the variable is the process's: with it candle's products take dequantised weights, and do not round activations to 8 bits.
#[test]
fn files_agree_with_their_numbers() -> Result<()> {
    std::env::set_var("CANDLE_DEQUANTIZE_ALL", "1");
    for mixed in [true, false] {
        agrees("llama", true, None, mixed)?;
        agrees("llama", false, Some(LLAMA3), mixed)?;
        agrees("qwen2", false, None, mixed)?;
        agrees("qwen3", true, None, mixed)?;
    }
    Ok(())
}

#[test]
fn a_file_names_the_entry() -> Result<()> {
    let llama = config("llama", true)?;
    for (name, value, parts) in [
        ("rope.scaling.type", Value::String("yarn".into()), ["llama.rope.scaling.type", "yarn"]),
        ("expert_count", Value::U32(8), ["llama.expert_count", "8"]),
        ("attention.value_length", Value::U32(32), ["llama.attention.value_length", "32"]),
        ("embedding_length", Value::U32(512), ["token_embd.weight", "512"]),
        ("block_count", Value::U32(3), ["blk.2.attn", "missing"]),
        ("attention.head_count_kv", Value::Array(vec![Value::U32(2)]), ["head_count_kv", "all layers"]),
    ] {
        let (mut bytes, _) = file(&llama, "llama", false, &[(name, value)])?;
        let content = Content::read(&mut bytes)?;
        let error = Decoder::from_gguf(&content, &mut bytes, &Device::Cpu).map(drop).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{name}: {error}");
    }
    let (mut bytes, _) = file(&llama, "gemma", false, &[])?;
    let error = Config::from_gguf(&Content::read(&mut bytes)?).unwrap_err().to_string();
    assert!(error.contains("general.architecture") && error.contains("qwen3"), "{error}");
    Ok(())
}
