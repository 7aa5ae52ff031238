//! The decoders of candle-transformers, unmodified, on candle's own kernels.

use super::super::footprint::{bytes_to_run, Case};
use super::blocks;
use super::pool::Pool;
use super::size::{Size, Weights};
use super::subject::{dtype, Subject};
use crate::Result;
use candle::{bail, DType, Device, Tensor, D};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{self, Llama};
use candle_transformers::models::{quantized_llama, qwen3_moe};
use std::time::Instant;

pub struct Stock {
    size: Size,
    device: Device,
    /// Without a sequence.
    empty: Model,
    /// The sequences of `fill`.
    filled: Option<Filled>,
}

#[derive(Clone)]
struct Filled {
    model: Model,
    context: usize,
    /// The first token after each.
    tokens: Tensor,
}

/// A model and its sequences. A clone shares the tensors, and what one appends the other does not see.
#[derive(Clone)]
enum Model {
    Llama(Llama, llama::Cache),
    Quantised(quantized_llama::ModelWeights),
    Experts(qwen3_moe::ModelForCausalLM),
}

impl Model {
    /// The logits of the last token of each sequence, (sequences, vocabulary). The first token is at `position`.
    fn forward(&mut self, tokens: &Tensor, position: usize) -> candle::Result<Tensor> {
        match self {
            Self::Llama(model, cache) => model.forward(tokens, position, cache),
            Self::Quantised(model) => model.forward(tokens, position),
            Self::Experts(model) => model.forward(tokens, position)?.squeeze(1),
        }
    }
}

impl Stock {
    pub fn load(size: &Size, device: &Device) -> Result<Self> {
        let dtype = dtype(device);
        let builder = || -> candle::Result<VarBuilder<'static>> {
            Ok(VarBuilder::from_backend(Box::new(Pool::new(dtype, device)?), dtype, device.clone()))
        };
        let empty = match (size.weights, size.experts) {
            (Weights::Dense, None) => {
                let config = size.llama_config()?;
                let cache = llama::Cache::new(true, dtype, &config, device)?;
                Model::Llama(Llama::load(builder()?, &config)?, cache)
            }
            (Weights::Dense, Some(_)) => {
                Model::Experts(qwen3_moe::ModelForCausalLM::new(&size.qwen3_moe_config()?, builder()?)?)
            }
            _ => {
                let (content, mut bytes) = blocks::file(size);
                Model::Quantised(quantized_llama::ModelWeights::from_gguf(content, &mut bytes, device)?)
            }
        };
        device.synchronize()?;
        Ok(Self { size: size.clone(), device: device.clone(), empty, filled: None })
    }

    /// The longest sequence that a model of this size takes.
    pub fn longest(size: &Size) -> usize {
        match size.weights {
            Weights::Dense | Weights::Narrow(_) => size.positions,
            _ => quantized_llama::MAX_SEQ_LEN.min(size.positions),
        }
    }

    fn logits(&self, prompt: &[u32]) -> candle::Result<Tensor> {
        self.empty.clone().forward(&Tensor::new(prompt, &self.device)?.unsqueeze(0)?, 0)
    }

    fn bytes(&self, prompt: usize, sequences: usize, decode: usize) -> f64 {
        let size = &self.size;
        let config = llama::Config {
            // Wider than the model where heads are wider.
            hidden_size: size.heads * size.head,
            intermediate_size: size.inner * size.experts.map_or(1, |experts| experts.per_token),
            vocab_size: size.vocabulary,
            num_hidden_layers: size.layers,
            num_attention_heads: size.heads,
            num_key_value_heads: size.kv_heads,
            ..llama::Config::config_7b_v2(false)
        };
        let dtype = if size.weights == Weights::Dense { dtype(&self.device) } else { DType::F32 };
        bytes_to_run(&config, dtype, &Case { prompt, batch: sequences, decode })
    }
}

fn largest(logits: &Tensor) -> candle::Result<Tensor> {
    logits.argmax_keepdim(D::Minus1)
}

impl Subject for Stock {
    fn prefill(&mut self, prompt: &[u32]) -> candle::Result<Tensor> {
        self.logits(prompt)?.to_dtype(DType::F32)?.flatten_all()
    }

    fn first_token(&mut self, prompt: &[u32]) -> candle::Result<u32> {
        largest(&self.logits(prompt)?)?.flatten_all()?.get(0)?.to_scalar()
    }

    fn bytes_to_prefill(&self, tokens: usize) -> f64 {
        self.bytes(tokens, 1, 0)
    }

    fn bytes_to_decode(&self, context: usize, sequences: usize) -> f64 {
        match self.fills_by_steps(sequences) {
            true => self.bytes(1, sequences, context),
            false => self.bytes(context, sequences, 64),
        }
    }

    fn fill(&mut self, prompts: &[Vec<u32>], _: usize) -> candle::Result<()> {
        self.filled = None;
        let mut model = self.empty.clone();
        let context = prompts[0].len();
        let tokens = Tensor::new(prompts.to_vec(), &self.device)?;
        let logits = if self.fills_by_steps(prompts.len()) {
            let mut last = None;
            for at in 0..context {
                last = Some(model.forward(&tokens.narrow(1, at, 1)?.contiguous()?, at)?);
            }
            last
        } else {
            Some(model.forward(&tokens, 0)?)
        };
        let Some(logits) = logits else { bail!("a prompt without a token") };
        let tokens = largest(&logits)?;
        self.device.synchronize()?;
        self.filled = Some(Filled { model, context, tokens });
        Ok(())
    }

    /// The rows of logits of several sequences do not lie together, and products with blocks do not take them.
    fn fills_by_steps(&self, sequences: usize) -> bool {
        self.size.weights != Weights::Dense && sequences > 1
    }

    fn decode(&mut self, _: &str, warm_up: usize, steps: usize) -> candle::Result<(f64, Vec<u32>)> {
        let Some(Filled { mut model, context, mut tokens }) = self.filled.clone() else {
            bail!("there are no sequences")
        };
        let mut chosen = vec![];
        let (mut start, mut position) = (Instant::now(), context);
        for step in 0..warm_up + steps {
            if step == warm_up {
                start = Instant::now();
            }
            tokens = largest(&model.forward(&tokens, position)?)?;
            position += 1;
            // A program reads each token.
            chosen.push(tokens.flatten_all()?.to_vec1::<u32>()?[0]);
        }
        Ok((start.elapsed().as_secs_f64() / steps as f64, chosen))
    }

    fn clear(&mut self) -> candle::Result<()> {
        self.filled = None;
        self.device.synchronize()
    }
}
