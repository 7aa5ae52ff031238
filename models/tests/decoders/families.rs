//! Families and files on the GPU in bf16, against the CPU in f32 with the same weights.

use crate::common::gguf::{self, LLAMA3};
use crate::common::steps::{self, equal, expect_graphs, outcome, Check};
use crate::common::{best, builder_on, difference, weights};
use crate::smollm2::{file, prompts, told};
use candle::quantized::gguf_file::Content;
use candle::{DType, Device, Result, Tensor};
use candle_tilegemm_models::{Cache, Config, Decoder, Sampler};
use std::collections::HashMap;

pub const CHECKS: [(&str, Check); 3] =
    [("families_agree", families), ("files_agree", files), ("smollm2_agrees", smollm2)];

/// The most that bf16 may change of the logits, over the largest. By arithmetic: a layer rounds some 10 times on the way of a number, by 2^-9 / sqrt(3) in the
/// mean, and two layers add these up like random numbers to 0.5 %. An H200 gave 0.9 to 1.1 % at most in families, and 1.1 to 2.0 % in files, whose products
/// round their inputs, too. Twice that.
const BF16: f32 = 0.04;

/// Prompts, steps and a last token of some sequences on the GPU; the CPU takes the same tokens.
pub fn agrees(name: &str, decoder: &Decoder, truth: &Decoder, device: &Device) -> Result<()> {
    agrees_within(BF16, name, decoder, truth, device)
}

/// The same with another bound of logits.
pub fn agrees_within(bound: f32, name: &str, decoder: &Decoder, truth: &Decoder, device: &Device) -> Result<()> {
    let (tokens, logits) = equal(device, || {
        let mut cache = steps::prompted(decoder, 3, 64)?;
        steps::steps(decoder, &mut cache, Sampler::greedy(), 8)?;
        expect_graphs(&cache, device, 1)?;
        outcome(decoder, &mut cache)
    })?;
    let prompts = steps::prompted(decoder, 3, 64)?;
    let mut most = 0f32;
    for (slot, (tokens, logits)) in tokens.iter().zip(logits).enumerate() {
        let prompt = prompts.tokens(slot)?.len();
        most = most.max(far(bound, &format!("{name}, slot {slot}"), truth, tokens.split_at(prompt), logits)?);
    }
    println!("{name}: {most:.4}");
    assert!(most < bound, "{name}: {most}");
    Ok(())
}

/// How far the logits after one more token are from the truth, which takes the same prompt and the same chosen tokens. Each of these is its choice, too, up to roundings.
pub fn far(bound: f32, name: &str, truth: &Decoder, tokens: (&[u32], &[u32]), logits: Vec<u32>) -> Result<f32> {
    let (prompt, chosen) = tokens;
    let mut cache = Cache::with_capacity(truth, 1, 64)?;
    let mut expected = truth.prefill(0, prompt, &mut cache)?;
    for token in chosen {
        let (best, margin) = best(&expected)?;
        assert!(*token == best || margin < 2.0 * bound, "{name}: {token} for {best}, {margin} below");
        expected = truth.prefill(0, &[*token], &mut cache)?;
    }
    let expected = truth.prefill(0, &[5], &mut cache)?;
    let logits: Vec<f32> = logits.into_iter().map(f32::from_bits).collect();
    difference(&Tensor::new(logits, &Device::Cpu)?, &expected)
}

fn families(device: &Device) -> Result<()> {
    let llama3 = r#", "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}, "tie_word_embeddings": true"#;
    // All experts of a layer: which ones a token chooses may hang on a rounding.
    let experts = |per_token: usize| {
        format!(
            r#", "num_experts": 4, "num_experts_per_tok": {per_token}, "moe_intermediate_size": 128, "norm_topk_prob": true"#
        )
    };
    for (family, more) in [
        ("llama", llama3.to_string()),
        ("mistral", r#", "sliding_window": 5"#.to_string()),
        ("qwen2", String::new()),
        ("qwen3", String::new()),
        ("qwen3_moe", experts(4)),
    ] {
        let config = steps::config(family, &more)?;
        let weights = weights(&config, 17)?;
        let decoder = Decoder::load(&config, builder_on(&weights, DType::BF16, device)?)?;
        // The same numbers: those of bf16.
        let rounded = |(name, weight): (&String, &Tensor)| Ok((name.clone(), weight.to_dtype(DType::BF16)?));
        let rounded: HashMap<String, Tensor> = weights.iter().map(rounded).collect::<Result<_>>()?;
        let truth = Decoder::load(&config, builder_on(&rounded, DType::F32, &Device::Cpu)?)?;
        agrees(family, &decoder, &truth, device)?;
    }
    let moe = steps::decoder_of(&steps::config("qwen3_moe", &experts(2))?, 17, device)?;
    equal(device, || {
        let mut cache = steps::prompted(&moe, 9, 64)?;
        steps::steps(&moe, &mut cache, Sampler::greedy(), 8)?;
        expect_graphs(&cache, device, 1)?;
        outcome(&moe, &mut cache)
    })?;
    Ok(())
}

fn files(device: &Device) -> Result<()> {
    for (arch, tied, scaling, mixed) in [
        ("llama", true, None, true),
        ("llama", false, Some(LLAMA3), true),
        ("llama", true, None, false),
        ("qwen2", false, None, true),
        ("qwen3", true, None, true),
        ("qwen3moe", false, None, true),
    ] {
        let mut config = Config { rope_scaling: scaling, ..gguf::config(arch, tied)? };
        // All of them, as for `families`.
        config.experts.iter_mut().for_each(|experts| experts.per_token = experts.count);
        let (mut bytes, dense) = gguf::file(&config, arch, mixed, &[])?;
        let content = Content::read(&mut bytes)?;
        let decoder = Decoder::from_gguf(&content, &mut bytes, device)?;
        let config = Config { end_tokens: decoder.config().end_tokens.clone(), ..config };
        let truth = Decoder::load(&config, builder_on(&dense, DType::F32, &Device::Cpu)?)?;
        agrees(&format!("{arch}, tied {tied}, mixed {mixed}"), &decoder, &truth, device)?;
    }
    Ok(())
}

/// In bf16: 64 prompts side by side, and teacher-forced, against candle's llama in f32 on the GPU. `TILEGEMM_SMOLLM2_DIR` has the file.
fn smollm2(device: &Device) -> Result<()> {
    if std::env::var_os("TILEGEMM_SMOLLM2_DIR").is_none() {
        println!("left out: smollm2; TILEGEMM_SMOLLM2_DIR names no folder");
        return Ok(());
    }
    let prompts = prompts(8);
    let told = told(&prompts, device)?;
    let (mut file, content) = file();
    let decoder = Decoder::from_gguf(&content, &mut file, device)?;
    let mut all = vec![];
    let mut cache = Cache::with_capacity(&decoder, prompts.len(), 64)?;
    for (slot, (prompt, told)) in prompts.iter().zip(&told).enumerate() {
        all.push(difference(&decoder.prefill(slot, prompt, &mut cache)?.to_device(&Device::Cpu)?, &told.logits[0])?);
    }
    let (tokens, _) = equal(device, || {
        let mut cache = Cache::with_capacity(&decoder, prompts.len(), 64)?;
        for (slot, prompt) in prompts.iter().enumerate() {
            decoder.prefill(slot, prompt, &mut cache)?;
        }
        steps::steps(&decoder, &mut cache, Sampler::greedy(), told[0].tokens.len())?;
        expect_graphs(&cache, device, 1)?;
        outcome(&decoder, &mut cache)
    })?;
    for (slot, told) in told.iter().enumerate() {
        // Teacher-forced: the same tokens, one by one.
        for (i, token) in told.tokens.iter().enumerate() {
            let logits = decoder.prefill(slot, &[*token], &mut cache)?.to_device(&Device::Cpu)?;
            all.push(difference(&logits, &told.logits[i + 1])?);
        }
        let chosen = &tokens[slot][prompts[slot].len()..];
        let other = chosen.iter().zip(&told.tokens).position(|(token, expected)| token != expected);
        if let Some(i) = other {
            let (_, margin) = best(&told.logits[i])?;
            assert!(
                margin < 2.0 * SMOLLM2[1],
                "prompt {slot}, token {i}: {} for {}, {margin} below",
                chosen[i],
                told.tokens[i]
            );
        }
    }
    all.sort_by(f32::total_cmp);
    let (median, most) = (all[all.len() / 2], all[all.len() - 1]);
    println!("smollm2 in bf16: median {median:.4}, most {most:.4}");
    assert!(median < SMOLLM2[0] && most < SMOLLM2[1]);
    Ok(())
}

/// What bf16 may change of SmolLM2's logits, in the median and at most, over the largest. As for `BF16`: 30 layers add up to 2 %.
const SMOLLM2: [f32; 2] = [0.04, 0.1];
