//! MiniLM, a BERT encoder, on our layers and `gemm`.

use crate::input::Batch;
use crate::model::Embedder;
use candle::{DType, IndexOp, Module, Result, Tensor};
use candle_nn::{embedding, layer_norm, ops::softmax_last_dim, Embedding, LayerNorm, VarBuilder};
use candle_tilegemm::nn::{linear, Linear};
use candle_tilegemm::{Activation, Gemm, GemmExt};
use candle_transformers::models::bert::{Config, HiddenAct};

pub struct MiniLm {
    embeddings: Embeddings,
    layers: Vec<Layer>,
}

impl MiniLm {
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let embeddings = Embeddings::load(vb.pp("embeddings"), config)?;
        let vb = vb.pp("encoder.layer");
        let layers = (0..config.num_hidden_layers).map(|index| Layer::load(vb.pp(index), config));
        Ok(Self { embeddings, layers: layers.collect::<Result<_>>()? })
    }
}

impl Embedder for MiniLm {
    fn hidden_states(&self, Batch { ids, mask }: &Batch) -> Result<Tensor> {
        let x = self.embeddings.forward(ids)?;
        let mask = additive_mask(mask, x.dtype())?;
        self.layers.iter().try_fold(x, |x, layer| layer.forward(&x, &mask))
    }
}

/// The term added to the attention scores: 0 for tokens, -inf for padding; (batch, 1, 1, tokens).
///
/// Every sentence has tokens, so no row is -inf throughout.
pub fn additive_mask(mask: &Tensor, dtype: DType) -> Result<Tensor> {
    mask.log()?.to_dtype(dtype)?.unsqueeze(1)?.unsqueeze(1) // ln 1 = 0, ln 0 = -inf
}

/// Words plus positions, normalised.
pub struct Embeddings {
    words: Embedding,
    /// (positions, hidden); includes the embedding of the first segment, the only segment here.
    positions: Tensor,
    norm: LayerNorm,
}

impl Embeddings {
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let hidden = config.hidden_size;
        let words = embedding(config.vocab_size, hidden, vb.pp("word_embeddings"))?;
        let positions = vb.get((config.max_position_embeddings, hidden), "position_embeddings.weight")?;
        let segments = vb.get((config.type_vocab_size, hidden), "token_type_embeddings.weight")?;
        let positions = positions.broadcast_add(&segments.i(0)?)?;
        Ok(Self { words, positions, norm: layer_norm(hidden, config.layer_norm_eps, vb.pp("LayerNorm"))? })
    }

    /// (batch, tokens) to (batch, tokens, hidden).
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let positions = self.positions.narrow(0, 0, ids.dim(1)?)?;
        self.norm.forward(&self.words.forward(ids)?.broadcast_add(&positions)?)
    }
}

struct Layer {
    heads: usize,
    /// Query, key and value in one product.
    qkv: Linear,
    attention_output: Linear,
    attention_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

impl Layer {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let norm = |name| layer_norm(hidden, config.layer_norm_eps, vb.pp(name));
        let activation = match config.hidden_act {
            HiddenAct::Gelu => Activation::GeluErf,
            HiddenAct::GeluApproximate => Activation::GeluTanh,
            HiddenAct::Relu => Activation::Relu,
        };
        let projections = vb.pp("attention.self");
        let stack = |shape: &[usize], name| {
            let parts = ["query", "key", "value"].map(|part| projections.pp(part).get(shape, name));
            Tensor::cat(&parts.into_iter().collect::<Result<Vec<_>>>()?, 0)
        };
        Ok(Self {
            heads: config.num_attention_heads,
            qkv: Linear::new(stack(&[hidden, hidden], "weight")?, Some(stack(&[hidden], "bias")?)),
            attention_output: linear(hidden, hidden, vb.pp("attention.output.dense"))?,
            attention_norm: norm("attention.output.LayerNorm")?,
            intermediate: linear(hidden, wide, vb.pp("intermediate.dense"))?.with_activation(activation),
            output: linear(wide, hidden, vb.pp("output.dense"))?,
            output_norm: norm("output.LayerNorm")?,
        })
    }

    /// (batch, tokens, hidden) to (batch, tokens, hidden).
    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let attended = self.attend(x, mask)?;
        let x = self.attention_norm.forward(&self.attention_output.forward_residual(&attended, x)?)?;
        let wide = self.intermediate.forward(&x)?;
        self.output_norm.forward(&self.output.forward_residual(&wide, &x)?)
    }

    fn attend(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (batch, tokens, hidden) = x.dims3()?;
        let size = hidden / self.heads;
        let qkv = self.qkv.forward(x)?.reshape((batch, tokens, 3, self.heads, size))?;
        // Views of one tensor, (batch, heads, tokens, size), which `gemm` reads without copies.
        let part = |index| qkv.i((.., .., index))?.transpose(1, 2);
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let scores = Gemm::new().alpha(1.0 / (size as f64).sqrt()).forward(&q, &k.t()?)?; // (batch, heads, tokens, tokens)
        let weights = softmax_last_dim(&scores.broadcast_add(mask)?)?;
        weights.gemm(&v)?.transpose(1, 2)?.reshape(x.shape())
    }
}
