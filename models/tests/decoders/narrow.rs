//! Checkpoints with narrow weights on the GPU in bf16, against the CPU in f32 with the numbers that these weights stand for.

use crate::common::narrow::{Model, Stored, ALL};
use crate::common::steps::Check;
use crate::common::{builder_on, difference, weights};
use crate::families::agrees;
use candle::{bail, DType, Device, Result, Tensor};
use candle_tilegemm::nn::narrow::Quantizer;
use candle_tilegemm_models::{Cache, Config, Decoder, Quantization};

pub const CHECKS: [(&str, Check); 3] = [
    ("narrow_checkpoints", checkpoints),
    ("narrow_activations_in_8_bits", in_8_bits),
    ("weights_rounded_at_load", rounded),
];

/// All experts of a layer: which ones a token chooses may hang on a rounding.
const MOE: &str =
    r#", "num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 128, "norm_topk_prob": true"#;

fn checkpoints(device: &Device) -> Result<()> {
    let llamas = ALL.map(|stored| ("llama", "", stored));
    let others = [
        ("qwen2", "", Stored::Awq),
        ("qwen3", "", Stored::Int8),
        ("qwen3_moe", MOE, Stored::Fp8Blocks),
        ("qwen3_moe", MOE, Stored::Mxfp4),
    ];
    for (i, (family, more, stored)) in llamas.into_iter().chain(others).enumerate() {
        let model = Model::new(family, more, stored, 30 + i as u64)?;
        let config = model.config.clone().with_wide_activations();
        let decoder = Decoder::load(&config, model.builder(DType::BF16, device)?)?;
        let truth = Decoder::load(&model.plain, builder_on(&model.numbers, DType::F32, &Device::Cpu)?)?;
        agrees(&format!("{family}, {stored:?}"), &decoder, &truth, device)?;
    }
    Ok(())
}

/// Logits are nearer to those of the CPU with activations in 8 bits than to those with activations as they come, all in bf16: a number with one more rounding may have
/// another neighbour in 8 bits.
fn in_8_bits(device: &Device) -> Result<()> {
    let model = Model::new("llama", "", Stored::Fp8Tensor, 52)?;
    let tokens: Vec<u32> = (0..40).map(|i| i * 7 % 50).collect();
    let logits = |config: &Config, dtype, device: &Device| -> Result<Tensor> {
        let decoder = Decoder::load(config, model.builder(dtype, device)?)?;
        decoder.prefill(0, &tokens, &mut Cache::new(&decoder, 1)?)?.to_device(&Device::Cpu)
    };
    let ours = logits(&model.config, DType::BF16, device)?;
    let of_cpu = logits(&model.config, DType::BF16, &Device::Cpu)?;
    let as_they_come = logits(&model.config.clone().with_wide_activations(), DType::BF16, &Device::Cpu)?;
    let [near, far] = [difference(&ours, &of_cpu)?, difference(&ours, &as_they_come)?];
    // Others have no such products, and multiply by x as it comes.
    let rounds = candle_tilegemm::launch::device_info(0)?.capability / 10 == 9;
    if near >= far && rounds {
        bail!("{near:e} from activations in 8 bits, {far:e} from activations as they come");
    }
    Ok(())
}

/// The CPU rounds the same numbers: those that bf16 has.
fn rounded(device: &Device) -> Result<()> {
    let plain = crate::common::steps::config("llama", "")?;
    let wide = builder_on(&weights(&plain, 51)?, DType::BF16, &Device::Cpu)?;
    for to in [Quantizer::Int4 { group: Some(128), zeros: false }, Quantizer::Int8 { group: None }, Quantizer::Mxfp4] {
        let config = plain.clone().with_quantization(Quantization::Rounded(to));
        let decoder = Decoder::load(&config, wide.clone().set_device(device.clone()).set_dtype(DType::BF16))?;
        let truth = Decoder::load(&config, wide.clone().set_dtype(DType::F32))?;
        agrees(&format!("{to:?}"), &decoder, &truth, device)?;
    }
    Ok(())
}
