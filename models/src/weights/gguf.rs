//! The weights of a GGUF file, by llama.cpp's names.
//!
//! The rows of q and k of a llama are permuted there, so that the numbers which a rotation turns together lie side by side. They stay as they are:
//! `Config::rope_style` says which pairs the rotation takes.

use super::source::{Norm, Source};
use super::tokens::{Head, Table};
use crate::config::Config;
use crate::feed_forward::FeedForward;
use candle::{bail, DType, Device, Result, Shape, Tensor};
use candle_tilegemm::gguf::Tensors;
use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg};
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm::nn::{Embedding, GatedMlp, Linear, MergedLinear, QEmbedding, QLinear, QWeights};
use std::io::{Read, Seek};

pub(crate) struct Gguf<'a, R> {
    pub config: &'a Config,
    pub group: &'a Group,
    pub tensors: &'a Tensors,
    pub reader: &'a mut R,
    /// The type of what is not in blocks.
    pub dtype: DType,
    pub device: &'a Device,
}

/// Whether a tensor is no list of blocks.
fn is_dense(tensor: &QWeights) -> bool {
    tensor.format().is_none()
}

impl<R: Read + Seek> Gguf<'_, R> {
    /// A tensor on the CPU.
    fn tensor(&mut self, name: &str, shape: impl Into<Shape>) -> Result<QWeights> {
        let expected = shape.into();
        let Some(shape) = self.tensors.shape(name) else {
            bail!("GGUF: the tensor {name} is missing");
        };
        if *shape != expected {
            bail!("GGUF: the tensor {name} has the shape {shape:?}; the metadata ask for {expected:?}");
        }
        self.tensors.read(self.reader, name, &Device::Cpu)
    }

    fn dense(&self, tensor: &QWeights) -> Result<Tensor> {
        tensor.dequantize(&Device::Cpu)?.to_dtype(self.dtype)?.to_device(self.device)
    }

    fn list(&mut self, name: &str, count: usize) -> Result<Tensor> {
        let tensor = self.tensor(name, count)?;
        self.dense(&tensor)
    }

    /// Layers of a block over one another: neighbours of one format as one product.
    fn merged(&mut self, layer: usize, parts: &[(&str, usize)], columns: usize, bias: bool) -> Result<MergedLinear> {
        let mut weights = vec![];
        for (name, rows) in parts {
            let weight = self.tensor(&format!("blk.{layer}.{name}.weight"), (*rows, columns))?;
            let bias = if bias { Some(self.list(&format!("blk.{layer}.{name}.bias"), *rows)?) } else { None };
            weights.push((weight, bias));
        }
        let products = weights.chunk_by(|(x, _), (y, _)| x.format() == y.format());
        let products: Vec<MergedLinear> = products.map(|weights| self.product(weights)).collect::<Result<_>>()?;
        MergedLinear::new(products)
    }

    /// One product with weights of one format, or with dense weights.
    fn product(&self, weights: &[(QWeights, Option<Tensor>)]) -> Result<MergedLinear> {
        let biases: Vec<Tensor> = weights.iter().filter_map(|(_, bias)| bias.clone()).collect();
        let bias = if biases.is_empty() { None } else { Some(Tensor::cat(&biases, 0)?) };
        let weights: Vec<&QWeights> = weights.iter().map(|(weight, _)| weight).collect();
        if is_dense(weights[0]) {
            let weights = weights.into_iter().map(|weight| self.dense(weight)).collect::<Result<Vec<_>>>()?;
            return Ok(Linear::new(Tensor::cat(&weights, 0)?, bias).into());
        }
        Ok(QLinear::from_blocks(QWeights::over_one_another(&weights, self.device)?, bias)?.into())
    }

    fn experts(&mut self, layer: usize, of: &MoeCfg) -> Result<FeedForward> {
        let &MoeCfg { hidden_size: hidden, num_experts: count, moe_intermediate_size: inner, .. } = of;
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let router = self.tensor(&name("ffn_gate_inp"), (count, hidden))?;
        let router = self.dense(&router)?;
        let gate = self.tensor(&name("ffn_gate_exps"), (count, inner, hidden))?;
        let up = self.tensor(&name("ffn_up_exps"), (count, inner, hidden))?;
        let down = self.tensor(&name("ffn_down_exps"), (count, hidden, inner))?;
        let experts = if [&gate, &up, &down].into_iter().any(is_dense) {
            let gate_up = Tensor::cat(&[self.dense(&gate)?, self.dense(&up)?], 1)?;
            FusedMoe::from_weights(router, gate_up, self.dense(&down)?, of)?
        } else {
            FusedMoe::from_qweights(router, [&gate, &up, &down], of)?
        };
        Ok(FeedForward::Experts(experts.detached()))
    }
}

impl<R: Read + Seek> Source for Gguf<'_, R> {
    fn norm(&mut self, norm: Norm) -> Result<Tensor> {
        let (hidden, head) = (self.config.hidden, self.config.head_size);
        match norm {
            Norm::BeforeAttention(layer) => self.list(&format!("blk.{layer}.attn_norm.weight"), hidden),
            Norm::BeforeFeedForward(layer) => self.list(&format!("blk.{layer}.ffn_norm.weight"), hidden),
            Norm::OfQ(layer) => self.list(&format!("blk.{layer}.attn_q_norm.weight"), head),
            Norm::OfK(layer) => self.list(&format!("blk.{layer}.attn_k_norm.weight"), head),
            Norm::Last => self.list("output_norm.weight", hidden),
        }
    }

    fn qkv(&mut self, layer: usize) -> Result<MergedLinear> {
        let [q, k, v] = self.config.qkv_columns();
        let parts = [("attn_q", q), ("attn_k", k), ("attn_v", v)];
        self.merged(layer, &parts, self.config.hidden, self.config.qkv_bias)
    }

    fn o(&mut self, layer: usize) -> Result<MergedLinear> {
        let [columns, ..] = self.config.qkv_columns();
        self.merged(layer, &[("attn_output", self.config.hidden)], columns, self.config.o_bias)
    }

    fn sinks(&mut self, _layer: usize) -> Result<Option<Tensor>> {
        match self.config.sinks {
            true => bail!("GGUF: attention sinks are read from safetensors alone"),
            false => Ok(None),
        }
    }

    fn feed_forward(&mut self, layer: usize) -> Result<FeedForward> {
        if let Some(experts) = self.config.experts_of(layer) {
            return self.experts(layer, &experts);
        }
        let (hidden, inner) = (self.config.hidden, self.config.feed_forward);
        let gate_up = self.merged(layer, &[("ffn_gate", inner), ("ffn_up", inner)], hidden, false)?;
        let down = self.merged(layer, &[("ffn_down", hidden)], inner, false)?;
        Ok(FeedForward::Gated(GatedMlp::new(gate_up, down, self.config.gate()?)?))
    }

    fn table(&mut self) -> Result<Table> {
        let (vocabulary, hidden) = (self.config.vocabulary, self.config.hidden);
        let table = self.tensor("token_embd.weight", (vocabulary, hidden))?;
        Ok(if is_dense(&table) {
            Table::Dense(Embedding::new(self.dense(&table)?, hidden))
        } else {
            Table::Blocks(QEmbedding::new(table.to_device(self.device)?)?, self.dtype)
        })
    }

    fn head(&mut self, table: &Table) -> Result<Head> {
        if self.config.tied {
            return Head::tied(table);
        }
        let weight = self.tensor("output.weight", (self.config.vocabulary, self.config.hidden))?;
        Ok(if is_dense(&weight) {
            Head::Dense(self.dense(&weight)?)
        } else {
            Head::Blocks(QLinear::from_blocks(weight.to_device(self.device)?, None)?)
        })
    }

    fn rope_factors(&mut self) -> Result<Option<Vec<f32>>> {
        let name = "rope_freqs.weight";
        if self.tensors.shape(name).is_none() {
            return Ok(None);
        }
        let factors = self.tensor(name, self.config.head_size / 2)?;
        Ok(Some(factors.dequantize(&Device::Cpu)?.to_vec1()?))
    }

    fn config(&self) -> &Config {
        self.config
    }

    fn group(&self) -> &Group {
        self.group
    }
}
