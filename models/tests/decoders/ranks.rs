//! Decoders on two GPUs, against the CPU in f32 with the same weights. With the feature `nccl` a second GPU is required.

use crate::common::narrow::file_of;
use crate::common::steps::{self, expect_graphs, outcome, prompted, Check, Outcome};
use crate::common::{builder, weights};
use crate::families::far;
use candle::safetensors::BufferedSafetensors;
use candle::{bail, DType, Device, Error, Result, Tensor};
use candle_tilegemm::nn::narrow::Checkpoint;
use candle_tilegemm::nn::parallel::{Group, Id};
use candle_tilegemm_models::{Config, Decoder, Sampler};
use std::collections::HashMap;
use std::thread::spawn;

pub const CHECKS: [(&str, Check); 3] =
    [("ranks_add_and_gather", sums), ("ranks_agree", families), ("ranks_that_do_not_divide_heads", refused)];

/// One rank more of roundings than on one card: a sum's parts are rounded before they are added, 2 of some 10 roundings of a layer.
const BF16: f32 = 0.05;

/// What each of two ranks returns, from a thread and a GPU of its own.
fn on_two<T: Send + 'static>(work: impl Fn(&Group, &Device) -> Result<T> + Send + Clone + 'static) -> Result<Vec<T>> {
    let id = Id::new()?;
    let thread = |rank: usize| {
        let work = work.clone();
        spawn(move || {
            let device = Device::new_cuda(rank)?;
            let group = Group::cards(&device, rank, 2, id)?;
            let result = work(&group, &device)?;
            device.synchronize()?;
            Ok(result)
        })
    };
    let threads = [0, 1].map(thread);
    threads.into_iter().map(|thread| thread.join().map_err(|_| Error::msg("a rank panicked"))?).collect()
}

fn sums(_: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for rows in [1usize, 7, 2048] {
            let all = on_two(move |group, device| {
                let rank = group.rank() as f32;
                let x = Tensor::full(rank + 1., (rows, 4096), device)?.to_dtype(dtype)?;
                group.all_reduce(&x)?;
                let part = Tensor::full(rank, (rows, 128), device)?.to_dtype(dtype)?;
                let memory = || Tensor::zeros((rows, 256), dtype, device);
                let (between, columns) = (memory()?, memory()?);
                group.gather_columns_into(&part, &between, &columns)?;
                let list = |x: &Tensor| x.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.to_vec2::<f32>();
                Ok((list(&x)?, list(&columns)?))
            })?;
            for (sum, columns) in all {
                assert!(sum.iter().flatten().all(|x| *x == 3.), "{dtype:?}, {rows} rows");
                let of_rank = |(i, x): (usize, &f32)| *x == if i < 128 { 0. } else { 1. };
                assert!(columns.iter().all(|row| row.iter().enumerate().all(of_rank)), "{dtype:?}, {rows} rows");
            }
        }
    }
    Ok(())
}

/// Prompts, steps and a last token of some sequences.
fn run(config: &Config, file: &[u8], sequences: usize) -> Result<Vec<Outcome>> {
    let (config, file) = (config.clone(), file.to_vec());
    on_two(move |group, device| {
        let files = BufferedSafetensors::new(file.clone())?;
        let vb = Checkpoint::from(files).of_rank(group).var_builder(DType::BF16, device);
        let decoder = Decoder::load_rank(&config, group, vb)?;
        let mut cache = prompted(&decoder, sequences, 64)?;
        steps::steps(&decoder, &mut cache, Sampler::greedy(), 8)?;
        expect_graphs(&cache, device, 1)?;
        outcome(&decoder, &mut cache)
    })
}

fn families(_: &Device) -> Result<()> {
    let experts =
        r#", "num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 128, "norm_topk_prob": true"#;
    for (family, more) in
        [("llama", ""), ("llama", r#", "tie_word_embeddings": true"#), ("qwen2", ""), ("qwen3_moe", experts)]
    {
        let config = steps::config(family, more)?;
        let rounded =
            |(name, weight): (String, Tensor)| Ok((name, weight.to_dtype(DType::BF16)?.to_dtype(DType::F32)?));
        let weights: HashMap<String, Tensor> = weights(&config, 17)?.into_iter().map(rounded).collect::<Result<_>>()?;
        let (truth, file) = (Decoder::load(&config, builder(&weights))?, file_of(&weights)?);
        for sequences in [1, 32] {
            let ranks = run(&config, &file, sequences)?;
            if ranks[0] != ranks[1] || ranks != run(&config, &file, sequences)? {
                bail!("{family}, {sequences} sequences: two ranks, or two runs, have other bits");
            }
            std::env::set_var("TILEGEMM_GRAPHS", "off");
            let eager = run(&config, &file, sequences);
            std::env::remove_var("TILEGEMM_GRAPHS");
            if eager? != ranks {
                bail!("{family}, {sequences} sequences: graphs change the result");
            }
            let (tokens, logits) = &ranks[0];
            let mut most = 0f32;
            for (slot, (tokens, logits)) in tokens.iter().zip(logits).enumerate().take(3) {
                let (name, tokens) = (format!("{family}, slot {slot}"), tokens.split_at(tokens.len() - 8));
                most = most.max(far(BF16, &name, &truth, tokens, logits.clone())?);
            }
            println!("{family}, {sequences} sequences on two GPUs: {most:.4}");
            assert!(most < BF16, "{family}, {sequences} sequences: {most}");
        }
    }
    Ok(())
}

/// Heads of K and V that two ranks do not divide.
fn refused(_: &Device) -> Result<()> {
    let config = Config { heads: 3, kv_heads: 3, ..steps::config("llama", "")? };
    let file = file_of(&weights(&config, 17)?)?;
    let of_ranks = on_two(move |group, device| {
        let files = BufferedSafetensors::new(file.clone())?;
        let vb = Checkpoint::from(files).of_rank(group).var_builder(DType::BF16, device);
        Ok(Decoder::load_rank(&config, group, vb).map(drop).map_err(|error| error.to_string()))
    })?;
    for of_rank in of_ranks {
        let text = of_rank.expect_err("an error");
        assert!(text.contains("num_key_value_heads is 3, which 2 ranks do not divide; expected 1 ranks"), "{text}");
    }
    Ok(())
}
