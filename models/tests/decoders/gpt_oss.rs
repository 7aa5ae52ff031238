//! The tiny gpt-oss of tests/data/gpt_oss on the GPU in bf16: against transformers' logits, and against the CPU in f32.

use crate::common::difference;
use crate::common::gpt_oss::{builder, expected, text, text_with, BF16};
use crate::common::steps::{expect_graphs, steps, Check};
use crate::families::agrees_within;
use candle::{DType, Device, Result};
use candle_tilegemm_models::{Cache, Config, Decoder, Sampler};
use serde_json::json;

pub const CHECKS: [(&str, Check); 2] = [("gpt_oss_agrees", teacher_forced), ("gpt_oss_steps", stepped)];

/// A decoder of the checkpoint with so many experts a token.
pub fn decoder(per_token: usize, dtype: DType, device: &Device) -> Result<Decoder> {
    let config = Config::from_json(&text_with(&[("/num_experts_per_tok", json!(per_token))]))?;
    Decoder::load(&config, builder(dtype, device)?)
}

/// A text in prompts of several lengths, whose routers are of one mind in bf16, too.
fn teacher_forced(device: &Device) -> Result<()> {
    let (tokens, logits) = expected()?;
    let decoder = Decoder::load(&Config::from_json(&text())?, builder(DType::BF16, device)?)?;
    let mut most = 0f32;
    for count in [1, 5, 16, tokens.len()] {
        let mut cache = Cache::with_capacity(&decoder, 2, 64)?;
        for (i, part) in tokens.chunks(count).enumerate() {
            let ours = decoder.prefill(1, part, &mut cache)?.to_device(&Device::Cpu)?;
            most = most.max(difference(&ours, &logits.get(i * count + part.len() - 1)?)?);
        }
    }
    println!("gpt_oss, teacher-forced: {most:.4}");
    assert!(most < BF16, "{most}");
    Ok(())
}

/// Steps with graphs and without, of all experts: which ones a token chooses may hang on a rounding.
fn stepped(device: &Device) -> Result<()> {
    let (ours, truth) = (decoder(4, DType::BF16, device)?, decoder(4, DType::F32, &Device::Cpu)?);
    agrees_within(BF16, "gpt_oss", &ours, &truth, device)?;
    // Two of four experts, in a cache of fp8, too.
    let decoder = decoder(2, DType::BF16, device)?;
    for dtype in [DType::BF16, DType::F8E4M3] {
        let mut cache = Cache::with_capacity_in(&decoder, 3, 64, dtype)?;
        for slot in 0..3 {
            decoder.prefill(slot, &[7, 8, 9], &mut cache)?;
        }
        steps(&decoder, &mut cache, Sampler::greedy(), 12)?;
        expect_graphs(&cache, device, 1)?;
        assert_eq!(cache.tokens(0)?, cache.tokens(2)?);
    }
    Ok(())
}
