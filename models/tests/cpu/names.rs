//! The models with candle_transformers' names: the same program on both, with equal logits.

use crate::common::{builder, difference, json, weights, Random, ROUNDING};
use candle::{DType, Device, Result, Tensor};
use candle_tilegemm_models::{models as ours, Config};
use candle_transformers::models as theirs;

/// A batch of prompts, one that goes on in a chunk, and steps; then from the start.
fn calls() -> Result<Vec<(Tensor, usize)>> {
    let mut random = Random(5);
    let mut batch = |sequences: usize, tokens: usize| {
        Tensor::from_vec(random.tokens(sequences * tokens, 61), (sequences, tokens), &Device::Cpu)
    };
    Ok(vec![
        (batch(2, 5)?, 0),
        (batch(2, 3)?, 5),
        (batch(2, 1)?, 8),
        (batch(2, 1)?, 9),
        (batch(1, 1)?, 0),
        (batch(1, 1)?, 1),
    ])
}

macro_rules! qwen {
    ($($test:ident: $family:ident, $more:expr;)*) => {$(
        #[test]
        fn $test() -> Result<()> {
            let text = json(stringify!($family), $more);
            let weights = weights(&Config::from_json(&text)?, 11)?;
            let config: ours::$family::Config = serde_json::from_str(&text).unwrap();
            let stock: theirs::$family::Config = serde_json::from_str(&text).unwrap();
            let mut model = ours::$family::ModelForCausalLM::new(&config, builder(&weights))?;
            let mut truth = theirs::$family::ModelForCausalLM::new(&stock, builder(&weights))?;
            for (x, past) in calls()? {
                if past == 0 {
                    model.clear_kv_cache();
                    truth.clear_kv_cache();
                }
                let (logits, expected) = (model.forward(&x, past)?, truth.forward(&x, past)?);
                assert_eq!(logits.dims(), expected.dims());
                let apart = difference(&logits, &expected)?;
                assert!(apart < ROUNDING, "{:?} at {past}: {apart:e}", x.dims());
            }
            Ok(())
        }
    )*};
}

qwen! {
    qwen2: qwen2, crate::common::QWEN2;
    qwen3: qwen3, crate::common::QWEN3;
    qwen3_moe: qwen3_moe, crate::common::QWEN3_MOE;
}

/// The layers without the product to logits.
#[test]
fn hidden_rows() -> Result<()> {
    let text = json("qwen2", crate::common::QWEN2);
    let weights = weights(&Config::from_json(&text)?, 13)?;
    let (x, _) = calls()?.remove(0);
    let config = serde_json::from_str(&text).unwrap();
    let rows = ours::qwen2::Model::new(&config, builder(&weights))?.forward(&x, 0, None)?;
    let stock = serde_json::from_str(&text).unwrap();
    let expected = theirs::qwen2::Model::new(&stock, builder(&weights))?.forward(&x, 0, None)?;
    assert_eq!(rows.dims(), [2, 5, 48]);
    let apart = difference(&rows, &expected)?;
    assert!(apart < ROUNDING, "{apart:e}");
    Ok(())
}

/// A clone of a cache goes its own way.
#[test]
fn a_clone_has_its_own_memory() -> Result<()> {
    let text = json("llama", crate::common::LLAMA);
    let config = serde_json::from_str::<ours::llama::LlamaConfig>(&text).unwrap().into_config(false);
    let weights = weights(&Config::from_json(&text)?, 14)?;
    let model = ours::llama::Llama::load(builder(&weights), &config)?;
    let list = |tokens: &[u32]| Tensor::new(vec![tokens], &Device::Cpu);
    let mut cache = ours::llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
    model.forward(&list(&[1, 2, 3, 4])?, 0, &mut cache)?;
    let mut other = cache.clone();
    model.forward(&list(&[9, 9])?, 2, &mut other)?;
    let after = model.forward(&list(&[5])?, 4, &mut cache)?;
    let mut fresh = ours::llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
    let expected = model.forward(&list(&[1, 2, 3, 4, 5])?, 0, &mut fresh)?;
    assert!(difference(&after, &expected)? < ROUNDING);
    Ok(())
}

#[test]
fn llama() -> Result<()> {
    let text = json("llama", crate::common::LLAMA3);
    let weights = weights(&Config::from_json(&text)?, 12)?;
    let config = serde_json::from_str::<ours::llama::LlamaConfig>(&text).unwrap().into_config(false);
    let stock = serde_json::from_str::<theirs::llama::LlamaConfig>(&text).unwrap().into_config(false);
    let model = ours::llama::Llama::load(builder(&weights), &config)?;
    let truth = theirs::llama::Llama::load(builder(&weights), &stock)?;
    let mut cache = ours::llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
    let mut stock_cache = theirs::llama::Cache::new(true, DType::F32, &stock, &Device::Cpu)?;
    for (x, past) in calls()? {
        if past == 0 {
            stock_cache = theirs::llama::Cache::new(true, DType::F32, &stock, &Device::Cpu)?;
        }
        let (logits, expected) = (model.forward(&x, past, &mut cache)?, truth.forward(&x, past, &mut stock_cache)?);
        let apart = difference(&logits, &expected)?;
        assert!(logits.dims() == expected.dims() && apart < ROUNDING, "{:?} at {past}: {apart:e}", x.dims());
    }
    Ok(())
}
