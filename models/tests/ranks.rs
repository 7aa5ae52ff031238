//! Decoders that several ranks compute, as threads on the CPU, against the same decoders whole.

mod common;
#[path = "../examples/generate/ranks.rs"]
#[allow(dead_code)] // the example starts GPUs, too
mod threads;

use candle::safetensors::BufferedSafetensors;
use candle::{bail, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm::nn::narrow::{Checkpoint, Quantizer};
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm::nn::Sampling;
use candle_tilegemm_models::{Cache, Config, Decoder, Quantization, Sampler};
use common::narrow::file_of;
use common::{difference, error, weights, Random, ROUNDING};
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

/// What each rank's thread returns.
fn on_ranks<T: Send>(ranks: usize, work: impl Fn(&Group) -> Result<T> + Sync) -> Result<Vec<Result<T>>> {
    let groups = Group::threads(ranks, Duration::from_secs(60))?;
    let work = &work;
    Ok(std::thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || work(&group))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    }))
}

/// Parts of a file's tensors.
fn builder(file: &[u8], group: &Group) -> Result<VarBuilder<'static>> {
    let files = BufferedSafetensors::new(file.to_vec())?;
    Ok(Checkpoint::from(files).of_rank(group).var_builder(DType::F32, &Device::Cpu))
}

/// The logits of prompts of different lengths in chunks, steps of all sequences, and the logits of one more token of each.
fn run(decoder: Decoder) -> Result<(Vec<Tensor>, Vec<Vec<u32>>)> {
    let decoder = decoder.with_chunk(3);
    let vocabulary = decoder.config().vocabulary;
    let (mut random, mut logits) = (Random(5), vec![]);
    let mut cache = Cache::with_capacity(&decoder, 3, 8)?;
    for (slot, count) in [(0, 7), (1, 1), (2, 11)] {
        logits.push(decoder.prefill(slot, &random.tokens(count, vocabulary), &mut cache)?);
    }
    let sampler = Sampler::same(Sampling::new(0.8, 7).with(|sampling| sampling.top_p = 0.9));
    let mut step = decoder.step(&mut cache, sampler)?;
    for _ in 0..4 {
        step.next()?;
    }
    let tokens = (0..3).map(|slot| Ok(cache.tokens(slot)?.to_vec())).collect::<Result<_>>()?;
    for slot in 0..3 {
        logits.push(decoder.prefill(slot, &[5], &mut cache)?);
    }
    Ok((logits, tokens))
}

fn agrees(config: &Config, seed: u64) -> Result<()> {
    let file = file_of(&weights(config, seed)?)?;
    let (logits, tokens) = run(Decoder::load(config, builder(&file, &Group::one())?)?)?;
    for ranks in [2, 4] {
        let all = on_ranks(ranks, |group| run(Decoder::load_rank(config, group, builder(&file, group)?)?))?;
        for (rank, of_rank) in all.iter().enumerate() {
            let (of_rank, chosen) = of_rank.as_ref().map_err(|error| candle::Error::msg(error.to_string()))?;
            assert_eq!(chosen, &tokens, "rank {rank} of {ranks}");
            for (i, (x, y)) in of_rank.iter().zip(&logits).enumerate() {
                let apart = difference(x, y)?;
                assert!(apart < ROUNDING, "rank {rank} of {ranks}, logits {i}: {apart:e}");
            }
            // All ranks have the same bits: they choose the same tokens.
            let bits = |tensors: &[Tensor]| -> Result<Vec<Vec<f32>>> { tensors.iter().map(Tensor::to_vec1).collect() };
            assert_eq!(bits(of_rank)?, bits(&all[0].as_ref().unwrap().0)?, "rank {rank} of {ranks}");
        }
    }
    Ok(())
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
    assert_eq!(hangs, Err("rank 1: silent for 3s".to_string()));
}
