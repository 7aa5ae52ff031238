//! The weights of a folder of safetensors, by Hugging Face's names.

use super::source::{Norm, Source};
use super::tokens::{Head, Table};
use crate::config::Config;
use crate::feed_forward::FeedForward;
use candle::{Result, Tensor};
use candle_nn::init::{Init, DEFAULT_KAIMING_NORMAL};
use candle_nn::VarBuilder;
use candle_tilegemm::nn::moe::FusedMoe;
use candle_tilegemm::nn::{Embedding, GatedMlp, Linear, MergedLinear};

pub(crate) struct Dense<'a> {
    config: &'a Config,
    /// Of the names that start with `model.`.
    vb: VarBuilder<'a>,
    head: VarBuilder<'a>,
}

impl<'a> Dense<'a> {
    /// Of names that start with `model.` and `lm_head.`.
    pub fn new(config: &'a Config, vb: VarBuilder<'a>) -> Self {
        Self { config, vb: vb.pp("model"), head: vb.pp("lm_head") }
    }

    fn layer(&self, layer: usize) -> VarBuilder<'a> {
        self.vb.pp("layers").pp(layer)
    }

    /// Layers over one another in one product.
    fn merged(&self, vb: &VarBuilder, parts: &[(&str, usize)], columns: usize, bias: bool) -> Result<MergedLinear> {
        let (mut weights, mut biases) = (vec![], vec![]);
        for (name, rows) in parts {
            let vb = vb.pp(name);
            weights.push(vb.get_with_hints((*rows, columns), "weight", DEFAULT_KAIMING_NORMAL)?.detach());
            if bias {
                biases.push(vb.get_with_hints(*rows, "bias", Init::Const(0.0))?.detach());
            }
        }
        let bias = if bias { Some(Tensor::cat(&biases, 0)?) } else { None };
        Ok(Linear::new(Tensor::cat(&weights, 0)?, bias).into())
    }
}

impl Source for Dense<'_> {
    fn norm(&mut self, norm: Norm) -> Result<Tensor> {
        let (vb, size) = match norm {
            Norm::BeforeAttention(layer) => (self.layer(layer).pp("input_layernorm"), self.config.hidden),
            Norm::BeforeFeedForward(layer) => (self.layer(layer).pp("post_attention_layernorm"), self.config.hidden),
            Norm::OfQ(layer) => (self.layer(layer).pp("self_attn").pp("q_norm"), self.config.head_size),
            Norm::OfK(layer) => (self.layer(layer).pp("self_attn").pp("k_norm"), self.config.head_size),
            Norm::Last => (self.vb.pp("norm"), self.config.hidden),
        };
        Ok(vb.get_with_hints(size, "weight", Init::Const(1.0))?.detach())
    }

    fn qkv(&mut self, layer: usize) -> Result<MergedLinear> {
        let [q, k, v] = self.config.qkv_columns();
        let parts = [("q_proj", q), ("k_proj", k), ("v_proj", v)];
        self.merged(&self.layer(layer).pp("self_attn"), &parts, self.config.hidden, self.config.qkv_bias)
    }

    fn o(&mut self, layer: usize) -> Result<MergedLinear> {
        let [columns, ..] = self.config.qkv_columns();
        self.merged(&self.layer(layer).pp("self_attn"), &[("o_proj", self.config.hidden)], columns, self.config.o_bias)
    }

    fn feed_forward(&mut self, layer: usize) -> Result<FeedForward> {
        let vb = self.layer(layer).pp("mlp");
        if let Some(experts) = self.config.experts_of(layer) {
            let dtype = vb.dtype();
            return Ok(FeedForward::Experts(FusedMoe::new(&experts, vb, dtype)?.detached()));
        }
        let (hidden, inner) = (self.config.hidden, self.config.feed_forward);
        let gate_up = self.merged(&vb, &[("gate_proj", inner), ("up_proj", inner)], hidden, false)?;
        let down = self.merged(&vb, &[("down_proj", hidden)], inner, false)?;
        Ok(FeedForward::Gated(GatedMlp::new(gate_up, down, self.config.gate()?)?))
    }

    fn table(&mut self) -> Result<Table> {
        let shape = (self.config.vocabulary, self.config.hidden);
        let init = Init::Randn { mean: 0., stdev: 1. };
        let table = self.vb.pp("embed_tokens").get_with_hints(shape, "weight", init)?.detach();
        Ok(Table::Dense(Embedding::new(table, self.config.hidden)))
    }

    fn head(&mut self, table: &Table) -> Result<Head> {
        if self.config.tied {
            return Head::tied(table);
        }
        let shape = (self.config.vocabulary, self.config.hidden);
        Ok(Head::Dense(self.head.get_with_hints(shape, "weight", DEFAULT_KAIMING_NORMAL)?.detach()))
    }

    fn rope_factors(&mut self) -> Result<Option<Vec<f32>>> {
        Ok(None)
    }

    fn config(&self) -> &Config {
        self.config
    }
}
