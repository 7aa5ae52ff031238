//! Decoders that several ranks compute, as threads on the CPU, against the same decoders whole.

mod common;
#[path = "../examples/generate/ranks.rs"]
#[allow(dead_code)] // the example starts GPUs, too
mod threads;

use candle::{bail, DType, Result, Tensor};
use candle_tilegemm::nn::narrow::Quantizer;
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm_models::{Cache, Config, Decoder, Quantization, Sampler};
use common::narrow::file_of;
use common::ranks::{self, builder, on_ranks};
use common::{error, weights};
use std::time::{Duration, Instant};

const LLAMA: &str = r#""rope_theta": 10000.0, "tie_word_embeddings": false"#;

/// Sizes that 1, 2 and 4 ranks divide.
fn config(model_type: &str, more: &str) -> Result<Config> {
    Config::from_json(&format!(
        r#"{{"model_type": "{model_type}", "vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "max_window_layers": 3, "use_sliding_window": false, "eos_token_id": null, {more}}}"#
    ))
}

fn agrees(config: &Config, seed: u64) -> Result<()> {
    let file = file_of(&weights(config, seed)?)?;
    ranks::agrees(config, &[2, 4], |group| builder(&file, group))
}

#[test]
fn llama() -> Result<()> {
    agrees(&config("llama", LLAMA)?, 1)
}

#[test]
fn llama_with_a_tied_head() -> Result<()> {
    agrees(&config("llama", r#""rope_theta": 10000.0, "tie_word_embeddings": true"#)?, 2)
}

#[test]
fn biases_after_attention_count_once() -> Result<()> {
    let config = config("llama", &format!(r#"{LLAMA}, "attention_bias": true"#))?;
    assert!(config.o_bias && config.qkv_bias);
    agrees(&config, 3)
}

#[test]
fn qwen2() -> Result<()> {
    agrees(&config("qwen2", r#""rope_theta": 10000.0, "tie_word_embeddings": false, "sliding_window": 4096"#)?, 4)
}

#[test]
fn qwen3_moe_with_dense_layers() -> Result<()> {
    let more = r#""rope_theta": 10000.0, "tie_word_embeddings": false, "sliding_window": null, "attention_bias": false,
        "decoder_sparse_step": 2, "moe_intermediate_size": 24, "num_experts_per_tok": 2, "num_experts": 5, "norm_topk_prob": true"#;
    agrees(&config("qwen3_moe", more)?, 5)
}

/// Blocks of 32 numbers lie within a rank: the weights are rounded to the same numbers as on one card.
#[test]
fn weights_that_are_rounded_as_they_are_loaded() -> Result<()> {
    agrees(&config("llama", LLAMA)?.with_quantization(Quantization::Rounded(Quantizer::Mxfp4)), 6)
}

#[test]
fn sizes_that_ranks_do_not_divide_are_errors_with_those_that_they_do() -> Result<()> {
    let config = config("llama", LLAMA)?;
    let file = file_of(&weights(&config, 7)?)?;
    for ranks in [3, 8] {
        for of_rank in on_ranks(ranks, |group| Decoder::load_rank(&config, group, builder(&file, group)?).map(drop))? {
            let text = error(of_rank);
            let expected =
                format!("num_key_value_heads is 4, which {ranks} ranks do not divide; expected 1, 2, 4 ranks");
            assert!(text.contains(&expected), "{text}");
        }
    }
    // A builder that gives whole tensors.
    for of_rank in on_ranks(2, |group| Decoder::load_rank(&config, group, builder(&file, &Group::one())?).map(drop))? {
        assert!(error(of_rank).contains("shape mismatch"));
    }
    Ok(())
}

/// The others end with an error that names the rank.
#[test]
fn a_rank_that_fails_ends_the_others() -> Result<()> {
    let config = config("llama", LLAMA)?;
    let file = file_of(&weights(&config, 8)?)?;
    let began = Instant::now();
    let all = on_ranks(4, |group| {
        let decoder = Decoder::load_rank(&config, group, builder(&file, group)?)?;
        let mut cache = Cache::with_capacity(&decoder, 1, 64)?;
        decoder.prefill(0, &[1, 2, 3], &mut cache)?;
        let mut step = decoder.step(&mut cache, Sampler::greedy())?;
        for i in 0..20 {
            if group.rank() == 2 && i == 5 {
                bail!("out of luck");
            }
            step.next()?;
        }
        Ok(())
    })?;
    for (rank, of_rank) in all.into_iter().enumerate() {
        let (text, expected) = (error(of_rank), if rank == 2 { "out of luck" } else { "rank 2 has ended" });
        assert!(text.contains(expected), "rank {rank}: {text}");
    }
    assert!(began.elapsed() < Duration::from_secs(30));
    Ok(())
}

/// What `generate --cards` says of threads: the error of the first rank that fails, of a rank that panics, and of one that hangs.
#[test]
fn the_end_of_a_rank_ends_the_program() {
    let end = |of_rank_1: fn() -> anyhow::Result<()>| {
        let ranks = threads::threads(3, Duration::from_secs(3)).unwrap();
        let began = Instant::now();
        let work = move |rank: &threads::Rank| {
            let x = Tensor::zeros(4, DType::F32, &rank.device)?;
            rank.beat();
            for step in 0..8 {
                if rank.group.rank() == 1 && step == 5 {
                    of_rank_1()?;
                }
                rank.beat();
                rank.group.all_reduce(&x)?;
                rank.beat();
            }
            Ok(())
        };
        let result = threads::run(ranks, Duration::from_secs(3), work).map_err(|error| error.to_string());
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        result
    };
    assert_eq!(end(|| Ok(())), Ok(()));
    assert_eq!(end(|| anyhow::bail!("out of luck")), Err("rank 1: out of luck".to_string()));
    assert_eq!(end(|| panic!("out of luck")), Err("rank 1 panicked".to_string()));
    let hangs = end(|| {
        std::thread::sleep(Duration::from_secs(30));
        Ok(())
    });
    assert_eq!(hangs, Err("rank 1: silent for 3s; --timeout waits longer".to_string()));
}
