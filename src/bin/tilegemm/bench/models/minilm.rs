//! candle-transformers' BERT, unmodified, in the shape of all-MiniLM-L6-v2: one forward, no decode.

use super::{timed, tokens, Case, Run, Timed, Workload};
use crate::Result;
use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};

pub struct MiniLm {
    model: BertModel,
    config: Config,
}

pub fn all_minilm_l6_v2() -> Config {
    Config { hidden_size: 384, num_hidden_layers: 6, intermediate_size: 1536, ..Config::default() }
}

impl MiniLm {
    pub fn load(builder: VarBuilder, config: Config) -> Result<Self> {
        Ok(Self { model: BertModel::load(builder, &config)?, config })
    }
}

impl Workload for MiniLm {
    fn positions(&self) -> usize {
        self.config.max_position_embeddings
    }

    fn decodes(&self) -> bool {
        false
    }

    /// Scores are kept as they are, scaled, masked, less their maximum, exponentiated and normalised.
    fn bytes_to_run(&self, case: &Case) -> f64 {
        let [batch, length] = [case.batch, case.prompt].map(|x| x as f64);
        let [hidden, wide, heads] =
            [self.config.hidden_size, self.config.intermediate_size, self.config.num_attention_heads].map(|x| x as f64);
        let attention = 10.0 * batch * length * hidden + 6.0 * batch * heads * length * length;
        let mlp = batch * length * (4.0 * hidden + 3.0 * wide);
        4.0 * attention.max(mlp)
    }

    fn run(&self, case: &Case, keep: bool) -> candle::Result<Run> {
        let (device, shape) = (&self.model.device, (case.batch, case.prompt));
        let ids = Tensor::from_vec(tokens(case.batch, case.prompt, 0, self.config.vocab_size), shape, device)?;
        let segments = ids.zeros_like()?;
        let mask = Tensor::ones(shape, DType::F32, device)?;
        let (states, prefill) = timed(device, || self.model.forward(&ids, &segments, Some(&mask)))?;
        let outputs = if keep { vec![states.to_device(&Device::Cpu)?] } else { Vec::new() };
        Ok(Run { phases: [prefill, Timed::default()], outputs })
    }
}
