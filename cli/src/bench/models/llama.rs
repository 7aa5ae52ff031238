//! candle-transformers' llama, unmodified: prefill, then decode of fixed tokens.

use super::reference;
use super::workload::{timed, tokens, Case, Run, Workload};
use crate::Result;
use candle::{DType, Device, IndexOp, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama};

pub struct LlamaModel {
    model: Llama,
    config: Config,
    builder: VarBuilder<'static>,
}

/// Bytes needed for loading: the weights, and the largest weight in f32, because random weights are made in f32.
pub fn bytes_to_load(config: &Config, dtype: DType) -> f64 {
    let [hidden, wide, vocabulary, layers] =
        [config.hidden_size, config.intermediate_size, config.vocab_size, config.num_hidden_layers].map(|x| x as f64);
    let attention = 2.0 * hidden * hidden + 2.0 * hidden * kv_width(config);
    let tables = if config.tie_word_embeddings { 1.0 } else { 2.0 } * vocabulary * hidden;
    let parameters = tables + layers * (attention + 3.0 * hidden * wide + 2.0 * hidden) + hidden;
    parameters * dtype.size_in_bytes() as f64 + vocabulary.max(wide) * hidden * 4.0
}

/// Peak bytes of a run, besides the weights, in candle-transformers 0.11.1.
///
/// Variables there shadow each other, so tensors live to the end of their function: queries projected, contiguous and
/// rotated; keys and values before and after their repetition for the query's heads; all of these once more in f32; and
/// the scores scaled, masked and normalised.
pub fn bytes_to_run(config: &Config, dtype: DType, case: &Case) -> f64 {
    let [batch, prompt, steps] = [case.batch, case.prompt, case.decode].map(|x| x as f64);
    let [hidden, wide, vocabulary] =
        [config.hidden_size, config.intermediate_size, config.vocab_size].map(|x| x as f64);
    let [heads, layers] = [config.num_attention_heads, config.num_hidden_layers].map(|x| x as f64);
    let kv = kv_width(config);
    let size = dtype.size_in_bytes() as f64;
    let upcast = if dtype == DType::F32 { 0.0 } else { 4.0 };
    let (rows, context) = (batch * prompt, batch * (prompt + steps));

    // The input and its norm, three queries, repeated keys and values, the result; the last four in f32 too.
    let heads_of_all = rows * hidden * (8.0 * size + 4.0 * upcast);
    let scores = 3.0 * batch * heads * prompt * prompt * 4.0;
    let attention = heads_of_all + rows * kv * 3.0 * size + scores + prompt * prompt;
    let mlp = rows * size * (5.0 * hidden + 4.0 * wide);
    // For each new token, the cache of one layer at a time is copied, repeated and upcast.
    let step = context * (6.0 * kv * size + 2.0 * hidden * (size + upcast) + 3.0 * heads * 4.0);
    let cache = 2.0 * layers * context * kv * size;
    let logits = batch * vocabulary * (size + 4.0 * (steps + 2.0));
    cache + logits + attention.max(mlp).max(step)
}

/// Length of a token's key, and of its value, over all heads.
fn kv_width(config: &Config) -> f64 {
    (config.hidden_size / config.num_attention_heads * config.num_key_value_heads) as f64
}

impl LlamaModel {
    pub fn load(builder: VarBuilder<'static>, config: Config) -> Result<Self> {
        Ok(Self { model: Llama::load(builder.clone(), &config)?, config, builder })
    }
}

impl Workload for LlamaModel {
    fn positions(&self) -> usize {
        self.config.max_position_embeddings
    }

    fn decodes(&self) -> bool {
        true
    }

    fn bytes_to_run(&self, case: &Case) -> f64 {
        bytes_to_run(&self.config, self.builder.dtype(), case)
    }

    fn run(&self, case: &Case, keep: bool) -> candle::Result<Run> {
        let (device, vocabulary) = (self.builder.device(), self.config.vocab_size);
        let mut cache = Cache::new(true, self.builder.dtype(), &self.config, device)?;
        let prompt =
            Tensor::from_vec(tokens(case.batch, case.prompt, 0, vocabulary), (case.batch, case.prompt), device)?;
        let mut outputs = Vec::new();
        let (logits, prefill) = timed(device, || self.model.forward(&prompt, 0, &mut cache))?;
        outputs.extend(keep.then_some(logits));
        let ((), decode) = timed(device, || {
            for step in 0..case.decode {
                let position = case.prompt + step;
                let next = Tensor::from_vec(tokens(case.batch, 1, position, vocabulary), (case.batch, 1), device)?;
                let logits = self.model.forward(&next, position, &mut cache)?;
                outputs.extend(keep.then_some(logits));
            }
            Ok(())
        })?;
        let outputs = outputs.iter().map(|logits| logits.to_device(&Device::Cpu)).collect::<candle::Result<_>>()?;
        Ok(Run { phases: [prefill, decode], outputs })
    }

    fn reference(&self, case: &Case) -> candle::Result<Option<Vec<Tensor>>> {
        if self.config.rope_scaling.is_some() {
            return Ok(None);
        }
        // All tokens go through one forward: the tokens are fixed, so no step depends on another step's result.
        let length = case.prompt + case.decode;
        let ids = tokens(case.batch, length, 0, self.config.vocab_size);
        let ids = Tensor::from_vec(ids, (case.batch, length), self.builder.device())?;
        let logits = reference::llama(&self.builder, &self.config, &ids, case.prompt - 1)?.to_device(&Device::Cpu)?;
        Ok(Some((0..=case.decode).map(|step| logits.i((.., step))).collect::<candle::Result<_>>()?))
    }
}
