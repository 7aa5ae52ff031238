//! A GGUF file of a llama, and the models that are made of it.

use crate::format::Format;
use crate::weights::of_hugging_face;
use anyhow::{ensure, Context, Result};
use candle::quantized::gguf_file::{self, Content, Value};
use candle::quantized::QTensor;
use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm::nn::narrow::{QuantWeight, Quantizer};
use candle_tilegemm_models::{models as ours, Cache, Config, Decoder, Quantization};
use candle_transformers::models as stock;
use std::collections::HashMap;
use std::io::Cursor;
use std::path::Path;

/// What both crates' models do.
pub trait Model {
    /// The logits of each sequence, (sequences, vocabulary), after a token of each, (sequences, 1), at this position.
    fn forward(&mut self, tokens: &Tensor, position: usize) -> candle::Result<Tensor>;
}

impl Model for stock::quantized_llama::ModelWeights {
    fn forward(&mut self, tokens: &Tensor, position: usize) -> candle::Result<Tensor> {
        Self::forward(self, tokens, position)
    }
}

impl Model for ours::quantized_llama::ModelWeights {
    fn forward(&mut self, tokens: &Tensor, position: usize) -> candle::Result<Tensor> {
        Self::forward(self, tokens, position)
    }
}

impl Model for (stock::llama::Llama, stock::llama::Cache) {
    fn forward(&mut self, tokens: &Tensor, position: usize) -> candle::Result<Tensor> {
        self.0.forward(tokens, position, &mut self.1)
    }
}

impl Model for (ours::llama::Llama, ours::llama::Cache) {
    fn forward(&mut self, tokens: &Tensor, position: usize) -> candle::Result<Tensor> {
        self.0.forward(tokens, position, &mut self.1)
    }
}

impl Model for (Decoder, Cache) {
    fn forward(&mut self, tokens: &Tensor, _: usize) -> candle::Result<Tensor> {
        let tokens = tokens.flatten_all()?.to_vec1::<u32>()?;
        let (decoder, cache) = self;
        let of_slot = |(slot, token): (usize, &u32)| decoder.prefill(slot, &[*token], cache);
        Tensor::stack(&tokens.iter().enumerate().map(of_slot).collect::<candle::Result<Vec<_>>>()?, 0)
    }
}

pub struct File {
    bytes: Vec<u8>,
    pub content: Content,
    config: Config,
}

impl File {
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path)
            .with_context(|| format!("cannot read {}; `third_party/fetch.sh smollm2` has it", path.display()))?;
        let content = Content::read(&mut Cursor::new(&bytes))?;
        let config = Config::from_gguf(&content)?;
        let is_llama =
            matches!(content.metadata.get("general.architecture"), Some(Value::String(arch)) if arch == "llama");
        ensure!(
            is_llama && config.tied,
            "{}: expected a llama without a head of its own, such as SmolLM2",
            path.display()
        );
        Ok(Self { bytes, content, config })
    }

    /// A model with the file's weights in this format, for so many sequences.
    pub fn model(&self, format: Format, is_ours: bool, sequences: usize, device: &Device) -> Result<Box<dyn Model>> {
        match format {
            Format::File => self.quantised(&self.bytes, is_ours, device),
            Format::Blocks(_) => self.quantised(&self.requantised(format)?, is_ours, device),
            Format::Dense(dtype) => self.dense(self.weights(dtype, device)?, dtype, is_ours, device),
            Format::Rounded(to) => self.rounded(to, is_ours, sequences, device),
        }
    }

    fn rounded(&self, to: Quantizer, is_ours: bool, sequences: usize, device: &Device) -> Result<Box<dyn Model>> {
        let dtype = if device.is_cpu() { DType::F32 } else { DType::BF16 };
        let mut weights = self.weights(dtype, device)?;
        if !is_ours {
            for (_, weight) in weights.iter_mut().filter(|(name, _)| name.ends_with("_proj.weight")) {
                *weight = QuantWeight::quantize(weight, to)?.to_tensor()?.to_dtype(dtype)?.to_device(device)?;
            }
            return self.dense(weights, dtype, false, device);
        }
        let Config { hidden, layers, heads, kv_heads, feed_forward, vocabulary, eps, rope_base, max_positions, .. } =
            self.config;
        let config = Config::from_json(&format!(
            r#"{{"model_type": "llama", "hidden_size": {hidden}, "num_hidden_layers": {layers}, "num_attention_heads": {heads}, "num_key_value_heads": {kv_heads},
            "intermediate_size": {feed_forward}, "vocab_size": {vocabulary}, "rms_norm_eps": {eps:e}, "rope_theta": {rope_base:.1}, "tie_word_embeddings": true,
            "max_position_embeddings": {max_positions}}}"#
        ))?;
        let config = config.with_quantization(Quantization::Rounded(to));
        let decoder = Decoder::load(&config, VarBuilder::from_tensors(weights, dtype, device))?;
        let cache = Cache::new(&decoder, sequences)?;
        Ok(Box::new((decoder, cache)))
    }

    fn quantised(&self, bytes: &[u8], is_ours: bool, device: &Device) -> Result<Box<dyn Model>> {
        let mut reader = Cursor::new(bytes);
        let content = Content::read(&mut reader)?;
        Ok(match is_ours {
            true => Box::new(ours::quantized_llama::ModelWeights::from_gguf(content, &mut reader, device)?),
            false => Box::new(stock::quantized_llama::ModelWeights::from_gguf(content, &mut reader, device)?),
        })
    }

    fn tensor(&self, name: &str) -> Result<QTensor> {
        Ok(self.content.tensor(&mut Cursor::new(&self.bytes), name, &Device::Cpu)?)
    }

    /// The file with its matrices in another format.
    fn requantised(&self, format: Format) -> Result<Vec<u8>> {
        let of = |name: &String| -> Result<(String, QTensor)> {
            let tensor = self.tensor(name)?;
            Ok((
                name.clone(),
                match format {
                    Format::Blocks(format) if tensor.rank() == 2 => {
                        QTensor::quantize(&tensor.dequantize(&Device::Cpu)?, format)?
                    }
                    _ => tensor,
                },
            ))
        };
        let tensors = self.content.tensor_infos.keys().map(of).collect::<Result<Vec<_>>>()?;
        let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let metadata: Vec<(&str, &Value)> =
            self.content.metadata.iter().map(|(name, value)| (name.as_str(), value)).collect();
        let mut bytes = Cursor::new(vec![]);
        gguf_file::write(&mut bytes, &metadata, &tensors)?;
        Ok(bytes.into_inner())
    }

    fn dense(
        &self,
        weights: HashMap<String, Tensor>,
        dtype: DType,
        is_ours: bool,
        device: &Device,
    ) -> Result<Box<dyn Model>> {
        let Config { hidden, layers, heads, kv_heads, feed_forward, vocabulary, eps, rope_base, max_positions, .. } =
            self.config;
        let config = stock::llama::Config {
            hidden_size: hidden,
            intermediate_size: feed_forward,
            vocab_size: vocabulary,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            rms_norm_eps: eps,
            rope_theta: rope_base as f32,
            max_position_embeddings: max_positions,
            tie_word_embeddings: true,
            ..stock::llama::Config::config_7b_v2(false)
        };
        let weights = VarBuilder::from_tensors(weights, dtype, device);
        if !is_ours {
            let cache = stock::llama::Cache::new(true, dtype, &config, device)?;
            return Ok(Box::new((stock::llama::Llama::load(weights, &config)?, cache)));
        }
        let config = ours::llama::Config {
            hidden_size: hidden,
            intermediate_size: feed_forward,
            vocab_size: vocabulary,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            rms_norm_eps: eps,
            rope_theta: rope_base as f32,
            max_position_embeddings: max_positions,
            tie_word_embeddings: true,
            ..ours::llama::Config::config_7b_v2(false)
        };
        let cache = ours::llama::Cache::new(true, dtype, &config, device)?;
        Ok(Box::new((ours::llama::Llama::load(weights, &config)?, cache)))
    }

    /// The weights by Hugging Face's names.
    fn weights(&self, dtype: DType, device: &Device) -> Result<HashMap<String, Tensor>> {
        let Config { heads, kv_heads, head_size, .. } = self.config;
        let of = |name: &String| {
            let tensor = self.tensor(name)?.dequantize(&Device::Cpu)?;
            let (to, tensor) = of_hugging_face(name, tensor, [heads, kv_heads, head_size])?;
            Ok((to, tensor.to_dtype(dtype)?.to_device(device)?))
        };
        self.content.tensor_infos.keys().map(of).collect()
    }
}
