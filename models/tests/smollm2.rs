//! SmolLM2-135M-Instruct, a GGUF file, against candle_transformers' llama with the same weights dequantised to f32.
//!
//! candle's products with blocks round activations to 8 bits on the CPU. With `CANDLE_DEQUANTIZE_ALL` the decoder's products take the dequantised weights, so that
//! everything else of it is held to a bound of roundings. A second test holds the products with blocks to what 8 bits give.

mod common;
#[path = "common/smollm2.rs"]
mod smollm2;

use candle::{DType, Device, Result, Tensor};
use candle_tilegemm::gguf::GgufFile;
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm_models::models::quantized_llama::ModelWeights;
use candle_tilegemm_models::{Cache, Decoder, Sampler};
use common::ranks::{bits, on_ranks};
use common::{best, difference, ROUNDING};
use smollm2::{file, prompts, told, Told, STEPS};
use std::io::Seek;

/// What 8 bits may change at a step, in the median and at most, over the largest logit: twice what was measured, 0.030 and 0.050. By arithmetic: 32 numbers
/// whose largest is some 2.1 deviations round to steps of 1 / 127 of it, an error of 2.1 / 127 / sqrt(12) = 0.5 % for each number, and those of the 120
/// products in a row add up like random numbers to 5 %.
const EIGHT_BITS: [f32; 2] = [0.06, 0.1];

/// The difference of the logits at every step, teacher-forced, over the largest logit.
fn differences(prompts: &[Vec<u32>], told: &[Told]) -> Result<Vec<f32>> {
    let (mut file, content) = file();
    let mut model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    let mut all = vec![];
    for (prompt, told) in prompts.iter().zip(told) {
        model.clear_kv_cache();
        let logits = model.forward(&Tensor::new(vec![&prompt[..]], &Device::Cpu)?, 0)?;
        all.push(difference(&logits, &told.logits[0])?);
        for (step, token) in told.tokens.iter().enumerate() {
            let logits = model.forward(&Tensor::new(&[[*token]], &Device::Cpu)?, prompt.len() + step)?;
            all.push(difference(&logits, &told.logits[step + 1])?);
        }
    }
    all.sort_by(f32::total_cmp);
    Ok(all)
}

/// All prompts side by side, greedily: the tokens that candle's llama chooses, up to where its two largest logits are nearly equal.
fn steps(prompts: &[Vec<u32>], told: &[Told]) -> Result<()> {
    let (mut file, content) = file();
    let decoder = Decoder::from_gguf(&content, &mut file, &Device::Cpu)?;
    let mut cache = Cache::with_capacity(&decoder, prompts.len(), 64)?;
    for (slot, prompt) in prompts.iter().enumerate() {
        decoder.prefill(slot, prompt, &mut cache)?;
    }
    let mut step = decoder.step(&mut cache, Sampler::greedy())?;
    for _ in 0..STEPS {
        step.next()?;
    }
    for (slot, told) in told.iter().enumerate() {
        let chosen = &cache.tokens(slot)?[prompts[slot].len()..];
        for (i, token) in chosen.iter().enumerate() {
            let (_, margin) = best(&told.logits[i])?;
            if *token != told.tokens[i] {
                assert!(
                    margin < 2.0 * ROUNDING,
                    "prompt {slot}, token {i}: {token} for {}, {margin} below",
                    told.tokens[i]
                );
                break;
            }
        }
    }
    Ok(())
}

/// Three ranks, each with three heads and 6 of 18 blocks of the embedding's rows.
fn ranks(prompts: &[Vec<u32>]) -> Result<()> {
    let logits = |group: &Group| -> Result<Vec<Tensor>> {
        let (mut file, _) = file();
        file.rewind()?;
        let gguf = GgufFile::read(&mut file)?;
        let decoder = Decoder::from_gguf_rank(&gguf, group, &mut file, DType::F32, &Device::Cpu)?;
        let mut cache = Cache::with_capacity(&decoder, prompts.len(), 64)?;
        prompts.iter().enumerate().map(|(slot, prompt)| decoder.prefill(slot, prompt, &mut cache)).collect()
    };
    let whole = on_ranks(1, logits)?.remove(0)?;
    let all: Vec<Vec<Tensor>> = on_ranks(3, logits)?.into_iter().collect::<Result<_>>()?;
    for (rank, of_rank) in all.iter().enumerate() {
        for (x, y) in of_rank.iter().zip(&whole) {
            let apart = difference(x, y)?;
            println!("rank {rank} of 3: {apart:e}");
            assert!(apart < ROUNDING, "rank {rank} of 3: {apart:e}");
        }
        assert_eq!(bits(of_rank)?, bits(&all[0])?, "rank {rank} of 3");
    }
    Ok(())
}

/// One test, as the variable is the process's. candle reads it once on each thread that loads a model.
#[test]
fn smollm2_agrees() {
    let prompts = prompts(1);
    assert!(prompts.iter().all(|prompt| prompt.len() > 20));
    let told = told(&prompts, &Device::Cpu).unwrap();
    std::env::set_var("CANDLE_DEQUANTIZE_ALL", "1");
    let exact = std::thread::scope(|scope| {
        let exact = || {
            steps(&prompts, &told).unwrap();
            ranks(&prompts[..2]).unwrap();
            differences(&prompts, &told).unwrap()
        };
        scope.spawn(exact).join().unwrap()
    });
    std::env::remove_var("CANDLE_DEQUANTIZE_ALL");
    let eight_bits = std::thread::scope(|scope| scope.spawn(|| differences(&prompts, &told).unwrap()).join().unwrap());
    let median = |all: &[f32]| all[all.len() / 2];
    println!("dequantised: median {:e}, most {:e}", median(&exact), exact[exact.len() - 1]);
    println!("8 bits: median {:e}, most {:e}", median(&eight_bits), eight_bits[eight_bits.len() - 1]);
    assert!(exact[exact.len() - 1] < ROUNDING);
    assert!(median(&eight_bits) < EIGHT_BITS[0] && eight_bits[eight_bits.len() - 1] < EIGHT_BITS[1]);
}
