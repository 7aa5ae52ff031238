//! GGUF files with random weights in mixed formats, against a decoder of the same weights dequantised.

use crate::common::gguf::{config, file, file_elsewhere, Weights, LLAMA3};
use crate::common::{builder, difference, Random, ROUNDING};
use candle::quantized::gguf_file::{Content, Value};
use candle::{DType, Device, Result, Tensor};
use candle_tilegemm::gguf::GgufFile;
use candle_tilegemm::nn::attention::RopeScaling;
use candle_tilegemm_models::models::quantized_qwen3_moe::GGUFQWenMoE;
use candle_tilegemm_models::{Cache, Config, Decoder};

fn agrees(arch: &str, tied: bool, scaling: Option<RopeScaling>, mixed: bool) -> Result<()> {
    let config = Config { rope_scaling: scaling, ..config(arch, tied)? };
    holds(&config, arch, mixed, &[])
}

fn holds(config: &Config, arch: &str, mixed: bool, more: &[(&str, Value)]) -> Result<()> {
    let (mut bytes, dense) = file(config, arch, mixed, more)?;
    let content = Content::read(&mut bytes)?;
    let decoder = Decoder::from_gguf(&content, &mut bytes, &Device::Cpu)?;
    is_right(&decoder, config, &dense, &format!("{arch}, tied {}, mixed {mixed}", config.tied))
}

/// Whether the decoder has the config and the weights.
fn is_right(decoder: &Decoder, config: &Config, dense: &Weights, what: &str) -> Result<()> {
    let truth = Decoder::load(config, builder(dense))?;
    let read = decoder.config();
    assert_eq!((read.tied, &read.end_tokens[..], read.windows.len()), (config.tied, &[7][..], config.layers));
    assert_eq!(read.experts, config.experts);
    let (mut cache, mut other) = (Cache::new(decoder, 1)?, Cache::new(&truth, 1)?);
    let mut random = Random(3);
    for count in [9, 1, 4] {
        let tokens = random.tokens(count, config.vocabulary);
        let logits = decoder.prefill(0, &tokens, &mut cache)?;
        let apart = difference(&logits, &truth.prefill(0, &tokens, &mut other)?)?;
        assert!(apart < ROUNDING, "{what}: {apart:e}");
    }
    Ok(())
}

/// candle_transformers' name gives the decoder's logits, of a prompt and of a token after it.
fn the_name_agrees() -> Result<()> {
    let (mut bytes, _) = file(&config("qwen3moe", false)?, "qwen3moe", true, &[])?;
    let content = Content::read(&mut bytes)?;
    let decoder = Decoder::from_gguf(&content, &mut bytes, &Device::Cpu)?;
    let mut model = GGUFQWenMoE::from_gguf(content, &mut bytes, &Device::Cpu, DType::F32)?;
    let mut cache = Cache::new(&decoder, 1)?;
    for (tokens, past) in [(&[3u32, 1, 4][..], 0), (&[5], 3)] {
        let logits = model.forward(&Tensor::new(vec![tokens], &Device::Cpu)?, past)?;
        assert_eq!(logits.dims(), [1, 96]);
        assert!(difference(&logits, &decoder.prefill(0, tokens, &mut cache)?)? < ROUNDING);
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
        agrees("qwen3moe", false, None, mixed)?;
        // Shares of the softmax over all experts.
        let mut config = config("qwen3moe", false)?;
        config.experts.iter_mut().for_each(|experts| experts.normalise = false);
        holds(&config, "qwen3moe", mixed, &[("expert_weights_norm", Value::Bool(false))])?;
    }
    the_name_agrees()
}

/// Files whose matrices are all in formats that candle does not have.
#[test]
fn files_in_formats_that_candle_does_not_have() -> Result<()> {
    for (arch, tied) in [("qwen2", false), ("qwen3", true), ("qwen3moe", false)] {
        let config = config(arch, tied)?;
        let (mut bytes, dense) = file_elsewhere(&config, arch)?;
        assert!(Content::read(&mut bytes.clone()).is_err());
        let gguf = GgufFile::read(&mut bytes)?;
        assert_eq!(Config::from_gguf_file(&gguf)?.vocabulary, config.vocabulary);
        let decoder = Decoder::from_gguf_file(&gguf, &mut bytes, DType::F32, &Device::Cpu)?;
        is_right(&decoder, &config, &dense, arch)?;
    }
    Ok(())
}

/// The error of a file with this entry.
fn refusal(config: &Config, arch: &str, name: &str, value: Value) -> Result<String> {
    let (mut bytes, _) = file(config, arch, false, &[(name, value)])?;
    let content = Content::read(&mut bytes)?;
    Ok(Decoder::from_gguf(&content, &mut bytes, &Device::Cpu).map(drop).unwrap_err().to_string())
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
        let error = refusal(&llama, "llama", name, value)?;
        assert!(parts.iter().all(|part| error.contains(part)), "{name}: {error}");
    }
    let moe = config("qwen3moe", true)?;
    for (name, value, parts) in [
        ("expert_shared_feed_forward_length", Value::U32(64), ["qwen3moe.expert_shared_feed_forward_length", "64"]),
        ("expert_gating_func", Value::U32(2), ["qwen3moe.expert_gating_func", "2"]),
        ("expert_weights_norm", Value::U32(1), ["expert_weights_norm", "bool"]),
        ("expert_count", Value::U32(5), ["blk.0.ffn_gate_inp.weight", "5"]),
        ("expert_used_count", Value::U32(7), ["num_experts_per_tok", "7"]),
        ("expert_feed_forward_length", Value::U32(64), ["blk.0.ffn_gate_exps.weight", "64"]),
    ] {
        let error = refusal(&moe, "qwen3moe", name, value)?;
        assert!(parts.iter().all(|part| error.contains(part)), "{name}: {error}");
    }
    let (mut bytes, _) = file(&llama, "gemma", false, &[])?;
    let error = Config::from_gguf(&Content::read(&mut bytes)?).unwrap_err().to_string();
    assert!(error.contains("general.architecture") && error.contains("qwen3"), "{error}");
    Ok(())
}
