//! What is refused, with errors that name the field, the slot or the entry.

use crate::common::{builder, error, json, weights, LLAMA, LLAMA3, MISTRAL, QWEN2, QWEN3_MOE};
use candle::{DType, Device, Result, Tensor};
use candle_tilegemm::nn::Sampling;
use candle_tilegemm_models::{Cache, Config, Decoder, Sampler};

fn tiny(more: &str) -> Result<Decoder> {
    let config = Config::from_json(&json("llama", more))?;
    Decoder::load(&config, builder(&weights(&config, 21)?))
}

#[track_caller]
fn refuses(text: &str, parts: &[&str]) {
    let error = error(Config::from_json(text));
    for part in parts {
        assert!(error.contains(part), "no {part:?} in: {error}");
    }
}

#[test]
fn a_config_names_the_field() {
    let with = |from: &str, to: &str| json("llama", LLAMA).replace(from, to);
    refuses("{", &["config.json"]);
    refuses(&json("gemma2", LLAMA), &["model_type", "gemma2", "gpt_oss"]);
    refuses(&with(r#""vocab_size": 61,"#, ""), &["vocab_size"]);
    refuses(&with(r#""silu""#, r#""mish""#), &["hidden_act", "mish", "gelu"]);
    refuses(
        &with(r#""num_key_value_heads": 2"#, r#""num_key_value_heads": 4"#),
        &["num_attention_heads", "num_key_value_heads"],
    );
    refuses(&with(r#""num_attention_heads": 6"#, r#""num_attention_heads": 7"#), &["hidden_size", "head_dim"]);
    refuses(&with(r#""num_hidden_layers": 3"#, r#""num_hidden_layers": 0"#), &["num_hidden_layers"]);
    for (field, asked) in [
        ("mlp_bias", "true"),
        ("partial_rotary_factor", "0.5"),
        ("quantization_config", r#"{"quant_method": "aqlm"}"#),
        ("final_logit_softcapping", "30.0"),
        ("num_local_experts", "8"),
        ("swiglu_limit", "7.0"),
    ] {
        refuses(&json("llama", &format!(r#""{field}": {asked}"#)), &[field]);
    }
    for kind in ["dynamic", "longrope"] {
        for field in ["rope_scaling", "rope_parameters"] {
            refuses(
                &json("llama", &format!(r#""{field}": {{"rope_type": "{kind}", "factor": 4.0}}"#)),
                &[field, kind, "llama3"],
            );
        }
    }
    refuses(&json("llama", r#""rope_scaling": {"type": "linear"}"#), &["rope_scaling.factor"]);
    refuses(
        &json("llama", r#""rope_scaling": {"type": "yarn", "factor": 4.0}"#),
        &["rope_scaling.original_max_position_embeddings", "yarn"],
    );
    refuses(
        &json(
            "llama",
            r#""rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}"#,
        ),
        &["original_max_position_embeddings"],
    );
    refuses(
        &json("qwen3", r#""layer_types": ["full_attention", "linear_attention", "full_attention"]"#),
        &["layer_types", "linear_attention"],
    );
    refuses(&json("qwen3", r#""layer_types": ["full_attention"]"#), &["layer_types", "num_hidden_layers"]);
    refuses(&json("qwen3_moe", r#""num_experts": 8"#), &["num_experts_per_tok"]);
    refuses(
        &json("qwen3_moe", r#""num_experts": 8, "num_experts_per_tok": 9, "moe_intermediate_size": 4"#),
        &["num_experts_per_tok"],
    );
}

#[test]
fn a_config_has_what_it_says() -> Result<()> {
    assert!(Config::from_json(&json(
        "llama",
        r#""mlp_bias": false, "partial_rotary_factor": 1, "quantization_config": null"#
    ))
    .is_ok());
    let mistral = Config::from_json(&json("mistral", MISTRAL))?;
    assert_eq!((mistral.windows, mistral.qkv_bias, mistral.head_size), (vec![5; 3], false, 8));
    let qwen2 = json("qwen2", QWEN2).replace(r#""max_window_layers": 3"#, r#""max_window_layers": 2"#);
    assert_eq!(Config::from_json(&qwen2)?.windows, [0, 0, 0]);
    let windows = qwen2.replace(r#""use_sliding_window": false"#, r#""use_sliding_window": true"#);
    assert_eq!(Config::from_json(&windows)?.windows, [0, 0, 4096]);
    let moe = Config::from_json(&json("qwen3_moe", QWEN3_MOE))?;
    assert_eq!(moe.experts.map(|experts| (experts.layers, experts.per_token)), Some((vec![false, true, false], 2)));
    assert!(moe.qk_norm && moe.o_bias);
    let newer = json("llama", r#""rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}"#);
    assert_eq!(Config::from_json(&newer)?.rope_base, 500_000.0);
    let tokens = json("llama", LLAMA3).replace(r#""eos_token_id": null"#, r#""eos_token_id": [2, 7]"#);
    assert_eq!(Config::from_json(&tokens)?.end_tokens, [2, 7]);
    Ok(())
}

/// Before weights are read, rather than by the first call of a kernel.
#[test]
fn a_gpu_refuses_what_its_kernels_do_not_have() -> Result<()> {
    let sized = |head: usize, heads: usize, vocabulary: usize| Config {
        head_size: head,
        heads,
        kv_heads: 2,
        vocabulary,
        ..Config::from_json(&json("llama", LLAMA)).unwrap()
    };
    let refused = |config: Config, draws| error(config.check_device(true, draws));
    for head in [64, 96, 128, 256] {
        sized(head, 32, 1 << 18).check_device(true, true)?;
    }
    for head in [32, 80, 112, 192, 512] {
        assert!(refused(sized(head, 4, 64), false).contains(&format!("head_dim is {head}; ")));
        sized(head, 4, 64).check_device(false, true)?;
    }
    assert!(refused(sized(64, 34, 64), false).contains("num_attention_heads is 17 times num_key_value_heads"));
    sized(64, 34, 64).check_device(false, true)?;
    // A kernel that takes the largest logit has no limit.
    sized(64, 4, (1 << 18) + 1).check_device(true, false)?;
    sized(64, 4, (1 << 18) + 1).check_device(false, true)?;
    assert!(refused(sized(64, 4, (1 << 18) + 1), true).contains("vocab_size is 262145"));
    Ok(())
}

#[test]
fn a_missing_weight_is_named() -> Result<()> {
    let config = Config::from_json(&json("llama", LLAMA))?;
    let mut weights = weights(&config, 1)?;
    weights.remove("model.layers.1.self_attn.k_proj.weight");
    assert!(error(Decoder::load(&config, builder(&weights))).contains("model.layers.1.self_attn.k_proj.weight"));
    Ok(())
}

#[test]
fn a_cache_grows_to_the_longest_sequence_and_says_when_it_is_full() -> Result<()> {
    let decoder = tiny(LLAMA)?;
    let mut cache = Cache::with_capacity(&decoder, 2, 5)?;
    let mut sizes = vec![cache.capacity()];
    for _ in 0..7 {
        decoder.prefill(1, &[3; 18], &mut cache)?;
        sizes.push(cache.capacity());
    }
    assert_eq!(sizes, [5, 20, 40, 80, 80, 128, 128, 128]);
    assert_eq!(cache.tokens(1)?.len(), 126);
    let full = error(decoder.prefill(1, &[3; 3], &mut cache));
    assert!(full.contains("slot 1 is full") && full.contains("128"), "{full}");
    assert_eq!(cache.tokens(1)?.len(), 126);

    let mut step = decoder.step(&mut cache, Sampler::greedy())?;
    assert!(step.next()?[1].is_some() && step.next()?[1].is_some());
    assert!(error(step.next()).contains("slot 1 is full"));
    cache.clear(1)?;
    decoder.prefill(1, &[3; 3], &mut cache)?;
    assert_eq!(cache.tokens(1)?, [3; 3]);

    assert_eq!(Cache::new(&decoder, 1)?.capacity(), 128);
    assert!(error(Cache::new(&decoder, 0)).contains("slots"));
    assert!(error(Cache::with_capacity(&decoder, 1, 0)).contains("rows"));
    // 2 of 3 layers, 2 heads of 8 numbers in f32.
    assert_eq!(Cache::bytes(decoder.config(), 2, 10, DType::F32)?, 2 * 3 * 2 * 2 * 10 * 8 * 4);
    assert!(error(Cache::bytes(decoder.config(), usize::MAX / 64, 1 << 20, DType::F32)).contains("addresses"));
    Ok(())
}

#[test]
fn calls_that_make_no_sense() -> Result<()> {
    let decoder = tiny(LLAMA)?;
    let mut cache = Cache::new(&decoder, 2)?;
    assert!(error(decoder.prefill(2, &[1], &mut cache)).contains("no slot 2"));
    assert!(error(decoder.prefill(0, &[], &mut cache)).contains("slot 0"));
    assert!(error(decoder.prefill(0, &[1, 61], &mut cache)).contains("token 61"));
    assert!(error(cache.truncate(5, 0)).contains("no slot 5"));
    assert_eq!(decoder.step(&mut cache, Sampler::greedy())?.next()?, [None, None]);
    decoder.prefill(1, &[1], &mut cache)?;
    let error_of_sampler = error(decoder.step(&mut cache, Sampler::each([Sampling::greedy()])).map(drop));
    assert!(error_of_sampler.contains("slot 1"), "{error_of_sampler}");

    let config =
        Config::from_json(&json("llama", LLAMA).replace(r#""num_hidden_layers": 3"#, r#""num_hidden_layers": 2"#))?;
    let other = Decoder::load(&config, builder(&weights(&config, 1)?))?;
    assert!(error(other.prefill(0, &[1], &mut cache)).contains("make the cache with this decoder"));
    Ok(())
}

#[test]
fn logits_of_nan_are_an_error() -> Result<()> {
    let config = Config::from_json(&json("llama", LLAMA))?;
    let mut weights = weights(&config, 1)?;
    let nan = Tensor::full(f32::NAN, config.hidden, &Device::Cpu)?;
    weights.insert("model.norm.weight".into(), nan);
    let decoder = Decoder::load(&config, builder(&weights))?;
    let mut cache = Cache::new(&decoder, 1)?;
    decoder.prefill(0, &[1, 2], &mut cache)?;
    assert!(error(decoder.step(&mut cache, Sampler::greedy())?.next()).contains("NaN"));
    assert_eq!(cache.tokens(0)?, [1, 2]);
    Ok(())
}

/// An end token ends its sequence alone, and a following prompt takes it up again.
#[test]
fn an_end_token_ends_a_sequence() -> Result<()> {
    let mut config = Config::from_json(&json("llama", LLAMA))?;
    let weights = weights(&config, 5)?;
    let start = |decoder: &Decoder| -> Result<Cache> {
        let mut cache = Cache::new(decoder, 2)?;
        decoder.prefill(0, &[1, 2, 3], &mut cache)?;
        decoder.prefill(1, &[30, 31], &mut cache)?;
        Ok(cache)
    };
    let decoder = Decoder::load(&config, builder(&weights))?;
    let mut cache = start(&decoder)?;
    let mut step = decoder.step(&mut cache, Sampler::greedy())?;
    let mut free = vec![];
    for _ in 0..8 {
        free.push(step.next()?);
    }
    // The first token that only sequence 0 chooses.
    let of = |slot: usize| free.iter().map(move |tokens| tokens[slot].unwrap());
    let (at, end) = of(0).enumerate().find(|(_, token)| of(1).all(|other| other != *token)).unwrap();
    config.end_tokens = vec![end];
    let decoder = Decoder::load(&config, builder(&weights))?;
    let mut cache = start(&decoder)?;
    let mut step = decoder.step(&mut cache, Sampler::greedy())?;
    for (i, tokens) in free.iter().enumerate() {
        let expected = [tokens[0].filter(|_| i <= at), tokens[1]];
        assert_eq!(step.next()?, expected);
    }
    assert!(cache.has_ended(0)? && !cache.has_ended(1)?);
    assert_eq!(cache.tokens(0)?.last(), Some(&end));
    decoder.prefill(0, &[4, 5], &mut cache)?;
    assert!(!cache.has_ended(0)?);
    assert_eq!(cache.tokens(0)?[3 + at..], [end, 4, 5]);
    Ok(())
}

/// A draw depends on seed, slot and position, not on neighbours or on how steps are made.
#[test]
fn draws_can_be_repeated() -> Result<()> {
    let decoder = tiny(LLAMA)?;
    let sampler = Sampler::same(Sampling::new(1.2, 99).with(|s| (s.top_p, s.repetition_penalty) = (0.95, 1.3)));
    let mut cache = Cache::with_capacity(&decoder, 3, 4)?;
    for slot in 0..3 {
        decoder.prefill(slot, &[7, 8], &mut cache)?;
    }
    let mut step = decoder.step(&mut cache, sampler.clone())?;
    for _ in 0..12 {
        step.next()?;
    }
    assert!(cache.tokens(0)? != cache.tokens(1)?, "slots draw independently");
    let mut again = Cache::new(&decoder, 3)?;
    decoder.prefill(1, &[7, 8], &mut again)?;
    for _ in 0..12 {
        decoder.step(&mut again, sampler.clone())?.next()?;
    }
    assert_eq!(again.tokens(1)?, cache.tokens(1)?);
    Ok(())
}
