//! The weights of a folder of safetensors, by Hugging Face's names.

use super::experts::of_rank;
use super::source::{Norm, Source};
use super::tokens::{Head, Table};
use crate::config::{Config, ExpertForm, Experts, Quantization, Rank};
use crate::feed_forward::FeedForward;
use candle::{bail, DType, Device, Result, Tensor};
use candle_nn::init::{Init, DEFAULT_KAIMING_NORMAL};
use candle_nn::VarBuilder;
use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg};
use candle_tilegemm::nn::narrow::{linear_quantized_parts, linear_rounded, ExpertGate, Scheme};
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm::nn::{linear_quantized_no_bias, Embedding, GatedMlp, Linear, MergedLinear};
use candle_tilegemm::nn::{QuantExperts, QuantLinear};
use std::ops::Range;

/// The numbers of columns of an MXFP4 block.
const MXFP4_BLOCK: usize = 32;

pub(crate) struct Dense<'a> {
    /// The rank's.
    config: &'a Config,
    group: &'a Group,
    experts: Range<usize>,
    /// Of the names that start with `model.`.
    vb: VarBuilder<'a>,
    head: VarBuilder<'a>,
}

impl<'a> Dense<'a> {
    /// Of names that start with `model.` and `lm_head.`.
    pub fn new(rank: &'a Rank, vb: VarBuilder<'a>) -> Self {
        let (config, group, experts) = (&rank.config, &rank.group, rank.experts.clone());
        Self { config, group, experts, vb: vb.pp("model"), head: vb.pp("lm_head") }
    }

    fn layer(&self, layer: usize) -> VarBuilder<'a> {
        self.vb.pp("layers").pp(layer)
    }

    /// Layers over one another: one product where their weights have one form.
    fn merged(&self, vb: &VarBuilder, parts: &[(&str, usize)], columns: usize, bias: bool) -> Result<MergedLinear> {
        // Narrow weights are put together on the host, and go to the device once.
        let on_host = |(name, rows): &(&str, usize)| {
            let vb = vb.pp(name).set_device(Device::Cpu);
            match &self.config.quantization {
                Quantization::Stored(config) => linear_quantized_parts(columns, &[*rows], bias, config, vb).map(Some),
                Quantization::Rounded(to) => linear_rounded(columns, *rows, bias, *to, vb).map(Some),
                Quantization::None => Ok(None),
            }
        };
        let layers: Option<Vec<QuantLinear>> = parts.iter().map(on_host).collect::<Result<_>>()?;
        if let Some(layers) = layers {
            return MergedLinear::new(layers)?.to_device(vb.device());
        }
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

    /// The experts of gpt-oss and their router, which both have biases.
    fn clamped_experts(&self, of: &MoeCfg, gate: ExpertGate, vb: VarBuilder) -> Result<FusedMoe> {
        let &MoeCfg { hidden_size: hidden, moe_intermediate_size: inner, .. } = of;
        let of_experts = vb.pp("experts");
        match &self.config.quantization {
            Quantization::Stored(config) if config.scheme(&of_experts.prefix()) == Scheme::Mxfp4 => {}
            _ => bail!("{}: experts of this form are read in MXFP4 alone; expected a quantization_config that says mxfp4 of them", of_experts.prefix()),
        }
        let experts = QuantExperts::gpt_oss([self.experts.len(), hidden, inner], of_experts)?.with_gate(gate);
        // Ranks are added up: of an expert's parts one has the bias.
        let has_bias = self.experts.len() < of.num_experts || self.group.rank() == 0;
        let experts = if has_bias { experts } else { experts.without_down_bias() };
        let bias = vb.pp("router").get_with_hints(of.num_experts, "bias", Init::Const(0.0))?;
        self.routed(&experts, of, vb.pp("router"))?.with_router_bias(&bias)
    }

    /// The rank's experts behind the router of all.
    fn routed(&self, experts: &QuantExperts, of: &MoeCfg, vb: VarBuilder) -> Result<FusedMoe> {
        let router = vb.get_with_hints((of.num_experts, of.hidden_size), "weight", DEFAULT_KAIMING_NORMAL)?;
        of_rank(&self.experts, router, of, |router, of| FusedMoe::from_narrow(router, experts, of))
    }

    fn experts(&self, of: &MoeCfg, vb: VarBuilder) -> Result<FusedMoe> {
        if let Some(ExpertForm::Clamped { alpha, limit }) = self.config.experts.as_ref().map(|experts| experts.form) {
            return self.clamped_experts(of, ExpertGate::Clamped { alpha, limit }, vb);
        }
        let &MoeCfg { hidden_size: hidden, moe_intermediate_size: inner, .. } = of;
        let (sizes, gate, dtype) = ([hidden, inner], self.config.gate()?, vb.dtype());
        let own = self.experts.clone();
        let experts = match &self.config.quantization {
            Quantization::Stored(config) if config.is_narrow(&vb.pp("experts").pp(0).pp("gate_proj")) => {
                QuantExperts::load_range(own, sizes, gate, config, vb.pp("experts"))?
            }
            Quantization::Rounded(to) => QuantExperts::rounded_range(own, sizes, gate, *to, vb.pp("experts"))?,
            _ => return FusedMoe::of_experts(of, own, vb, dtype),
        };
        let vb = vb.pp("gate");
        if let Quantization::Stored(config) = &self.config.quantization {
            if config.is_narrow(&vb) {
                bail!("{}: the router is in few bits, and a router is read in 16 or 32; expected it among the modules that quantization_config leaves as they are", vb.prefix());
            }
        }
        self.routed(&experts, of, vb)
    }
}

/// Whether a rank's part of so many of the experts' inner numbers cuts a block of their weights. `vb` is at the path of the decoder.
pub(crate) fn cuts_experts(config: &Config, part: usize, vb: &VarBuilder) -> Result<bool> {
    let (Some(Experts { form, layers, feed_forward: inner, .. }), Quantization::Stored(stored)) =
        (&config.experts, &config.quantization)
    else {
        return Ok(false);
    };
    if let ExpertForm::Clamped { .. } = form {
        return Ok(!part.is_multiple_of(MXFP4_BLOCK));
    }
    let (vb, hidden) = (vb.pp("model").pp("layers"), config.hidden);
    for layer in (0..layers.len()).filter(|layer| layers[*layer]) {
        let vb = vb.pp(layer).pp("mlp").pp("experts").pp(0);
        let rows = |name: &str| stored.cuts([*inner, hidden], [part, hidden], &vb.pp(name));
        if rows("gate_proj")?
            || rows("up_proj")?
            || stored.cuts([hidden, *inner], [hidden, part], &vb.pp("down_proj"))?
        {
            return Ok(true);
        }
    }
    Ok(false)
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
        let bias = self.config.o_bias && self.group.rank() == 0; // ranks are added up
        self.merged(&self.layer(layer).pp("self_attn"), &[("o_proj", self.config.hidden)], columns, bias)
    }

    fn sinks(&mut self, layer: usize) -> Result<Option<Tensor>> {
        if !self.config.sinks {
            return Ok(None);
        }
        let vb = self.layer(layer).pp("self_attn");
        // As the checkpoint has them, not as the decoder's type would round them.
        let sinks = vb.get_with_hints_dtype(self.config.heads, "sinks", Init::Const(0.0), DType::F32)?;
        Ok(Some(sinks.detach()))
    }

    fn feed_forward(&mut self, layer: usize) -> Result<FeedForward> {
        let vb = self.layer(layer).pp("mlp");
        if let Some(experts) = self.config.experts_of(layer) {
            return Ok(FeedForward::Experts(self.experts(&experts, vb)?.detached()));
        }
        let (hidden, inner) = (self.config.hidden, self.config.feed_forward);
        let gate_up = self.merged(&vb, &[("gate_proj", inner), ("up_proj", inner)], hidden, false)?;
        let down = self.merged(&vb, &[("down_proj", hidden)], inner, false)?;
        Ok(FeedForward::Gated(GatedMlp::new(gate_up, down, self.config.gate()?)?))
    }

    fn table(&mut self) -> Result<Table> {
        // A rank has columns of all tokens.
        let columns = self.config.hidden / self.group.size();
        let init = Init::Randn { mean: 0., stdev: 1. };
        let shape = (self.config.vocabulary, columns);
        let table = self.vb.pp("embed_tokens").get_with_hints(shape, "weight", init)?.detach();
        Ok(Table::Dense(Embedding::new(table, columns)))
    }

    fn head(&mut self, table: &Table) -> Result<Head> {
        // A rank has tokens with all columns.
        let (vocabulary, hidden) = (self.config.vocabulary / self.group.size(), self.config.hidden);
        if self.config.tied && self.group.size() == 1 {
            return Head::tied(table);
        }
        if self.config.tied {
            let weight = self.vb.pp("embed_tokens").get((vocabulary, hidden), "weight")?;
            return Ok(Head::Dense(weight.detach()));
        }
        if let Quantization::Stored(config) = &self.config.quantization {
            let layer = linear_quantized_no_bias(hidden, vocabulary, config, self.head.clone())?;
            return Ok(match layer.plain_weight() {
                Some(weight) => Head::Dense(weight.detach()),
                None => Head::Narrow(layer),
            });
        }
        let shape = (vocabulary, hidden);
        Ok(Head::Dense(self.head.get_with_hints(shape, "weight", DEFAULT_KAIMING_NORMAL)?.detach()))
    }

    fn rope_factors(&mut self) -> Result<Option<Vec<f32>>> {
        Ok(None)
    }

    fn config(&self) -> &Config {
        self.config
    }

    fn device(&self) -> &Device {
        self.vb.device()
    }

    fn group(&self) -> &Group {
        self.group
    }
}
