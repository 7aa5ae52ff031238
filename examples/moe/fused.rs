//! Qwen3's mixture of experts, written on `nn::moe::FusedMoe`. Everything but the layer of experts calls candle as candle_transformers' model does, with
//! the same names of weights, so that the difference between the two models is the layer.

use candle::{Module, Result, Tensor};
use candle_nn::kv_cache::ConcatKvCache;
use candle_nn::{embedding, linear_no_bias, ops, rms_norm, rotary_emb, Embedding, Linear, RmsNorm, VarBuilder};
use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg};
use candle_transformers::models::qwen3_moe::Config;
use candle_transformers::utils::{build_additive_causal_mask, repeat_kv};

pub struct Qwen3 {
    embed: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    rotary: Rotary,
}

impl Qwen3 {
    /// A model whose layers all have experts, without biases and without tied embeddings, as Qwen3-30B-A3B is.
    pub fn new(config: &Config, weights: VarBuilder) -> Result<Self> {
        let model = weights.pp("model");
        let layer = |i: usize| Layer::new(config, model.pp("layers").pp(i));
        Ok(Self {
            embed: embedding(config.vocab_size, config.hidden_size, model.pp("embed_tokens"))?,
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_>>()?,
            norm: rms_norm(config.hidden_size, config.rms_norm_eps, model.pp("norm"))?,
            head: linear_no_bias(config.hidden_size, config.vocab_size, weights.pp("lm_head"))?,
            rotary: Rotary::new(config, &weights)?,
        })
    }

    /// The logits of the last of `tokens`, which come after `offset` earlier tokens.
    pub fn forward(&mut self, tokens: &Tensor, offset: usize) -> Result<Tensor> {
        let (_, length) = tokens.dims2()?;
        let mut x = self.embed.forward(tokens)?;
        let mask = (length > 1).then(|| build_additive_causal_mask(length, offset, None, x.device(), x.dtype()));
        let mask = mask.transpose()?;
        for layer in &mut self.layers {
            x = layer.forward(&x, mask.as_ref(), &self.rotary, offset)?;
        }
        self.norm.forward(&x)?.narrow(1, length - 1, 1)?.apply(&self.head)
    }

    pub fn clear_kv_cache(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.attention.cache.reset());
    }
}

struct Layer {
    before_attention: RmsNorm,
    attention: Attention,
    before_experts: RmsNorm,
    experts: FusedMoe,
}

impl Layer {
    fn new(config: &Config, weights: VarBuilder) -> Result<Self> {
        let norm = |name: &str| rms_norm(config.hidden_size, config.rms_norm_eps, weights.pp(name));
        let experts = MoeCfg {
            hidden_size: config.hidden_size,
            num_experts: config.num_experts,
            num_experts_per_tok: config.num_experts_per_tok,
            moe_intermediate_size: config.moe_intermediate_size,
            norm_topk_prob: config.norm_topk_prob,
            act: config.hidden_act,
            decoder_sparse_step: None,
        };
        Ok(Self {
            before_attention: norm("input_layernorm")?,
            attention: Attention::new(config, weights.pp("self_attn"))?,
            before_experts: norm("post_attention_layernorm")?,
            experts: FusedMoe::new(&experts, weights.pp("mlp"), weights.dtype())?,
        })
    }

    fn forward(&mut self, x: &Tensor, mask: Option<&Tensor>, rotary: &Rotary, offset: usize) -> Result<Tensor> {
        let attention = self.attention.forward(&self.before_attention.forward(x)?, mask, rotary, offset)?;
        let x = (x + attention)?;
        let experts = self.experts.forward(&self.before_experts.forward(&x)?, mask.is_some())?;
        x + experts
    }
}

/// Attention of groups of heads, with a norm of each head's queries and keys.
struct Attention {
    queries: Linear,
    keys: Linear,
    values: Linear,
    out: Linear,
    norm_of_queries: RmsNorm,
    norm_of_keys: RmsNorm,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    cache: ConcatKvCache,
}

impl Attention {
    fn new(config: &Config, weights: VarBuilder) -> Result<Self> {
        let Config { hidden_size, head_dim, num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = *config;
        let from_hidden = |heads: usize, name: &str| linear_no_bias(hidden_size, heads * head_dim, weights.pp(name));
        let norm = |name: &str| rms_norm(head_dim, config.rms_norm_eps, weights.pp(name));
        Ok(Self {
            queries: from_hidden(heads, "q_proj")?,
            keys: from_hidden(kv_heads, "k_proj")?,
            values: from_hidden(kv_heads, "v_proj")?,
            out: linear_no_bias(heads * head_dim, hidden_size, weights.pp("o_proj"))?,
            norm_of_queries: norm("q_norm")?,
            norm_of_keys: norm("k_norm")?,
            heads,
            kv_heads,
            head_dim,
            cache: ConcatKvCache::new(2),
        })
    }

    fn forward(&mut self, x: &Tensor, mask: Option<&Tensor>, rotary: &Rotary, offset: usize) -> Result<Tensor> {
        let (batch, length, _) = x.dims3()?;
        // (batch, heads, length, head_dim)
        let of_heads = |weights: &Linear, heads: usize| {
            weights.forward(x)?.reshape((batch, length, heads, self.head_dim))?.transpose(1, 2)
        };
        let turned = |norm: &RmsNorm, x: Tensor| rotary.apply(&norm.forward(&x.contiguous()?)?, offset);
        let queries = turned(&self.norm_of_queries, of_heads(&self.queries, self.heads)?)?;
        let keys = turned(&self.norm_of_keys, of_heads(&self.keys, self.kv_heads)?)?;
        let values = of_heads(&self.values, self.kv_heads)?;
        let (keys, values) = self.cache.append(&keys, &values)?;
        let repeat = |x: Tensor| repeat_kv(x, self.heads / self.kv_heads)?.contiguous();
        let (keys, values) = (repeat(keys)?, repeat(values)?);

        let scores = (queries.matmul(&keys.transpose(2, 3)?)? / (self.head_dim as f64).sqrt())?;
        let scores = match mask {
            Some(mask) => scores.broadcast_add(mask)?,
            None => scores,
        };
        let x = ops::softmax_last_dim(&scores)?.matmul(&values)?;
        x.transpose(1, 2)?.reshape((batch, length, self.heads * self.head_dim))?.apply(&self.out)
    }
}

/// The angles of rotary position embeddings.
struct Rotary {
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    fn new(config: &Config, weights: &VarBuilder) -> Result<Self> {
        let (half, positions) = (config.head_dim / 2, config.max_position_embeddings);
        let frequency = |i: usize| config.rope_theta.powf(-(i as f64) / half as f64) as f32;
        let frequencies = Tensor::from_iter((0..half).map(frequency), weights.device())?.reshape((1, half))?;
        let positions = Tensor::arange(0, positions as u32, weights.device())?.to_dtype(frequencies.dtype())?;
        let angles = positions.unsqueeze(1)?.broadcast_mul(&frequencies)?;
        let rounded = |x: Tensor| x.to_dtype(weights.dtype());
        Ok(Self { cos: rounded(angles.cos()?)?, sin: rounded(angles.sin()?)? })
    }

    fn apply(&self, x: &Tensor, offset: usize) -> Result<Tensor> {
        let length = x.dim(2)?;
        rotary_emb::rope(x, &self.cos.narrow(0, offset, length)?, &self.sin.narrow(0, offset, length)?)
    }
}
