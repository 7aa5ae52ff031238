//! candle-transformers' BERT, unmodified: one forward of sequences without padding, no decode.

use super::super::footprint::{tokens, Case};
use super::reference;
use super::workload::{timed, Run, Timed, Workload};
use crate::Result;
use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::BertModel;
/// The default is BERT-base.
pub use candle_transformers::models::bert::Config;

pub struct Bert {
    model: BertModel,
    config: Config,
    builder: VarBuilder<'static>,
}

pub fn all_minilm_l6_v2() -> Config {
    Config { hidden_size: 384, num_hidden_layers: 6, intermediate_size: 1536, ..Config::default() }
}

/// A model that a CPU runs in a moment.
pub fn tiny() -> Config {
    Config {
        vocab_size: 128,
        hidden_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 64,
        max_position_embeddings: 16,
        ..Config::default()
    }
}

impl Bert {
    pub fn load(builder: VarBuilder<'static>, config: Config) -> Result<Self> {
        Ok(Self { model: BertModel::load(builder.clone(), &config)?, config, builder })
    }

    fn ids(&self, case: &Case) -> candle::Result<Tensor> {
        let ids = tokens(case.batch, case.prompt, 0, self.config.vocab_size);
        Tensor::from_vec(ids, (case.batch, case.prompt), &self.model.device)
    }
}

impl Workload for Bert {
    fn positions(&self) -> usize {
        self.config.max_position_embeddings
    }

    fn decodes(&self) -> bool {
        false
    }

    /// Scores live in six forms: plain, scaled, masked, less their maximum, exponentiated and normalised.
    fn bytes_to_run(&self, case: &Case) -> f64 {
        let [batch, length] = [case.batch, case.prompt].map(|x| x as f64);
        let [hidden, wide, heads] =
            [self.config.hidden_size, self.config.intermediate_size, self.config.num_attention_heads].map(|x| x as f64);
        let attention = 10.0 * batch * length * hidden + 6.0 * batch * heads * length * length;
        let mlp = batch * length * (4.0 * hidden + 3.0 * wide);
        4.0 * attention.max(mlp)
    }

    fn run(&self, case: &Case, keep: bool) -> candle::Result<Run> {
        let device = &self.model.device;
        let ids = self.ids(case)?;
        let segments = ids.zeros_like()?;
        let mask = Tensor::ones(ids.shape(), DType::F32, device)?;
        let (states, prefill) = timed(device, || self.model.forward(&ids, &segments, Some(&mask)))?;
        let outputs = if keep { vec![states.to_device(&Device::Cpu)?] } else { Vec::new() };
        Ok(Run { phases: [prefill, Timed::default()], outputs })
    }

    fn reference(&self, case: &Case) -> candle::Result<Option<Vec<Tensor>>> {
        let states = reference::bert(&self.builder, &self.config, &self.ids(case)?)?;
        Ok(Some(vec![states.to_device(&Device::Cpu)?]))
    }
}
