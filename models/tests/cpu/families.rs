//! Each family against candle_transformers' model with the same weights, in f32.

use crate::common::{best, builder, difference, json, weights, Random, ROUNDING};
use candle::{Device, Result, Tensor};
use candle_tilegemm_models::{Cache, Config, Decoder, Sampler};
use candle_transformers::models as theirs;

/// Prompts of different lengths side by side, in chunks, with steps and a second turn: all against `reference`, which gives the last logits of a whole text.
fn agrees(config: &Config, decoder: Decoder, mut reference: impl FnMut(&Tensor) -> Result<Tensor>) -> Result<()> {
    let mut truth = |tokens: &[u32]| reference(&Tensor::new(vec![tokens], &Device::Cpu)?);
    let mut random = Random(7);
    let decoder = decoder.with_chunk(3);
    let mut cache = Cache::with_capacity(&decoder, 4, 8)?; // slot 2 stays empty
    for (slot, count) in [(0, 7), (1, 1), (3, 11)] {
        let prompt = random.tokens(count, config.vocabulary);
        let logits = decoder.prefill(slot, &prompt, &mut cache)?;
        let apart = difference(&logits, &truth(&prompt)?)?;
        assert!(apart < ROUNDING, "slot {slot}: {apart:e}");
    }
    assert_eq!(cache.capacity(), 16);

    let mut steps = |cache: &mut Cache, count: usize| -> Result<()> {
        for _ in 0..count {
            let before: Vec<Vec<u32>> =
                (0..4).map(|slot| cache.tokens(slot).map(<[u32]>::to_vec)).collect::<Result<_>>()?;
            let chosen = decoder.step(cache, Sampler::greedy())?.next()?;
            for (slot, before) in before.iter().enumerate().filter(|(_, before)| !before.is_empty()) {
                let (token, margin) = best(&truth(before)?)?;
                assert!(
                    chosen[slot] == Some(token) || margin < 2.0 * ROUNDING,
                    "slot {slot}: {:?} for {token}, {margin}",
                    chosen[slot]
                );
            }
            assert_eq!(chosen[2], None);
        }
        Ok(())
    };
    steps(&mut cache, 4)?;
    // The second turn of one sequence: the others go on by their tokens.
    decoder.prefill(1, &random.tokens(5, config.vocabulary), &mut cache)?;
    steps(&mut cache, 3)?;

    // One `Step` for many tokens gives the same as one for each, and a sequence alone the same as among others.
    for slot in [0, 1, 3] {
        let all = cache.tokens(slot)?.to_vec();
        let mut alone = Cache::new(&decoder, 1)?;
        decoder.prefill(0, &all[..all.len() - 3], &mut alone)?;
        let mut step = decoder.step(&mut alone, Sampler::greedy())?;
        for _ in 0..3 {
            step.next()?;
        }
        assert_eq!(alone.tokens(0)?, all);
        alone.truncate(0, 2)?;
        let logits = decoder.prefill(0, &all[2..], &mut alone)?;
        let apart = difference(&logits, &truth(&all)?)?;
        assert!(apart < ROUNDING, "slot {slot} alone: {apart:e}");
    }
    Ok(())
}

fn load(text: &str, seed: u64) -> Result<(Config, Decoder, candle_nn::VarBuilder<'static>)> {
    let config = Config::from_json(text)?;
    let weights = weights(&config, seed)?;
    let decoder = Decoder::load(&config, builder(&weights))?;
    Ok((config, decoder, builder(&weights)))
}

fn llama(more: &str) -> Result<()> {
    let text = json("llama", more);
    let (config, decoder, vb) = load(&text, 1)?;
    let stock: theirs::llama::LlamaConfig = serde_json::from_str(&text).unwrap();
    let stock = stock.into_config(false);
    let model = theirs::llama::Llama::load(vb, &stock)?;
    agrees(&config, decoder, |x| {
        let mut cache = theirs::llama::Cache::new(true, candle::DType::F32, &stock, &Device::Cpu)?;
        model.forward(x, 0, &mut cache)
    })
}

#[test]
fn llama_agrees() -> Result<()> {
    llama(crate::common::LLAMA)
}

#[test]
fn llama3_agrees() -> Result<()> {
    llama(crate::common::LLAMA3)
}

/// candle's window is one position longer than its config says.
#[test]
fn mistral_agrees() -> Result<()> {
    let text = json("mistral", crate::common::MISTRAL);
    let (config, decoder, vb) = load(&text, 2)?;
    let mut stock: theirs::mistral::Config = serde_json::from_str(&text).unwrap();
    stock.sliding_window = stock.sliding_window.map(|window| window - 1);
    let mut model = theirs::mistral::Model::new(&stock, vb)?;
    agrees(&config, decoder, |x| {
        model.clear_kv_cache();
        model.forward(x, 0)
    })
}

macro_rules! qwen_agrees {
    ($($test:ident: $family:ident, $more:expr;)*) => {$(
        #[test]
        fn $test() -> Result<()> {
            let text = json(stringify!($family), $more);
            let (config, decoder, vb) = load(&text, 3)?;
            let stock: theirs::$family::Config = serde_json::from_str(&text).unwrap();
            let mut model = theirs::$family::ModelForCausalLM::new(&stock, vb)?;
            agrees(&config, decoder, |x| {
                model.clear_kv_cache();
                model.forward(x, 0)
            })
        }
    )*};
}

qwen_agrees! {
    qwen2_agrees: qwen2, crate::common::QWEN2;
    qwen3_agrees: qwen3, crate::common::QWEN3;
    qwen3_moe_agrees: qwen3_moe, crate::common::QWEN3_MOE;
}
