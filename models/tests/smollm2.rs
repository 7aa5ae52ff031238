//! SmolLM2-135M-Instruct, a GGUF file, against candle_transformers' llama with the same weights dequantised to f32.
//!
//! candle's products with blocks round activations to 8 bits on the CPU. With `CANDLE_DEQUANTIZE_ALL` the decoder's products take the dequantised weights, so that
//! everything else of it is held to a bound of roundings. A second test holds the products with blocks to what 8 bits give.

#[path = "../examples/generate/chat.rs"]
mod chat;
mod common;
#[path = "../examples/generate/tokenizer.rs"]
mod tokenizer;

use candle::quantized::gguf_file::{Content, Value};
use candle::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm_models::models::quantized_llama::ModelWeights;
use candle_tilegemm_models::{Cache, Decoder, Sampler};
use candle_transformers::models::llama;
use common::{best, difference, ROUNDING};
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

const QUESTIONS: [&str; 8] = [
    "What is a matrix?",
    "Name the planets of the solar system.",
    "Write a line about the sea.",
    "How many days has a leap year?",
    "What does a compiler do?",
    "Translate \"good morning\" into French.",
    "1, 1, 2, 3, 5, 8: what comes next?",
    "Why is the sky blue?",
];
/// What 8 bits may change at a step, in the median and at most, over the largest logit: twice what was measured, 0.030 and 0.050. By arithmetic: 32 numbers
/// whose largest is some 2.1 deviations round to steps of 1 / 127 of it, an error of 2.1 / 127 / sqrt(12) = 0.5 % for each number, and those of the 120
/// products in a row add up like random numbers to 5 %.
const EIGHT_BITS: [f32; 2] = [0.06, 0.1];
/// Tokens that each prompt goes on with.
const STEPS: usize = 6;

fn file() -> (BufReader<File>, Content) {
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../third_party/dist/smollm2");
    let own = std::env::var_os("TILEGEMM_SMOLLM2_DIR").filter(|dir| !dir.is_empty());
    let path = own.map_or(fetched, PathBuf::from).join("SmolLM2-135M-Instruct.Q4_1.gguf");
    let Ok(file) = File::open(&path) else {
        panic!("there is no model at {}; run `third_party/fetch.sh smollm2`", path.display())
    };
    let mut file = BufReader::new(file);
    let content = Content::read(&mut file).unwrap();
    (file, content)
}

/// candle's llama with the file's weights in f32. The rows of q and k go back to where Hugging Face has them.
fn truth() -> Result<(llama::Llama, llama::Config)> {
    let (mut file, content) = file();
    let (hidden, heads, kv_heads, head) = (576, 9, 3, 64);
    let mut weights = HashMap::new();
    for name in content.tensor_infos.keys() {
        let tensor = content.tensor(&mut file, name, &Device::Cpu)?.dequantize(&Device::Cpu)?;
        let halves = |heads: usize| {
            tensor.reshape((heads, head / 2, 2, hidden))?.transpose(1, 2)?.reshape((heads * head, hidden))
        };
        let parts: Vec<&str> = name.split('.').collect();
        let (to, tensor) = match parts[..] {
            ["token_embd", _] => ("model.embed_tokens.weight".to_string(), tensor),
            ["output_norm", _] => ("model.norm.weight".to_string(), tensor),
            ["blk", layer, part, _] => {
                let (to, tensor) = match part {
                    "attn_q" => ("self_attn.q_proj", halves(heads)?),
                    "attn_k" => ("self_attn.k_proj", halves(kv_heads)?),
                    "attn_v" => ("self_attn.v_proj", tensor),
                    "attn_output" => ("self_attn.o_proj", tensor),
                    "attn_norm" => ("input_layernorm", tensor),
                    "ffn_norm" => ("post_attention_layernorm", tensor),
                    "ffn_gate" => ("mlp.gate_proj", tensor),
                    "ffn_up" => ("mlp.up_proj", tensor),
                    "ffn_down" => ("mlp.down_proj", tensor),
                    other => panic!("a tensor {other}"),
                };
                (format!("model.layers.{layer}.{to}.weight"), tensor)
            }
            _ => panic!("a tensor {name}"),
        };
        weights.insert(to, tensor);
    }
    let config = llama::Config {
        hidden_size: hidden,
        intermediate_size: 1536,
        vocab_size: 49152,
        num_hidden_layers: 30,
        num_attention_heads: heads,
        num_key_value_heads: kv_heads,
        rms_norm_eps: 1e-5,
        rope_theta: 100_000.0,
        max_position_embeddings: 256,
        tie_word_embeddings: true,
        ..llama::Config::config_7b_v2(false)
    };
    let vb = VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu);
    Ok((llama::Llama::load(vb, &config)?, config))
}

fn prompts() -> Vec<Vec<u32>> {
    let (_, content) = file();
    let Some(Value::String(template)) = content.metadata.get("tokenizer.chat_template") else { panic!("no template") };
    let tokenizer = tokenizer::of(&content).unwrap();
    let encode = |question: &&str| {
        let text = chat::first_turn(question, Some(template.as_str())).unwrap();
        let ids = tokenizer.encode(text.as_str(), false).unwrap().get_ids().to_vec();
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        ids
    };
    QUESTIONS.iter().map(encode).collect()
}

/// The logits after each prompt and after each of `STEPS` tokens, which candle's llama chooses.
struct Told {
    tokens: Vec<u32>,
    logits: Vec<Tensor>,
}

fn told(prompts: &[Vec<u32>]) -> Result<Vec<Told>> {
    let (model, config) = truth()?;
    let tell = |prompt: &Vec<u32>| -> Result<Told> {
        let mut cache = llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
        let mut logits = vec![model.forward(&Tensor::new(vec![&prompt[..]], &Device::Cpu)?, 0, &mut cache)?];
        let mut tokens = vec![];
        for step in 0..STEPS {
            let (token, _) = best(&logits[step])?;
            tokens.push(token);
            let x = Tensor::new(&[[token]], &Device::Cpu)?;
            logits.push(model.forward(&x, prompt.len() + step, &mut cache)?);
        }
        Ok(Told { tokens, logits })
    };
    prompts.iter().map(tell).collect()
}

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

/// One test, as the variable is the process's. candle reads it once on each thread that loads a model.
#[test]
fn smollm2_agrees() {
    let prompts = prompts();
    assert!(prompts.iter().all(|prompt| prompt.len() > 20));
    let told = told(&prompts).unwrap();
    std::env::set_var("CANDLE_DEQUANTIZE_ALL", "1");
    let exact = std::thread::scope(|scope| {
        let exact = || {
            steps(&prompts, &told).unwrap();
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
