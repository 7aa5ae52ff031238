//! Nineteen families of candle-transformers, small, with seeded random weights: the same numbers on every device.

use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models as m;
use serde::de::DeserializeOwned;
use serde_json::{json, Value};
use weights::Seeded;

#[path = "../../cli/src/bench/weights.rs"]
mod weights;

/// Sequences, and tokens of each prompt: no multiple of a tile.
const BATCH: usize = 2;
const TOKENS: usize = 37;
const VOCABULARY: usize = 1000;
/// Height and width of images; a multiple of each model's patches.
const IMAGE: usize = 64;

/// A model that runs a prompt and, where the model decodes, a token more; images and sound for models of these.
pub struct Family {
    pub name: &'static str,
    pub run: fn(&VarBuilder) -> Result<Vec<Tensor>>,
}

pub const FAMILIES: [Family; 19] = [
    Family { name: "bert", run: bert },
    Family { name: "clip", run: clip },
    Family { name: "convnext", run: convnext },
    Family { name: "distilbert", run: distilbert },
    Family { name: "falcon", run: falcon },
    Family { name: "gemma", run: gemma },
    Family { name: "gemma2", run: gemma2 },
    Family { name: "llama", run: llama },
    Family { name: "mamba", run: mamba },
    Family { name: "mistral", run: mistral },
    Family { name: "mixtral", run: mixtral },
    Family { name: "phi3", run: phi3 },
    Family { name: "qwen2", run: qwen2 },
    Family { name: "qwen3", run: qwen3 },
    Family { name: "resnet", run: resnet },
    Family { name: "starcoder2", run: starcoder2 },
    Family { name: "t5", run: t5 },
    Family { name: "vit", run: vit },
    Family { name: "whisper", run: whisper },
];

/// The weights of a model in `dtype`, rounded to `rounded_to` first.
pub fn weights(dtype: DType, rounded_to: DType, device: &Device) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Seeded { by_cpu: true, rounded_to: Some(rounded_to) }), dtype, device.clone())
}

/// A configuration by the names of its file.
fn config<T: DeserializeOwned>(fields: Value) -> T {
    serde_json::from_value(fields).unwrap_or_else(|error| panic!("a configuration: {error}"))
}

/// The fields that most decoders have, and those of one model.
fn decoder(own: Value) -> Value {
    let mut fields = json!({
        "vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    });
    let all = fields.as_object_mut().expect("an object");
    all.extend(own.as_object().expect("an object").clone());
    fields
}

fn ids(tokens: usize, from: usize, device: &Device) -> Result<Tensor> {
    let ids = (0..BATCH * tokens).map(|i| ((from + i) * 7919 % VOCABULARY) as u32).collect();
    Tensor::from_vec(ids, (BATCH, tokens), device)
}

/// Numbers between -1 and 1 that repeat at no short distance.
fn waves(shape: &[usize], vb: &VarBuilder) -> Result<Tensor> {
    let numbers: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i as f32 * 0.7389).sin()).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(vb.dtype())?.to_device(vb.device())
}

fn image(vb: &VarBuilder, side: usize) -> Result<Tensor> {
    waves(&[BATCH, 3, side, side], vb)
}

/// The logits after a prompt, and after one token more.
fn prompt_and_token(device: &Device, mut forward: impl FnMut(&Tensor, usize) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    Ok(vec![forward(&ids(TOKENS, 0, device)?, 0)?, forward(&ids(1, TOKENS, device)?, TOKENS)?])
}

fn llama(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let config = config::<m::llama::LlamaConfig>(decoder(json!({}))).into_config(false);
    let mut cache = m::llama::Cache::new(true, vb.dtype(), &config, vb.device())?;
    let model = m::llama::Llama::load(vb.clone(), &config)?;
    prompt_and_token(vb.device(), |ids, at| model.forward(ids, at, &mut cache))
}

fn mistral(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let mut model = m::mistral::Model::new(&config(decoder(json!({"use_flash_attn": false}))), vb.clone())?;
    prompt_and_token(vb.device(), |ids, at| model.forward(ids, at))
}

fn mixtral(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let own =
        json!({"use_flash_attn": false, "sliding_window": 4096, "num_experts_per_tok": 2, "num_local_experts": 4});
    let mut model = m::mixtral::Model::new(&config(decoder(own)), vb.clone())?;
    prompt_and_token(vb.device(), |ids, at| model.forward(ids, at))
}

fn qwen2(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let own = json!({"sliding_window": 4096, "max_window_layers": 2, "tie_word_embeddings": false, "use_sliding_window": false});
    let mut model = m::qwen2::ModelForCausalLM::new(&config(decoder(own)), vb.clone())?;
    prompt_and_token(vb.device(), |ids, at| model.forward(ids, at))
}

fn qwen3(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let own = json!({
        "head_dim": 96, "attention_bias": false, "max_window_layers": 2, "tie_word_embeddings": true, "use_sliding_window": false,
    });
    let mut model = m::qwen3::ModelForCausalLM::new(&config(decoder(own)), vb.clone())?;
    prompt_and_token(vb.device(), |ids, at| model.forward(ids, at))
}

fn gemma(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let own = json!({"attention_bias": false, "head_dim": 64, "hidden_act": "gelu"});
    let mut model = m::gemma::Model::new(false, &config(decoder(own)), vb.clone())?;
    prompt_and_token(vb.device(), |ids, at| model.forward(ids, at))
}

fn gemma2(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let own = json!({
        "attention_bias": false, "head_dim": 64, "hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 64,
    });
    let mut model = m::gemma2::Model::new(false, &config(decoder(own)), vb.clone())?;
    prompt_and_token(vb.device(), |ids, at| model.forward(ids, at))
}

fn phi3(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let mut model = m::phi3::Model::new(&config(decoder(json!({}))), vb.clone())?;
    prompt_and_token(vb.device(), |ids, at| model.forward(ids, at))
}

fn starcoder2(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let own = json!({"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "use_bias": true});
    let mut model = m::starcoder2::Model::new(&config(decoder(own)), vb.clone())?;
    prompt_and_token(vb.device(), |ids, at| model.forward(ids, at))
}

/// One sequence: candle's attention of one head of keys takes no more.
fn falcon(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let config = m::falcon::Config {
        vocab_size: VOCABULARY,
        hidden_size: 256,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        ..m::falcon::Config::falcon7b()
    };
    let mut model = m::falcon::Falcon::load(vb.clone(), config)?;
    prompt_and_token(vb.device(), |ids, _| model.forward(&ids.narrow(0, 0, 1)?))
}

/// A token of one sequence at a time: candle's state takes no more.
fn mamba(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let fields = json!({"d_model": 256, "n_layer": 2, "vocab_size": VOCABULARY, "pad_vocab_size_multiple": 8});
    let config: m::mamba::Config = config(fields);
    let model = m::mamba::Model::new(&config, vb.pp("backbone"))?;
    let mut state = m::mamba::State::new(1, &config, vb.dtype(), vb.device())?;
    (0..5).map(|at| model.forward(&ids(1, at, vb.device())?.get(0)?, &mut state)).collect()
}

fn bert(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let config = m::bert::Config {
        vocab_size: VOCABULARY,
        hidden_size: 256,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 1024,
        ..m::bert::Config::default()
    };
    let ids = ids(TOKENS, 0, vb.device())?;
    Ok(vec![m::bert::BertModel::load(vb.clone(), &config)?.forward(&ids, &ids.zeros_like()?, None)?])
}

fn distilbert(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let config = config(json!({
        "vocab_size": VOCABULARY, "dim": 256, "n_layers": 2, "n_heads": 4, "hidden_dim": 1024, "activation": "gelu",
        "max_position_embeddings": 128, "initializer_range": 0.02, "pad_token_id": 0, "model_type": "distilbert",
    }));
    let (ids, nothing) = (ids(TOKENS, 0, vb.device())?, Tensor::zeros((1, 1, TOKENS, TOKENS), DType::U8, vb.device())?);
    Ok(vec![m::distilbert::DistilBertModel::load(vb.clone(), &config)?.forward(&ids, &nothing)?])
}

fn t5(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let config = m::t5::Config {
        vocab_size: VOCABULARY,
        d_model: 256,
        d_ff: 1024,
        num_layers: 2,
        num_heads: 4,
        ..Default::default()
    };
    let mut model = m::t5::T5ForConditionalGeneration::load(vb.clone(), &config)?;
    let question = ids(TOKENS, 0, vb.device())?;
    Ok(vec![model.forward(&question, &ids(3, 11, vb.device())?)?, model.forward(&question, &ids(1, 17, vb.device())?)?])
}

fn vit(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let config = config(json!({
        "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 1024, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12, "image_size": IMAGE, "patch_size": 8, "num_channels": 3, "qkv_bias": true,
    }));
    Ok(vec![m::vit::Model::new(&config, 100, vb.clone())?.forward(&image(vb, IMAGE)?)?])
}

/// A model of texts and one of images.
fn clip(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let mut config = m::clip::ClipConfig::vit_base_patch32();
    (config.text_config.num_hidden_layers, config.vision_config.num_hidden_layers) = (2, 2);
    config.text_config.vocab_size = VOCABULARY;
    let model = m::clip::ClipModel::new(vb.clone(), &config)?;
    let image = image(vb, config.image_size)?;
    Ok(vec![model.get_image_features(&image)?, model.get_text_features(&ids(TOKENS, 0, vb.device())?)?])
}

fn resnet(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    Ok(vec![m::resnet::resnet18(100, vb.clone())?.forward(&image(vb, IMAGE)?)?])
}

fn convnext(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    Ok(vec![m::convnext::convnext(&m::convnext::Config::atto(), 100, vb.clone())?.forward(&image(vb, IMAGE)?)?])
}

/// Convolutions, an encoder of sound, and a decoder that looks at its result.
fn whisper(vb: &VarBuilder) -> Result<Vec<Tensor>> {
    let config: m::whisper::Config = config(json!({
        "num_mel_bins": 80, "max_source_positions": 50, "d_model": 256, "encoder_attention_heads": 4, "encoder_layers": 2,
        "vocab_size": VOCABULARY, "max_target_positions": 64, "decoder_attention_heads": 4, "decoder_layers": 2,
    }));
    let mut model = m::whisper::model::Whisper::load(vb, config)?;
    let sound = model.encoder.forward(&waves(&[BATCH, 80, 100], vb)?, true)?;
    let text = model.decoder.forward(&ids(TOKENS, 0, vb.device())?, &sound, true)?;
    Ok(vec![model.decoder.final_linear(&text)?])
}
