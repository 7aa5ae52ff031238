//! Decoders that several ranks compute, as threads on the CPU, against the same decoders whole.

mod common;
#[path = "../examples/generate/progress.rs"]
#[allow(dead_code)] // the example writes to stderr
mod progress;
#[path = "../examples/generate/ranks.rs"]
#[allow(dead_code)] // the example starts GPUs, too
mod threads;

use candle::{bail, DType, Result, Tensor};
use candle_tilegemm::nn::narrow::Quantizer;
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm_models::{Cache, Config, Decoder, ExpertSplit, Quantization, Sampler, Split};
use common::narrow::file_of;
use common::ranks::{self, builder, has_whole_experts, logged, on_ranks};
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

/// Eight experts of 26 inner numbers, which two ranks divide, and four do not.
fn moe() -> Result<Config> {
    let more = r#""rope_theta": 10000.0, "tie_word_embeddings": false, "sliding_window": null, "attention_bias": false,
        "decoder_sparse_step": 2, "moe_intermediate_size": 26, "num_experts_per_tok": 3, "num_experts": 8, "norm_topk_prob": true"#;
    config("qwen3_moe", more)
}

/// Weights of a token's experts are those of the whole choice, whether they add up to 1 or not.
#[test]
fn whole_experts() -> Result<()> {
    for normalise in [true, false] {
        let mut config = moe()?;
        config.experts.as_mut().unwrap().normalise = normalise;
        let file = file_of(&weights(&config, 9)?)?;
        ranks::agrees_by_expert(&config, &[2, 4], ExpertSplit::Whole, |group| builder(&file, group))?;
        let rounded = config.with_quantization(Quantization::Rounded(Quantizer::Mxfp4));
        ranks::agrees_by_expert(&rounded, &[2], ExpertSplit::Whole, |group| builder(&file, group))?;
    }
    Ok(())
}

#[test]
fn experts_are_split_by_inner_numbers_where_that_is_possible() -> Result<()> {
    let config = moe()?;
    let file = file_of(&weights(&config, 10)?)?;
    ranks::agrees_by_expert(&config, &[4], ExpertSplit::Auto, |group| builder(&file, group))?;
    for (ranks, experts, expected) in [
        (2, ExpertSplit::Auto, Ok(false)),
        (2, ExpertSplit::Inner, Ok(false)),
        (4, ExpertSplit::Inner, Err("moe_intermediate_size is 26, which 4 ranks do not divide; expected 1, 2 ranks")),
    ] {
        for of_rank in on_ranks(ranks, |group| {
            let split = Split::from(group).with_experts(experts);
            Ok(has_whole_experts(&Decoder::load_rank(&config, split, builder(&file, group)?)?, &config))
        })? {
            match expected {
                Ok(expected) => assert_eq!(of_rank?, expected, "{ranks} ranks, {experts:?}"),
                Err(expected) => assert!(error(of_rank).contains(expected), "{ranks} ranks, {experts:?}"),
            }
        }
    }
    Ok(())
}

#[test]
fn experts_that_ranks_do_not_divide_are_errors() -> Result<()> {
    let mut config = moe()?;
    config.experts.as_mut().unwrap().count = 6;
    let file = file_of(&weights(&config, 11)?)?;
    for of_rank in on_ranks(4, |group| {
        let split = Split::from(group).with_experts(ExpertSplit::Whole);
        Decoder::load_rank(&config, split, builder(&file, group)?).map(drop)
    })? {
        let text = error(of_rank);
        assert!(text.contains("num_experts is 6, which 4 ranks do not divide; expected 1, 2 ranks"), "{text}");
    }
    Ok(())
}

/// Of tensors of experts those of the rank alone, and of all others but norms and routers a part.
#[test]
fn a_rank_reads_its_experts() -> Result<()> {
    let config = moe()?;
    let weights = weights(&config, 12)?;
    let all: usize = weights.values().map(|tensor| 4 * tensor.elem_count()).sum();
    let whole = |name: &str| name.ends_with("norm.weight") || name.ends_with("mlp.gate.weight");
    let of_all: usize = weights.iter().filter(|(name, _)| whole(name)).map(|(_, tensor)| 4 * tensor.elem_count()).sum();
    let file = file_of(&weights)?;
    for (rank, read) in on_ranks(4, |group| {
        let (vb, log) = logged(&file, group)?;
        Decoder::load_rank(&config, Split::from(group).with_experts(ExpertSplit::Whole), vb)?;
        let read = log.lock().unwrap().clone();
        Ok(read)
    })?
    .into_iter()
    .enumerate()
    {
        let read = read?;
        for (name, _) in &read {
            let expert = name.split_once("experts.").and_then(|(_, rest)| rest.split('.').next()?.parse().ok());
            assert!(expert.is_none_or(|expert: usize| expert / 2 == rank), "rank {rank}: {name}");
        }
        let bytes: usize = read.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(bytes, (all - of_all) / 4 + of_all, "rank {rank}");
    }
    Ok(())
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

type Late = fn(&str) -> anyhow::Result<()>;

/// What `generate --cards` says of four ranks, which are threads. Rank 1 is late: in joining, in loading a layer, in a step.
fn end(timeout: Duration, late: Late) -> std::result::Result<(), String> {
    let joins = threads::threads(4, timeout).unwrap().into_iter().enumerate();
    let join = |(rank, join): (usize, threads::Join)| -> threads::Join {
        Box::new(move |pulse| {
            pulse.begin("joining the group");
            if rank == 1 {
                late("join").map_err(candle::Error::msg)?;
            }
            join(pulse)
        })
    };
    let ranks = joins.map(join).collect();
    let (config, began) = (config("llama", LLAMA).unwrap(), Instant::now());
    let file = file_of(&weights(&config, 9).unwrap()).unwrap();
    let work = move |rank: &threads::Rank| {
        let late = |at: &str| if rank.group.rank() == 1 { late(at) } else { Ok(()) };
        let mut failure = Ok(());
        let loaded = |layers, of| {
            rank.begin(format!("loaded {layers} of {of}"));
            if failure.is_ok() {
                failure = late("layer");
            }
        };
        let vb = builder(&file, &rank.group)?;
        Decoder::load_rank_with(&config, &rank.group, vb, loaded)?;
        failure?;
        let x = Tensor::zeros(4, DType::F32, &rank.device)?;
        for step in 0..8 {
            rank.begin(format!("before step {step}"));
            if step == 5 {
                late("step")?;
            }
            rank.begin(format!("step {step}"));
            rank.group.all_reduce(&x)?;
        }
        Ok(())
    };
    let result = threads::run(ranks, timeout, work).map_err(|error| error.to_string());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    result
}

fn hang() -> anyhow::Result<()> {
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

/// The error of the first rank that fails, of a rank that panics, and of one that hangs.
#[test]
fn the_end_of_a_rank_ends_the_program() {
    let end = |late| end(Duration::from_secs(3), late);
    assert_eq!(end(|_| Ok(())), Ok(()));
    let all: [Late; 3] = [
        |at| if at == "join" { anyhow::bail!("out of luck") } else { Ok(()) },
        |at| if at == "layer" { anyhow::bail!("out of luck") } else { Ok(()) },
        |at| if at == "step" { anyhow::bail!("out of luck") } else { Ok(()) },
    ];
    for fails in all {
        let error = end(fails).unwrap_err();
        assert!(error.starts_with("rank 1: out of luck"), "{error}");
    }
    assert_eq!(end(|_| panic!("out of luck")), Err("rank 1 panicked".to_string()));
    for (hangs, what) in [
        ((|at| if at == "join" { hang() } else { Ok(()) }) as Late, "joining the group"),
        (|at| if at == "layer" { hang() } else { Ok(()) }, "loaded 0 of 3"),
        (|at| if at == "step" { hang() } else { Ok(()) }, "before step 5"),
    ] {
        assert_eq!(end(hangs), Err(format!("rank 1 ({what}): no progress for 3s; --timeout waits longer")));
    }
}

/// Four times 0.8 s of loading, where 3 s without progress count as hanging. The other ranks wait for it.
#[test]
fn a_rank_that_loads_slowly_is_alive() {
    let slow = |at: &str| {
        if at == "layer" {
            std::thread::sleep(Duration::from_millis(800));
        }
        Ok(())
    };
    assert_eq!(end(Duration::from_secs(3), slow), Ok(()));
}

#[test]
fn loading_shows_its_progress() {
    let shown = |layers: usize, is_terminal| {
        let mut out = vec![];
        let mut progress = progress::Progress::new(&mut out, is_terminal);
        (0..=layers).for_each(|loaded| progress.loaded(loaded, layers).unwrap());
        drop(progress);
        String::from_utf8(out).unwrap()
    };
    let terminal = "\rloaded 0 of 2 layers\rloaded 1 of 2 layers\rloaded 2 of 2 layers\r\x1b[K";
    assert_eq!(shown(2, true), terminal);
    let lines: String = [8, 15, 23, 30].map(|loaded| format!("loaded {loaded} of 30 layers\n")).concat();
    assert_eq!(shown(30, false), lines);
    assert_eq!(shown(1, false), "loaded 1 of 1 layers\n");
}
