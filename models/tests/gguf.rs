//! GGUF files with random weights in mixed formats, against a decoder of the same weights dequantised.

mod common;

use candle::quantized::gguf_file::{Content, Value};
use candle::{Device, Result};
use candle_tilegemm::nn::attention::RopeScaling;
use candle_tilegemm_models::{Cache, Config, Decoder};
use common::gguf::{config, file, LLAMA3};
use common::{builder, difference, Random, ROUNDING};

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
