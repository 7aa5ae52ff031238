//! Checkpoints with narrow weights, against decoders of the numbers that these weights stand for.

use crate::common::narrow::{Model, Stored, ALL};
use crate::common::steps::{config, prompted, steps};
use crate::common::{builder, difference, error, weights, ROUNDING};
use candle::{DType, Device, Result};
use candle_tilegemm::nn::narrow::{Granularity, QuantWeight, Quantizer};
use candle_tilegemm_models::{Cache, Config, Decoder, Quantization, Sampler};

const CPU: &Device = &Device::Cpu;
const MOE: &str =
    r#", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": true"#;

/// Prompts and steps of some sequences choose the same tokens, and end at the same logits.
fn agrees(what: &str, decoder: &Decoder, truth: &Decoder) -> Result<()> {
    let decoded = |decoder: &Decoder| -> Result<Cache> {
        let mut cache = prompted(decoder, 3, 64)?;
        steps(decoder, &mut cache, Sampler::greedy(), 8)?;
        Ok(cache)
    };
    let (mut ours, mut theirs) = (decoded(decoder)?, decoded(truth)?);
    for slot in 0..3 {
        assert_eq!(ours.tokens(slot)?, theirs.tokens(slot)?, "{what}, slot {slot}");
        let logits = decoder.prefill(slot, &[5], &mut ours)?;
        let apart = difference(&logits, &truth.prefill(slot, &[5], &mut theirs)?)?;
        assert!(apart < ROUNDING, "{what}, slot {slot}: {apart:e}");
    }
    Ok(())
}

fn holds(family: &str, more: &str, stored: Stored, seed: u64) -> Result<()> {
    let model = Model::new(family, more, stored, seed)?;
    assert_eq!(model.plain.quantization, Quantization::None);
    assert!(matches!(&model.config.quantization, Quantization::Stored(config) if config.method().is_some()));
    let config = model.config.clone().with_wide_activations();
    let decoder = Decoder::load(&config, model.builder(DType::F32, CPU)?)?;
    agrees(&format!("{family}, {stored:?}"), &decoder, &Decoder::load(&model.plain, builder(&model.numbers))?)
}

#[test]
fn a_llama_of_every_format_decodes_its_numbers() -> Result<()> {
    ALL.into_iter().enumerate().try_for_each(|(i, stored)| holds("llama", "", stored, i as u64))
}

#[test]
fn other_families_do() -> Result<()> {
    holds("mistral", r#", "sliding_window": 5"#, Stored::Fp8Tensor, 11)?;
    holds("qwen2", "", Stored::Awq, 12)?;
    holds("qwen3", r#", "attention_bias": true"#, Stored::Gptq { act_order: true }, 13)?;
    for stored in [Stored::Fp8Blocks, Stored::Packed, Stored::Mxfp4] {
        holds("qwen3_moe", MOE, stored, 14)?;
    }
    Ok(())
}

/// Where a config has activations in 8 bits, logits are others, but for blocks that no kernel has.
#[test]
fn activations_are_in_8_bits_where_the_config_says_so() -> Result<()> {
    for (stored, rounds) in [(Stored::Fp8Tensor, true), (Stored::Fp8Blocks, false), (Stored::Int8, false)] {
        let model = Model::new("llama", "", stored, 21)?;
        let logits = |config: &Config| -> Result<_> {
            let decoder = Decoder::load(config, model.builder(DType::F32, CPU)?)?;
            decoder.prefill(0, &[3, 4, 5], &mut Cache::new(&decoder, 1)?)
        };
        let apart = difference(&logits(&model.config)?, &logits(&model.config.clone().with_wide_activations())?)?;
        assert!(if rounds { (1e-3..0.3).contains(&apart) } else { apart == 0.0 }, "{stored:?}: {apart:e}");
    }
    Ok(())
}

/// Weights in 16 or 32 bits are rounded as they are loaded, each matrix for itself.
#[test]
fn weights_are_rounded_at_load() -> Result<()> {
    for (family, more, to) in [
        ("llama", "", Quantizer::Fp8(Granularity::Tensor)),
        ("qwen2", "", Quantizer::Int4 { group: Some(64), zeros: true }),
        ("qwen3_moe", MOE, Quantizer::Int8 { group: None }),
        ("qwen3_moe", MOE, Quantizer::Mxfp4),
    ] {
        let plain = config(family, more)?;
        let wide = weights(&plain, 15)?;
        let mut numbers = wide.clone();
        for (name, weight) in numbers.iter_mut().filter(|(name, _)| name.ends_with("_proj.weight")) {
            *weight = QuantWeight::quantize(weight, to).map_err(|error| error.context(name.clone()))?.to_tensor()?;
        }
        let rounded = plain.clone().with_quantization(Quantization::Rounded(to));
        let decoder = Decoder::load(&rounded, builder(&wide))?;
        agrees(&format!("{family}, {to:?}"), &decoder, &Decoder::load(&plain, builder(&numbers))?)?;
        // Rounding counts.
        let plain = Decoder::load(&plain, builder(&wide))?;
        let [mut ours, mut theirs] = [Cache::new(&decoder, 1)?, Cache::new(&plain, 1)?];
        let apart = difference(&decoder.prefill(0, &[3, 4], &mut ours)?, &plain.prefill(0, &[3, 4], &mut theirs)?)?;
        assert!((1e-4..0.5).contains(&apart), "{family}, {to:?}: {apart:e}");
    }
    Ok(())
}

#[test]
fn what_the_config_says_is_what_is_there() -> Result<()> {
    for (quantization, words) in [
        (r#"{"quant_method": "bitsandbytes"}"#, ["quant_method", "bitsandbytes"]),
        (
            r#"{"quant_method": "awq", "bits": 3, "group_size": 32, "zero_point": true, "version": "gemm"}"#,
            ["bits", "3"],
        ),
        (r#"{"quant_method": "fp8", "colour": "red"}"#, ["fp8", "colour"]),
    ] {
        let refused = error(config("llama", &format!(r#", "quantization_config": {quantization}"#)));
        assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
    }
    // Narrow tensors that the config does not name, and others than it names.
    let model = Model::new("llama", "", Stored::Packed, 16)?;
    let fp8 = config("llama", r#", "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}"#)?;
    let refused = error(Decoder::load(&fp8, model.builder(DType::F32, CPU)?));
    assert!(refused.contains("model.layers.0.self_attn.q_proj"), "{refused}");
    let refused = error(Decoder::load(&model.plain, model.builder(DType::F32, CPU)?));
    assert!(refused.contains("model.layers.0.self_attn.q_proj.weight"), "{refused}");
    Ok(())
}

#[test]
fn a_config_of_modelopt_has_a_file_of_its_own() -> Result<()> {
    let text =
        r#"{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}"#;
    let stored = candle_tilegemm::nn::QuantizationConfig::from_json(text)?;
    let config: Config = config("llama", "")?.with_quantization(Quantization::Stored(stored));
    let model = Model::new("llama", "", Stored::Fp8Tensor, 18)?;
    let decoder = Decoder::load(&config, model.builder(DType::F32, CPU)?)?;
    agrees("modelopt", &decoder, &Decoder::load(&model.plain, builder(&model.numbers))?)
}
