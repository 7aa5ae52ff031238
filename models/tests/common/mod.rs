//! Random models.
#![allow(dead_code)] // each test takes a part

pub mod gguf;
pub mod gpt_oss;
pub mod narrow;
pub mod ranks;
pub mod steps;

use candle::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm_models::Config;
use std::collections::HashMap;

/// The most that roundings in f32 may change of the logits, over the largest: twice what 4,800 random models and prompts of families.rs gave at most. They
/// gave 4e-7 in the median, 1.4e-6 in the 99th percentile and 3.2e-6 at most; the SmolLM2 of smollm2.rs 9e-7 in the median and 1.7e-6 at most.
pub const ROUNDING: f32 = 6e-6;

/// The text of the error that a call has to end in.
pub fn error<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.to_string(),
    }
}

/// Numbers of SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// Numbers around `middle`, at most `reach` away.
    pub fn tensor(&mut self, shape: &[usize], middle: f32, reach: f32) -> Result<Tensor> {
        let uniform = |random: &mut Self| (random.next() >> 40) as f32 / (1 << 24) as f32;
        let count = shape.iter().product();
        let numbers: Vec<f32> = (0..count).map(|_| middle + reach * (2.0 * uniform(self) - 1.0)).collect();
        Tensor::from_vec(numbers, shape, &Device::Cpu)
    }

    pub fn tokens(&mut self, count: usize, vocabulary: usize) -> Vec<u32> {
        (0..count).map(|_| (self.next() % vocabulary as u64) as u32).collect()
    }
}

/// Random weights by Hugging Face's names.
pub fn weights(config: &Config, seed: u64) -> Result<HashMap<String, Tensor>> {
    let mut random = Random(seed);
    let mut all = HashMap::new();
    let mut add = |name: String, shape: &[usize], middle: f32| -> Result<()> {
        let reach = if shape.len() == 2 { (3.0 / shape[1] as f32).sqrt() } else { 0.3 };
        all.insert(name, random.tensor(shape, middle, reach)?);
        Ok(())
    };
    let (hidden, head) = (config.hidden, config.head_size);
    let [q, kv] = [config.heads, config.kv_heads].map(|heads| heads * head);
    add("model.embed_tokens.weight".into(), &[config.vocabulary, hidden], 0.0)?;
    add("model.norm.weight".into(), &[hidden], 1.0)?;
    if !config.tied {
        add("lm_head.weight".into(), &[config.vocabulary, hidden], 0.0)?;
    }
    for layer in 0..config.layers {
        let at = |name: &str| format!("model.layers.{layer}.{name}");
        add(at("input_layernorm.weight"), &[hidden], 1.0)?;
        add(at("post_attention_layernorm.weight"), &[hidden], 1.0)?;
        for (name, rows, columns, bias) in [
            ("q_proj", q, hidden, config.qkv_bias),
            ("k_proj", kv, hidden, config.qkv_bias),
            ("v_proj", kv, hidden, config.qkv_bias),
            ("o_proj", hidden, q, config.o_bias),
        ] {
            add(at(&format!("self_attn.{name}.weight")), &[rows, columns], 0.0)?;
            if bias {
                add(at(&format!("self_attn.{name}.bias")), &[rows], 0.0)?;
            }
        }
        if config.qk_norm {
            add(at("self_attn.q_norm.weight"), &[head], 1.0)?;
            add(at("self_attn.k_norm.weight"), &[head], 1.0)?;
        }
        let mut gated = |prefix: &str, inner: usize| -> Result<()> {
            add(at(&format!("{prefix}.gate_proj.weight")), &[inner, hidden], 0.0)?;
            add(at(&format!("{prefix}.up_proj.weight")), &[inner, hidden], 0.0)?;
            add(at(&format!("{prefix}.down_proj.weight")), &[hidden, inner], 0.0)
        };
        match config.experts.as_ref().filter(|experts| experts.layers[layer]) {
            Some(experts) => {
                for expert in 0..experts.count {
                    gated(&format!("mlp.experts.{expert}"), experts.feed_forward)?;
                }
                add(at("mlp.gate.weight"), &[experts.count, hidden], 0.0)?;
            }
            None => gated("mlp", config.feed_forward)?,
        }
    }
    Ok(all)
}

pub fn builder(weights: &HashMap<String, Tensor>) -> VarBuilder<'static> {
    VarBuilder::from_tensors(weights.clone(), DType::F32, &Device::Cpu)
}

/// The same weights in another type, and on another device.
pub fn builder_on(weights: &HashMap<String, Tensor>, dtype: DType, device: &Device) -> Result<VarBuilder<'static>> {
    let moved = |(name, weight): (&String, &Tensor)| Ok((name.clone(), weight.to_dtype(dtype)?.to_device(device)?));
    Ok(VarBuilder::from_tensors(weights.iter().map(moved).collect::<Result<_>>()?, dtype, device))
}

/// The largest difference over the largest magnitude.
pub fn difference(x: &Tensor, y: &Tensor) -> Result<f32> {
    let (x, y) = (x.flatten_all()?.to_vec1::<f32>()?, y.flatten_all()?.to_vec1::<f32>()?);
    assert_eq!(x.len(), y.len());
    let largest = y.iter().fold(0f32, |most, y| most.max(y.abs()));
    let apart = x.iter().zip(&y).fold(0f32, |most, (x, y)| if (x - y).abs() <= most { most } else { (x - y).abs() });
    Ok(apart / largest)
}

/// The largest logit's token, and how far the next one is below it, over the largest magnitude.
pub fn best(logits: &Tensor) -> Result<(u32, f32)> {
    let logits = logits.flatten_all()?.to_vec1::<f32>()?;
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|x, y| logits[*y].total_cmp(&logits[*x]));
    let largest = logits.iter().fold(0f32, |most, x| most.max(x.abs()));
    Ok((order[0] as u32, (logits[order[0]] - logits[order[1]]) / largest))
}

/// A config.json, from what all families share and `more`.
pub fn json(model_type: &str, more: &str) -> String {
    format!(
        r#"{{"model_type": "{model_type}", "vocab_size": 61, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "max_window_layers": 3, "use_sliding_window": false, "hidden_act": "silu", "bos_token_id": null, "eos_token_id": null,
        {more}}}"#
    )
}

pub const LLAMA: &str = r#""rope_theta": 10000.0, "tie_word_embeddings": false"#;
pub const LLAMA3: &str = r#""rope_theta": 500000.0, "tie_word_embeddings": true, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}"#;
pub const MISTRAL: &str = r#""rope_theta": 10000.0, "sliding_window": 5"#;
pub const QWEN2: &str = r#""rope_theta": 1000000.0, "tie_word_embeddings": false, "sliding_window": 4096"#;
pub const QWEN3: &str = r#""rope_theta": 1000000.0, "tie_word_embeddings": true, "sliding_window": null, "head_dim": 16, "attention_bias": false"#;
pub const QWEN3_MOE: &str = r#""rope_theta": 1000000.0, "tie_word_embeddings": false, "sliding_window": null, "head_dim": 16, "attention_bias": true,
    "decoder_sparse_step": 2, "moe_intermediate_size": 24, "num_experts_per_tok": 2, "num_experts": 5, "norm_topk_prob": true"#;
