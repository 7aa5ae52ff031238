//! SmolLM2-135M-Instruct, a GGUF file, and what candle_transformers' llama says with its weights dequantised to f32.

#[path = "../../examples/generate/chat.rs"]
#[allow(dead_code)] // the example reads folders, too
mod chat;
#[path = "../../examples/generate/tokenizer.rs"]
mod tokenizer;
#[path = "../../examples/perplexity/weights.rs"]
mod weights;

use crate::common::best;
use candle::quantized::gguf_file::Content;
use candle::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama;
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use weights::of_hugging_face;

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
const STYLES: [&str; 8] = [
    "",
    " Answer in one sentence.",
    " Explain it to a child.",
    " Give an example.",
    " Write a poem about it.",
    " Be brief.",
    " Answer in French.",
    " Use numbers.",
];
/// Tokens that each prompt goes on with.
pub const STEPS: usize = 6;

pub fn file() -> (BufReader<File>, Content) {
    let path = weights::smollm2();
    let Ok(file) = File::open(&path) else {
        panic!("there is no model at {}; run `third_party/fetch.sh smollm2`", path.display())
    };
    let mut file = BufReader::new(file);
    let content = Content::read(&mut file).unwrap();
    (file, content)
}

/// candle's llama with the file's weights in f32.
fn truth(device: &Device) -> Result<(llama::Llama, llama::Config)> {
    let (mut file, content) = file();
    let (hidden, heads, kv_heads, head) = (576, 9, 3, 64);
    let mut weights = HashMap::new();
    for name in content.tensor_infos.keys() {
        let tensor = content.tensor(&mut file, name, device)?.dequantize(device)?;
        let (to, tensor) = of_hugging_face(name, tensor, [heads, kv_heads, head])?;
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
    let vb = VarBuilder::from_tensors(weights, DType::F32, device);
    Ok((llama::Llama::load(vb, &config)?, config))
}

/// Questions in the form of its chat template: eight, or each of them in eight styles.
pub fn prompts(styles: usize) -> Vec<Vec<u32>> {
    let (_, content) = file();
    let template = chat::Template::of_gguf(&content).unwrap();
    let tokenizer = tokenizer::of(&content).unwrap();
    let encode = |question: String| {
        let text = template.first_turn(&question).unwrap();
        let ids = tokenizer.encode(text.as_str(), false).unwrap().get_ids().to_vec();
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        ids
    };
    let of = |style: &str| QUESTIONS.map(|question| encode(format!("{question}{style}")));
    STYLES[..styles].iter().flat_map(|style| of(style)).collect()
}

/// The logits after each prompt and after each of `STEPS` tokens, which candle's llama chooses.
pub struct Told {
    pub tokens: Vec<u32>,
    pub logits: Vec<Tensor>,
}

pub fn told(prompts: &[Vec<u32>], device: &Device) -> Result<Vec<Told>> {
    let (model, config) = truth(device)?;
    let tell = |prompt: &Vec<u32>| -> Result<Told> {
        let mut cache = llama::Cache::new(true, DType::F32, &config, device)?;
        let mut forward = |tokens: &[u32], past: usize| {
            model.forward(&Tensor::new(vec![tokens], device)?, past, &mut cache)?.to_device(&Device::Cpu)
        };
        let mut logits = vec![forward(prompt, 0)?];
        let mut tokens = vec![];
        for step in 0..STEPS {
            let (token, _) = best(&logits[step])?;
            tokens.push(token);
            logits.push(forward(&[token], prompt.len() + step)?);
        }
        Ok(Told { tokens, logits })
    };
    prompts.iter().map(tell).collect()
}
