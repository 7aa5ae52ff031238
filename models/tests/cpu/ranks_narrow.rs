//! Decoders with narrow weights of a checkpoint that several ranks compute, against the same decoders whole: parts of the same numbers.

use crate::common::narrow::{Model, Stored, ALL};
use crate::common::ranks::{self, builder, on_ranks};
use crate::common::{difference, error, gpt_oss};
use candle::{DType, Device, Result, Tensor};
use candle_tilegemm::nn::linear_quantized_no_bias;
use candle_tilegemm_models::{Cache, Config, Decoder, ExpertSplit, Quantization, Split};

const ACT_ORDER: Stored = Stored::Gptq { act_order: true };
/// Sizes that 4 ranks divide, in whole blocks.
const FOUR: &str = r#", "num_key_value_heads": 4, "intermediate_size": 512"#;
const MOE: &str =
    r#", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": true"#;

fn agrees(family: &str, more: &str, stored: Stored, counts: &[usize], seed: u64) -> Result<()> {
    let model = Model::new(family, more, stored, seed)?;
    assert!(matches!(&model.config.quantization, Quantization::Stored(config) if config.method().is_some()));
    let config = model.config.clone().with_wide_activations();
    ranks::agrees(&config, counts, |group| model.of_rank(group))
        .map_err(|error| error.context(format!("{family}, {stored:?}")))
}

/// The errors of all ranks.
fn refusals(config: &Config, model: &Model, ranks: usize) -> Result<Vec<String>> {
    let all = on_ranks(ranks, |group| Decoder::load_rank(config, group, model.of_rank(group)?).map(drop))?;
    Ok(all.into_iter().map(error).collect())
}

#[test]
fn a_llama_of_every_format() -> Result<()> {
    for (i, stored) in ALL.into_iter().enumerate().filter(|(_, stored)| *stored != ACT_ORDER) {
        agrees("llama", "", stored, &[2], i as u64)?;
        agrees("llama", FOUR, stored, &[2, 4], 10 + i as u64)?;
    }
    Ok(())
}

#[test]
fn biases_count_once() -> Result<()> {
    agrees("qwen2", "", Stored::Awq, &[2], 21)?;
    for stored in [Stored::Packed, Stored::Fp8Tensor] {
        agrees("llama", &format!(r#"{FOUR}, "attention_bias": true"#), stored, &[4], 22)?;
    }
    Ok(())
}

#[test]
fn experts() -> Result<()> {
    for stored in [Stored::Fp8Blocks, Stored::Fp8Tensor, Stored::Packed, Stored::Int8, Stored::Mxfp4] {
        agrees("qwen3_moe", MOE, stored, &[2], 23)?;
    }
    Ok(())
}

/// With biases of all products, and sinks.
#[test]
fn gpt_oss_with_biases() -> Result<()> {
    let config = Config::from_json(&gpt_oss::text())?;
    let file = std::fs::read(gpt_oss::path("model.safetensors"))?;
    ranks::agrees(&config, &[2], |group| builder(&file, group))?;
    ranks::agrees_by_expert(&config, &[2], ExpertSplit::Whole, |group| builder(&file, group))
}

#[test]
fn whole_experts() -> Result<()> {
    let four = format!(r#", "num_key_value_heads": 4{MOE}"#);
    for stored in ALL.into_iter().filter(|stored| *stored != ACT_ORDER) {
        let model = Model::new("qwen3_moe", &four, stored, 29)?;
        let config = model.config.clone().with_wide_activations();
        ranks::agrees_by_expert(&config, &[2, 4], ExpertSplit::Whole, |group| model.of_rank(group))
            .map_err(|error| error.context(format!("{stored:?}")))?;
    }
    Ok(())
}

/// 48 inner numbers on each rank, in blocks of 32: unless told otherwise, ranks have whole experts.
#[test]
fn experts_whose_blocks_ranks_cut_stay_whole() -> Result<()> {
    let more = MOE.replace("128", "96");
    for (stored, cut) in [
        (Stored::Fp8Blocks, "gate_proj: a rank has 48 rows, and 32 rows are one block"),
        (Stored::Packed, "down_proj: a rank has 48 columns, and 32 columns are one block"),
        (Stored::Gptq { act_order: false }, "down_proj: a rank has 48 columns, and 32 columns are one block"),
        (Stored::Awq, "down_proj: a rank has 48 columns, and 32 columns are one block"),
        (Stored::Mxfp4, "down_proj: a rank has 48 columns, and 32 columns are one block"),
    ] {
        let model = Model::new("qwen3_moe", &more, stored, 27)?;
        let config = model.config.clone().with_wide_activations();
        ranks::agrees_by_expert(&config, &[2], ExpertSplit::Auto, |group| model.of_rank(group))
            .map_err(|error| error.context(format!("{stored:?}")))?;
        for of_rank in on_ranks(2, |group| {
            let split = Split::from(group).with_experts(ExpertSplit::Inner);
            Decoder::load_rank(&config, split, model.of_rank(group)?).map(drop)
        })? {
            let text = error(of_rank);
            assert!(text.contains(&format!("model.layers.0.mlp.experts.0.{cut}")), "{stored:?}: {text}");
        }
    }
    Ok(())
}

/// A rank's rows of x have factors of their own: logits are near those of one card, and the same on all ranks.
#[test]
fn activations_in_8_bits() -> Result<()> {
    let model = Model::new("llama", "", Stored::Fp8Tensor, 24)?;
    let prompt = |decoder: Decoder| decoder.prefill(0, &[3, 4, 5], &mut Cache::new(&decoder, 1)?);
    let whole = prompt(Decoder::load(&model.config, model.builder(DType::F32, &Device::Cpu)?)?)?;
    let all = on_ranks(2, |group| prompt(Decoder::load_rank(&model.config, group, model.of_rank(group)?)?))?;
    let all: Vec<Tensor> = all.into_iter().collect::<Result<_>>()?;
    let apart = difference(&all[0], &whole)?;
    assert!((1e-4..0.3).contains(&apart), "{apart:e}");
    assert_eq!(all[0].to_vec1::<f32>()?, all[1].to_vec1::<f32>()?);
    Ok(())
}

#[test]
fn cut_blocks_are_refused_by_name() -> Result<()> {
    // 176 inner numbers on each rank.
    let more = r#", "intermediate_size": 352"#;
    for (stored, module, size, block) in [
        (Stored::Fp8Blocks, "gate_proj", "176 rows", "32 rows"),
        (Stored::Gptq { act_order: false }, "down_proj", "176 columns", "32 columns"),
        (Stored::Awq, "down_proj", "176 columns", "32 columns"),
        (Stored::Packed, "down_proj", "176 columns", "32 columns"),
        (Stored::Mxfp4, "down_proj", "176 columns", "32 columns"),
    ] {
        let model = Model::new("llama", more, stored, 25)?;
        for (rank, text) in refusals(&model.config, &model, 2)?.into_iter().enumerate() {
            let expected =
                format!("rank {rank} of 2\nmodel.layers.0.mlp.{module}: a rank has {size}, and {block} are one");
            assert!(text.contains(&expected), "{stored:?}: {text}");
        }
    }
    // What has no blocks along the inner numbers is read.
    for stored in [Stored::Fp8Tensor, Stored::Int8] {
        agrees("llama", more, stored, &[2], 26)?;
    }
    Ok(())
}

#[test]
fn act_order_is_refused_along_columns_alone() -> Result<()> {
    let model = Model::new("llama", "", ACT_ORDER, 28)?;
    for text in refusals(&model.config, &model, 2)? {
        let expected =
            "self_attn.o_proj.g_idx: 256 columns are in act order, and a rank has 128 of them; expected one rank";
        assert!(text.contains(expected) && text.contains("desc_act: false"), "{text}");
    }
    let Quantization::Stored(config) = &model.config.quantization else { panic!("no narrow weights") };
    let path = "model.layers.1.mlp.up_proj";
    let parts = on_ranks(2, |group| {
        let layer = linear_quantized_no_bias(256, 192, config, model.of_rank(group)?.pp(path))?;
        let weight = layer.weight().expect("narrow weights");
        assert!(weight.gather().is_some());
        weight.to_tensor()
    })?;
    let whole = Tensor::cat(&parts.into_iter().collect::<Result<Vec<_>>>()?, 0)?;
    assert_eq!(whole.to_vec2::<f32>()?, model.numbers[&format!("{path}.weight")].to_vec2::<f32>()?);
    Ok(())
}
