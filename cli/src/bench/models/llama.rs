//! candle-transformers' llama, unmodified: prefill, then decode of fixed tokens.

use super::super::footprint::{bytes_to_run, kv_width, tokens, Case};
use super::reference;
use super::workload::{timed, Run, Workload};
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
