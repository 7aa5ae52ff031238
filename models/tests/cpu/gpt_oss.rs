//! gpt-oss: a tiny checkpoint against transformers' logits, and against plain loops in f32.

use crate::common::gpt_oss::{builder, expected, path, text, text_with, Plain, BF16};
use crate::common::{best, difference, error};
use candle::{DType, Device, Result, Tensor};
use candle_tilegemm::nn::attention::{Rope, RopeStyle};
use candle_tilegemm_models::{Cache, Config, Decoder, ExpertForm, Sampler};
use serde_json::{json, Value};

/// The most that roundings in f32 may change of the logits, over the largest: twice what the decoder's gave at most. Gates multiply numbers up to 8.
const ROUNDING: f32 = 1.2e-5;

const CPU: &Device = &Device::Cpu;

fn decoder(text: &str) -> Result<Decoder> {
    Decoder::load(&Config::from_json(text)?, builder(DType::F32, CPU)?)
}

fn row(rows: &[Vec<f32>], at: usize) -> Result<Tensor> {
    Tensor::new(&rows[at][..], CPU)
}

#[test]
fn the_config_says_what_there_is() -> Result<()> {
    let config = Config::from_json(&text())?;
    assert_eq!(config.windows, [9, 0, 9]);
    assert!(config.sinks && config.qkv_bias && config.o_bias && !config.qk_norm && !config.tied);
    let experts = config.experts.unwrap();
    assert_eq!(experts.form, ExpertForm::Clamped { alpha: 1.702, limit: 7.0 });
    assert_eq!((experts.count, experts.per_token, experts.normalise, experts.feed_forward), (4, 2, true, 64));
    // Without layer_types every other layer has a window, the first one among them.
    let alternating = Config::from_json(&text_with(&[("/layer_types", Value::Null)]))?;
    assert_eq!(alternating.windows, [9, 0, 9]);
    Ok(())
}

#[test]
fn plain_loops_agree_with_transformers() -> Result<()> {
    let (tokens, logits) = expected()?;
    let ours = Plain::new(&text())?.logits(&tokens).concat();
    let apart = difference(&Tensor::from_vec(ours, logits.shape(), CPU)?, &logits)?;
    assert!(apart < ROUNDING, "{apart:e}");
    Ok(())
}

/// Teacher-forced: a text in prompts of several lengths, whose last tokens' logits count.
#[test]
fn the_decoder_agrees_with_transformers() -> Result<()> {
    let (tokens, logits) = expected()?;
    let decoder = decoder(&text())?.with_chunk(7);
    let mut most = 0f32;
    for count in [1, 5, 16, tokens.len()] {
        let mut cache = Cache::with_capacity(&decoder, 2, 8)?;
        for (i, part) in tokens.chunks(count).enumerate() {
            let last = i * count + part.len() - 1;
            let apart = difference(&decoder.prefill(1, part, &mut cache)?, &logits.get(last)?)?;
            assert!(apart < ROUNDING, "in {count}s, token {last}: {apart:e}");
            most = most.max(apart);
        }
    }
    println!("{most:e}");
    Ok(())
}

/// In bf16 no router chooses other experts, so that a GPU's logits can be held to transformers', too.
#[test]
fn in_bf16_the_decoder_stays_near() -> Result<()> {
    let (tokens, logits) = expected()?;
    let decoder = Decoder::load(&Config::from_json(&text())?, builder(DType::BF16, CPU)?)?;
    let mut cache = Cache::with_capacity(&decoder, 1, 64)?;
    let mut most = 0f32;
    for (i, token) in tokens.iter().enumerate() {
        most = most.max(difference(&decoder.prefill(0, &[*token], &mut cache)?, &logits.get(i)?)?);
    }
    println!("{most:.4}");
    assert!(most < BF16, "{most}");
    Ok(())
}

#[test]
fn steps_choose_what_plain_loops_do() -> Result<()> {
    let (tokens, _) = expected()?;
    let (decoder, plain) = (decoder(&text())?, Plain::new(&text())?);
    let mut cache = Cache::with_capacity(&decoder, 3, 8)?;
    for (slot, count) in [(0, 3), (2, 17)] {
        decoder.prefill(slot, &tokens[..count], &mut cache)?;
    }
    for _ in 0..14 {
        let before: Vec<Vec<u32>> = (0..3).map(|slot| Ok(cache.tokens(slot)?.to_vec())).collect::<Result<_>>()?;
        let chosen = decoder.step(&mut cache, Sampler::greedy())?.next()?;
        for slot in [0, 2].into_iter().filter(|slot| chosen[*slot].is_some()) {
            let rows = plain.logits(&before[slot]);
            let (token, margin) = best(&row(&rows, rows.len() - 1)?)?;
            assert!(chosen[slot] == Some(token) || margin < 2.0 * ROUNDING, "{slot}: {:?} for {token}", chosen[slot]);
        }
        assert_eq!(chosen[1], None);
    }
    Ok(())
}

/// What the config says counts: other values give other logits, and those of the plain loops.
#[test]
fn every_part_counts() -> Result<()> {
    let (tokens, logits) = expected()?;
    let last = logits.get(tokens.len() - 1)?;
    let full = json!(["full_attention", "full_attention", "full_attention"]);
    for change in [
        ("/layer_types", full),
        ("/sliding_window", json!(10)),
        ("/num_experts_per_tok", json!(3)),
        ("/swiglu_limit", json!(9.0)),
        ("/rope_theta", json!(10000.0)),
        ("/rope_scaling/factor", json!(9.0)),
        ("/rope_scaling/beta_fast", json!(16.0)),
        ("/rope_scaling/beta_slow", json!(2.0)),
        ("/rope_scaling/original_max_position_embeddings", json!(512)),
    ] {
        let what = format!("{change:?}");
        let text = text_with(&[change]);
        let ours = decoder(&text)?;
        let ours = ours.prefill(0, &tokens, &mut Cache::with_capacity(&ours, 1, 64)?)?;
        let plain = Plain::new(&text)?.logits(&tokens);
        let apart = difference(&ours, &row(&plain, tokens.len() - 1)?)?;
        assert!(apart < ROUNDING, "{what}: {apart:e}");
        let moved = difference(&ours, &last)?;
        assert!(moved > 20.0 * ROUNDING, "{what} moves logits by {moved:e} only");
    }
    // No sinks.
    let config = Config { sinks: false, ..Config::from_json(&text())? };
    let without = Decoder::load(&config, builder(DType::F32, CPU)?)?;
    let without = without.prefill(0, &tokens, &mut Cache::with_capacity(&without, 1, 64)?)?;
    assert!(difference(&without, &last)? > 1e-2);
    // What the plain loops have no other values of.
    for change in [
        ("/rope_scaling/truncate", json!(true)),
        ("/rope_scaling/rope_type", json!("linear")),
        ("/attention_bias", json!(false)),
    ] {
        let what = format!("{change:?}");
        let ours = decoder(&text_with(&[change]))?;
        let ours = ours.prefill(0, &tokens, &mut Cache::with_capacity(&ours, 1, 64)?)?;
        let moved = difference(&ours, &last)?;
        assert!(moved > 20.0 * ROUNDING, "{what} moves logits by {moved:e} only");
    }
    Ok(())
}

/// The frequencies and the factor of scores, by transformers.
#[test]
fn yarn_is_transformers() -> Result<()> {
    let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path("yarn.json"))?).unwrap();
    assert_eq!(cases.len(), 6);
    for case in cases {
        let text = text_with(&[
            ("/head_dim", case["head_dim"].clone()),
            ("/rope_theta", case["rope_theta"].clone()),
            ("/rope_scaling", case["rope_scaling"].clone()),
        ]);
        let config = Config::from_json(&text)?;
        let scaling = config.rope_scaling.unwrap();
        let rope = Rope::scaled(RopeStyle::Halves, config.head_size, config.rope_base, scaling, CPU)?;
        let ours = rope.inv_freq().unwrap().to_vec1::<f32>()?;
        let theirs = case["inv_freq"].as_array().unwrap();
        assert_eq!(ours.len(), theirs.len());
        for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            let theirs = theirs.as_f64().unwrap();
            // transformers computes them in f32, by a power and a ramp.
            assert!((f64::from(*ours) / theirs - 1.0).abs() < 4e-6, "{case}: pair {i} turns by {ours}");
        }
        let factor = case["attention_factor"].as_f64().unwrap();
        assert!((scaling.attention_factor() - factor).abs() < 1e-12, "{case}: {}", scaling.attention_factor());
    }
    Ok(())
}

#[test]
fn what_is_missing_is_named() -> Result<()> {
    for (pointer, value, parts) in [
        ("/num_local_experts", Value::Null, ["num_local_experts", "num_experts_per_tok"]),
        ("/rope_scaling", Value::Null, ["rope_scaling", "gpt_oss"]),
        ("/rope_scaling/original_max_position_embeddings", Value::Null, ["original_max_position_embeddings", "yarn"]),
        ("/rope_scaling/beta_fast", json!(-1.0), ["rope_scaling.beta_fast", "-1"]),
        ("/swiglu_limit", json!(-7.0), ["swiglu_limit", "-7"]),
        ("/hidden_act", json!("gelu"), ["hidden_act", "gelu"]),
        ("/sliding_window", Value::Null, ["layer_types", "sliding_window"]),
        ("/quantization_config/quant_method", json!("aqlm"), ["quant_method", "aqlm"]),
    ] {
        let error = error(Config::from_json(&text_with(&[(pointer, value)])));
        assert!(parts.iter().all(|part| error.contains(part)), "{pointer}: {error}");
    }
    // Experts in 16 bits.
    let refused = error(decoder(&text_with(&[("/quantization_config", Value::Null)])));
    assert!(refused.contains("model.layers.0.mlp.experts") && refused.contains("mxfp4"), "{refused}");
    // The same weights under a config of more heads, layers and experts.
    let refused = error(decoder(&text_with(&[("/num_local_experts", json!(5))])));
    assert!(refused.contains("mlp.experts.gate_up_proj_blocks"), "{refused}");
    Ok(())
}
