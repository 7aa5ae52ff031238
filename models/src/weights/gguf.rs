//! The weights of a GGUF file, by llama.cpp's names.
//!
//! The rows of q and k of a llama are permuted there, so that the numbers which a rotation turns together lie side by side. They stay as they are:
//! `Config::rope_style` says which pairs the rotation takes.

use super::experts::of_rank;
use super::source::{Norm, Source};
use super::tokens::{Head, Table};
use crate::config::{Config, Rank};
use crate::feed_forward::FeedForward;
use candle::{bail, DType, Device, Error, Result, Shape, Tensor};
use candle_tilegemm::gguf::Tensors;
use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg};
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm::nn::{Embedding, GatedMlp, Linear, MergedLinear, QEmbedding, QLinear, QWeights};
use std::io::{Read, Seek};
use std::ops::Range;

pub(crate) struct Gguf<'a, R> {
    /// The rank's.
    config: &'a Config,
    group: &'a Group,
    experts: Range<usize>,
    tensors: &'a Tensors,
    reader: &'a mut R,
    /// The type of what is not in blocks.
    dtype: DType,
    device: &'a Device,
}

/// What a rank of a group has of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    /// Experts.
    Experts,
    /// Rows of a matrix, or of every expert.
    Rows,
    /// Columns, and numbers of a list.
    Columns,
}

/// Whether a tensor is no list of blocks.
fn is_dense(tensor: &QWeights) -> bool {
    tensor.format().is_none()
}

impl<'a, R: Read + Seek> Gguf<'a, R> {
    pub fn new(rank: &'a Rank, tensors: &'a Tensors, reader: &'a mut R, (dtype, device): (DType, &'a Device)) -> Self {
        let (config, group, experts) = (&rank.config, &rank.group, rank.experts.clone());
        Self { config, group, experts, tensors, reader, dtype, device }
    }

    /// A rank's part of a tensor, which has this shape, on the CPU.
    fn tensor(&mut self, name: &str, part: Part, shape: impl Into<Shape>) -> Result<QWeights> {
        let mut expected = shape.into().into_dims();
        let split = match part {
            Part::Whole => None,
            Part::Experts => Some(0),
            Part::Rows => Some(expected.len() - 2),
            Part::Columns => Some(expected.len() - 1),
        };
        split.into_iter().for_each(|dim| expected[dim] *= self.group.size());
        let Some(shape) = self.tensors.shape(name) else {
            bail!("GGUF: the tensor {name} is missing");
        };
        if shape.dims() != expected {
            bail!("GGUF: the tensor {name} has the shape {shape:?}; the metadata ask for {expected:?}");
        }
        let (rank, ranks) = (self.group.rank(), self.group.size());
        let Some(dim) = split.filter(|_| ranks > 1) else {
            return self.tensors.read(self.reader, name, &Device::Cpu);
        };
        let range = self.group.part(name, expected[dim])?;
        let part = self.tensors.read_part(self.reader, name, dim, range, &Device::Cpu);
        part.map_err(|error| Error::msg(format!("rank {rank} of {ranks}: {error}")))
    }

    fn dense(&self, tensor: &QWeights) -> Result<Tensor> {
        tensor.dequantize(&Device::Cpu)?.to_dtype(self.dtype)?.to_device(self.device)
    }

    fn list(&mut self, name: &str, part: Part, count: usize) -> Result<Tensor> {
        let tensor = self.tensor(name, part, count)?;
        self.dense(&tensor)
    }

    /// Layers of a block over one another: neighbours of one format as one product. A rank has rows or columns of all of them.
    fn merged(
        &mut self,
        layer: usize,
        part: Part,
        layers: &[(&str, usize)],
        columns: usize,
        bias: bool,
    ) -> Result<MergedLinear> {
        let mut weights = vec![];
        // Columns of all rows: so are the numbers of the bias.
        let of_bias = if part == Part::Rows { Part::Columns } else { Part::Whole };
        for (name, rows) in layers {
            let weight = self.tensor(&format!("blk.{layer}.{name}.weight"), part, (*rows, columns))?;
            let bias = if bias { Some(self.list(&format!("blk.{layer}.{name}.bias"), of_bias, *rows)?) } else { None };
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
        let &MoeCfg { hidden_size: hidden, moe_intermediate_size: inner, .. } = of;
        let own = self.experts.clone();
        let [rows, columns] = match own.len() < of.num_experts {
            true => [Part::Experts; 2],
            false => [Part::Rows, Part::Columns],
        };
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let router = self.tensor(&name("ffn_gate_inp"), Part::Whole, (of.num_experts, hidden))?;
        let router = self.dense(&router)?;
        let gate = self.tensor(&name("ffn_gate_exps"), rows, (own.len(), inner, hidden))?;
        let up = self.tensor(&name("ffn_up_exps"), rows, (own.len(), inner, hidden))?;
        let down = self.tensor(&down_of_experts(layer), columns, (own.len(), hidden, inner))?;
        let experts = of_rank(&own, router, of, |router, of| {
            if [&gate, &up, &down].into_iter().any(is_dense) {
                let gate_up = Tensor::cat(&[self.dense(&gate)?, self.dense(&up)?], 1)?;
                FusedMoe::from_weights(router, gate_up, self.dense(&down)?, of)
            } else {
                FusedMoe::from_qweights(router, [&gate, &up, &down], of)
            }
        })?;
        Ok(FeedForward::Experts(experts.detached()))
    }
}

/// The name of the last products of a layer's experts.
fn down_of_experts(layer: usize) -> String {
    format!("blk.{layer}.ffn_down_exps.weight")
}

/// Whether a rank's part of so many of the experts' inner numbers cuts a block of their weights.
pub(crate) fn cuts_experts_of_file(config: &Config, part: usize, tensors: &Tensors) -> bool {
    let layers = config.experts.iter().flat_map(|experts| (0..config.layers).filter(|layer| experts.layers[*layer]));
    let mut blocks = layers.filter_map(|layer| tensors.block(&down_of_experts(layer)));
    blocks.any(|block| !part.is_multiple_of(block))
}

impl<R: Read + Seek> Source for Gguf<'_, R> {
    fn norm(&mut self, norm: Norm) -> Result<Tensor> {
        let (hidden, head) = (self.config.hidden, self.config.head_size);
        let (name, size) = match norm {
            Norm::BeforeAttention(layer) => (format!("blk.{layer}.attn_norm.weight"), hidden),
            Norm::BeforeFeedForward(layer) => (format!("blk.{layer}.ffn_norm.weight"), hidden),
            Norm::OfQ(layer) => (format!("blk.{layer}.attn_q_norm.weight"), head),
            Norm::OfK(layer) => (format!("blk.{layer}.attn_k_norm.weight"), head),
            Norm::Last => ("output_norm.weight".to_string(), hidden),
        };
        self.list(&name, Part::Whole, size)
    }

    fn qkv(&mut self, layer: usize) -> Result<MergedLinear> {
        let [q, k, v] = self.config.qkv_columns();
        let parts = [("attn_q", q), ("attn_k", k), ("attn_v", v)];
        self.merged(layer, Part::Rows, &parts, self.config.hidden, self.config.qkv_bias)
    }

    fn o(&mut self, layer: usize) -> Result<MergedLinear> {
        let [columns, ..] = self.config.qkv_columns();
        let bias = self.config.o_bias && self.group.rank() == 0; // ranks are added up
        self.merged(layer, Part::Columns, &[("attn_output", self.config.hidden)], columns, bias)
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
        let gate_up = self.merged(layer, Part::Rows, &[("ffn_gate", inner), ("ffn_up", inner)], hidden, false)?;
        let down = self.merged(layer, Part::Columns, &[("ffn_down", hidden)], inner, false)?;
        Ok(FeedForward::Gated(GatedMlp::new(gate_up, down, self.config.gate()?)?))
    }

    fn table(&mut self) -> Result<Table> {
        // A rank has columns of all tokens.
        let (vocabulary, columns) = (self.config.vocabulary, self.config.hidden / self.group.size());
        let table = self.tensor("token_embd.weight", Part::Columns, (vocabulary, columns))?;
        Ok(if is_dense(&table) {
            Table::Dense(Embedding::new(self.dense(&table)?, columns))
        } else {
            Table::Blocks(QEmbedding::new(table.to_device(self.device)?)?, self.dtype)
        })
    }

    fn head(&mut self, table: &Table) -> Result<Head> {
        if self.config.tied && self.group.size() == 1 {
            return Head::tied(table);
        }
        // A rank has tokens with all columns.
        let (vocabulary, hidden) = (self.config.vocabulary / self.group.size(), self.config.hidden);
        let name = if self.config.tied { "token_embd.weight" } else { "output.weight" };
        let weight = self.tensor(name, Part::Rows, (vocabulary, hidden))?;
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
        let factors = self.tensor(name, Part::Whole, self.config.head_size / 2)?;
        Ok(Some(factors.dequantize(&Device::Cpu)?.to_vec1()?))
    }

    fn config(&self) -> &Config {
        self.config
    }

    fn device(&self) -> &Device {
        self.device
    }

    fn group(&self) -> &Group {
        self.group
    }
}
