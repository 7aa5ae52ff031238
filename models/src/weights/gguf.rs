//! The weights of a GGUF file, by llama.cpp's names.
//!
//! The rows of q and k of a llama are permuted there, so that the numbers which a rotation turns together lie side by side. They stay as they are:
//! `Config::rope_style` says which pairs the rotation takes.

use super::product::{Head, Product, Table};
use super::source::{Norm, Source};
use crate::config::Config;
use crate::feed_forward::FeedForward;
use candle::quantized::gguf_file::Content;
use candle::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle::{bail, DType, Device, Result, Shape, Tensor};
use candle_tilegemm::nn::{Embedding, Linear, QLinear};
use std::borrow::Cow;
use std::io::{Read, Seek};

pub(crate) struct Gguf<'a, R> {
    pub config: &'a Config,
    pub content: &'a Content,
    pub reader: &'a mut R,
    /// The type of what is not in blocks.
    pub dtype: DType,
    pub device: &'a Device,
}

/// Whether a tensor is no list of blocks.
fn is_dense(tensor: &QTensor) -> bool {
    matches!(tensor.dtype(), GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16)
}

impl<R: Read + Seek> Gguf<'_, R> {
    /// A tensor on the CPU.
    fn tensor(&mut self, name: &str, shape: impl Into<Shape>) -> Result<QTensor> {
        let shape = shape.into();
        let Some(info) = self.content.tensor_infos.get(name) else {
            bail!("GGUF: the tensor {name} is missing");
        };
        if info.shape != shape {
            bail!("GGUF: the tensor {name} has the shape {:?}; the metadata ask for {shape:?}", info.shape);
        }
        info.read(self.reader, self.content.tensor_data_offset, &Device::Cpu)
    }

    fn dense(&self, tensor: &QTensor) -> Result<Tensor> {
        tensor.dequantize(&Device::Cpu)?.to_dtype(self.dtype)?.to_device(self.device)
    }

    fn list(&mut self, name: &str, count: usize) -> Result<Tensor> {
        let tensor = self.tensor(name, count)?;
        self.dense(&tensor)
    }

    /// Layers of a block over one another: in one product where they have one format.
    fn merged(&mut self, layer: usize, parts: &[(&str, usize)], columns: usize, bias: bool) -> Result<Product> {
        let (mut weights, mut biases) = (vec![], vec![]);
        for (name, rows) in parts {
            weights.push(self.tensor(&format!("blk.{layer}.{name}.weight"), (*rows, columns))?);
            if bias {
                biases.push(self.list(&format!("blk.{layer}.{name}.bias"), *rows)?);
            }
        }
        let is_one = weights.iter().all(|weight| weight.dtype() == weights[0].dtype() || is_dense(weight))
            && weights.iter().all(|weight| is_dense(weight) == is_dense(&weights[0]));
        if is_one {
            let bias = if bias { Some(Tensor::cat(&biases, 0)?) } else { None };
            return self.product(&weights, columns, bias);
        }
        let mut biases = biases.into_iter();
        let part = |weight: &QTensor| {
            let rows = weight.shape().dims()[0];
            Ok((self.product(std::slice::from_ref(weight), columns, biases.next())?, rows))
        };
        Ok(Product::Beside(weights.iter().map(part).collect::<Result<_>>()?))
    }

    /// One product with weights of one format, or with dense weights.
    fn product(&self, weights: &[QTensor], columns: usize, bias: Option<Tensor>) -> Result<Product> {
        if is_dense(&weights[0]) {
            let weights = weights.iter().map(|weight| self.dense(weight)).collect::<Result<Vec<_>>>()?;
            return Ok(Product::Dense(Linear::new(Tensor::cat(&weights, 0)?, bias)));
        }
        let weight = self.stacked(weights, columns)?;
        Ok(Product::Blocks(QLinear::from_weights(QMatMul::from_qtensor(weight)?, bias)))
    }

    /// Blocks over one another, on the device. A row is a whole number of blocks.
    fn stacked(&self, weights: &[QTensor], columns: usize) -> Result<QTensor> {
        let (mut bytes, mut rows) = (vec![], 0);
        for weight in weights {
            bytes.extend_from_slice(&weight.data()?);
            rows += weight.shape().dims()[0];
        }
        let storage = QStorage::from_data(Cow::Owned(bytes), self.device, weights[0].dtype())?;
        QTensor::new(storage, (rows, columns))
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

    fn qkv(&mut self, layer: usize) -> Result<Product> {
        let [q, k, v] = self.config.qkv_columns();
        let parts = [("attn_q", q), ("attn_k", k), ("attn_v", v)];
        self.merged(layer, &parts, self.config.hidden, self.config.qkv_bias)
    }

    fn o(&mut self, layer: usize) -> Result<Product> {
        let [columns, ..] = self.config.qkv_columns();
        self.merged(layer, &[("attn_output", self.config.hidden)], columns, self.config.o_bias)
    }

    fn feed_forward(&mut self, layer: usize) -> Result<FeedForward> {
        let (hidden, inner) = (self.config.hidden, self.config.feed_forward);
        Ok(FeedForward::Gated {
            gate_up: self.merged(layer, &[("ffn_gate", inner), ("ffn_up", inner)], hidden, false)?,
            function: self.config.gate()?,
            down: self.merged(layer, &[("ffn_down", hidden)], inner, false)?,
            inner,
        })
    }

    fn table(&mut self) -> Result<Table> {
        let (vocabulary, hidden) = (self.config.vocabulary, self.config.hidden);
        let table = self.tensor("token_embd.weight", (vocabulary, hidden))?;
        Ok(if is_dense(&table) {
            Table::Dense(Embedding::new(self.dense(&table)?, hidden))
        } else {
            Table::Blocks(self.stacked(&[table], hidden)?.into(), self.dtype)
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
            Head::Blocks(QMatMul::from_qtensor(self.stacked(&[weight], self.config.hidden)?)?.into())
        })
    }

    fn rope_factors(&mut self) -> Result<Option<Vec<f32>>> {
        let name = "rope_freqs.weight";
        if !self.content.tensor_infos.contains_key(name) {
            return Ok(None);
        }
        let factors = self.tensor(name, self.config.head_size / 2)?;
        Ok(Some(factors.dequantize(&Device::Cpu)?.to_vec1()?))
    }

    fn config(&self) -> &Config {
        self.config
    }
}
