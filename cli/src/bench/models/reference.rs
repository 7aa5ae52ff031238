//! The models once more, in f64 throughout: the reference for the outputs of both arms.
//!
//! candle-transformers' models have no f64 form. In every type, candle's layer norm and RMS norm compute in f32 on a
//! GPU (and refuse f64 on the CPU), and the llama's attention is in f32. The weights are the model's own, in the
//! model's type. Each layer's weights are converted when the layer needs them, because all weights of an 8B model in
//! f64 do not fit beside the model.

use candle::{DType, Device, IndexOp, Result, Tensor, D};
use candle_nn::{embedding, layer_norm, linear, linear_no_bias, ops::softmax, rotary_emb::rope};
use candle_nn::{LayerNorm, LayerNormConfig, Linear, Module, VarBuilder};
use candle_transformers::models::{bert, llama};
use candle_transformers::utils::repeat_kv;

/// Hidden states of the last layer, (batch, tokens, hidden), of sequences without padding.
pub fn bert(vb: &VarBuilder, config: &bert::Config, ids: &Tensor) -> Result<Tensor> {
    // The same search for tensors as in `BertModel`.
    let prefixed = vb.contains_tensor("bert") || !vb.contains_tensor("embeddings.word_embeddings.weight");
    let vb = if prefixed { vb.pp("bert") } else { vb.clone() };
    let (batch, tokens) = ids.dims2()?;
    let (hidden, wide, heads) = (config.hidden_size, config.intermediate_size, config.num_attention_heads);
    let norm = |vb: VarBuilder, x: &Tensor| norm(&layer_norm(hidden, config.layer_norm_eps, vb)?, x);

    let looked_up =
        |rows, name, ids: &Tensor| double(&embedding(rows, hidden, vb.pp("embeddings").pp(name))?.forward(ids)?);
    let words = looked_up(config.vocab_size, "word_embeddings", ids)?;
    let positions = Tensor::arange(0, tokens as u32, ids.device())?;
    let positions = looked_up(config.max_position_embeddings, "position_embeddings", &positions)?;
    let segments = looked_up(config.type_vocab_size, "token_type_embeddings", &ids.zeros_like()?)?;
    let x = (words + segments)?.broadcast_add(&positions)?.reshape((batch * tokens, hidden))?;
    let mut x = norm(vb.pp("embeddings.LayerNorm"), &x)?;
    for layer in 0..config.num_hidden_layers {
        let vb = vb.pp("encoder.layer").pp(layer);
        let project = |from, to, name, x: &Tensor| apply(&linear(from, to, vb.pp(name))?, x);
        let part = |name, x: &Tensor| split(&project(hidden, hidden, name, x)?, batch, heads);
        let (q, k) = (part("attention.self.query", &x)?, part("attention.self.key", &x)?);
        let attended = attend(&q, &k, &part("attention.self.value", &x)?, None)?;
        let attended = project(hidden, hidden, "attention.output.dense", &attended)?;
        x = norm(vb.pp("attention.output.LayerNorm"), &(attended + x)?)?;
        let inner = project(hidden, wide, "intermediate.dense", &x)?;
        let inner = match config.hidden_act {
            bert::HiddenAct::Gelu => inner.gelu_erf()?,
            bert::HiddenAct::GeluApproximate => inner.gelu()?,
            bert::HiddenAct::Relu => inner.relu()?,
        };
        x = norm(vb.pp("output.LayerNorm"), &(project(wide, hidden, "output.dense", &inner)? + x)?)?;
    }
    x.reshape((batch, tokens, hidden))
}

/// Logits after each token from `first` on, (batch, tokens - first, vocabulary).
///
/// Angles are rounded to f32, as in candle; `rope_scaling` is ignored.
pub fn llama(vb: &VarBuilder, config: &llama::Config, ids: &Tensor, first: usize) -> Result<Tensor> {
    let (batch, tokens) = ids.dims2()?;
    let (hidden, wide, vocabulary) = (config.hidden_size, config.intermediate_size, config.vocab_size);
    let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
    let size = hidden / heads;
    let plain = LayerNormConfig { eps: config.rms_norm_eps, remove_mean: false, affine: false };
    let norm = |vb: VarBuilder, x: &Tensor| norm(&layer_norm(hidden, plain, vb)?, x);
    let (cos, sin) = angles(tokens, size, config.rope_theta, ids.device())?;
    let mask = causal(tokens, ids.device())?;

    let words = embedding(vocabulary, hidden, vb.pp("model.embed_tokens"))?;
    let mut x = double(&words.forward(&ids.flatten_all()?)?)?;
    for layer in 0..config.num_hidden_layers {
        let vb = vb.pp("model.layers").pp(layer);
        let project = |from, to, name, x: &Tensor| apply(&linear_no_bias(from, to, vb.pp(name))?, x);
        let part = |heads, name, x: &Tensor| split(&project(hidden, heads * size, name, x)?, batch, heads);
        let input = norm(vb.pp("input_layernorm"), &x)?;
        let q = rope(&part(heads, "self_attn.q_proj", &input)?, &cos, &sin)?;
        let k = rope(&part(kv_heads, "self_attn.k_proj", &input)?, &cos, &sin)?;
        let v = part(kv_heads, "self_attn.v_proj", &input)?;
        let (k, v) = (repeat_kv(k, heads / kv_heads)?, repeat_kv(v, heads / kv_heads)?);
        let attended = attend(&q, &k, &v, Some(&mask))?;
        x = (project(heads * size, hidden, "self_attn.o_proj", &attended)? + x)?;
        let input = norm(vb.pp("post_attention_layernorm"), &x)?;
        let gate = project(hidden, wide, "mlp.gate_proj", &input)?.silu()?;
        let inner = (gate * project(hidden, wide, "mlp.up_proj", &input)?)?;
        x = (project(wide, hidden, "mlp.down_proj", &inner)? + x)?;
    }
    let last = x.reshape((batch, tokens, hidden))?.narrow(1, first, tokens - first)?.reshape(((), hidden))?;
    let last = norm(vb.pp("model.norm"), &last)?;
    let head = match config.tie_word_embeddings {
        true => Linear::new(words.embeddings().clone(), None),
        false => linear_no_bias(hidden, vocabulary, vb.pp("lm_head"))?,
    };
    apply(&head, &last)?.reshape((batch, tokens - first, vocabulary))
}

fn double(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(DType::F64)
}

fn plus(x: Tensor, term: Option<&Tensor>) -> Result<Tensor> {
    term.map(|term| x.broadcast_add(&double(term)?)).unwrap_or(Ok(x))
}

/// A layer on the rows of `x`.
fn apply(layer: &Linear, x: &Tensor) -> Result<Tensor> {
    plus(x.matmul(&double(layer.weight())?.t()?)?, layer.bias())
}

/// The norm of the rows of `x`. Without a bias candle's own layer computes in the type of its input.
fn norm(layer: &LayerNorm, x: &Tensor) -> Result<Tensor> {
    let weight = double(layer.weight())?;
    let unbiased = match layer.remove_mean() {
        true => LayerNorm::new_no_bias(weight, layer.eps()),
        false => LayerNorm::rms_norm(weight, layer.eps()),
    };
    plus(unbiased.forward(x)?, layer.bias())
}

/// Rows of all heads as (batch, heads, tokens, size).
fn split(x: &Tensor, batch: usize, heads: usize) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    x.reshape((batch, rows / batch, heads, width / heads))?.transpose(1, 2)?.contiguous()
}

/// Attention as rows of all heads; one sequence after the other, because scores in f64 are large.
fn attend(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let (batch, heads, tokens, size) = q.dims4()?;
    let one = |sequence: usize| {
        let (q, k, v) = (q.i(sequence)?, k.i(sequence)?, v.i(sequence)?);
        let scores = (q.matmul(&k.t()?)? / (size as f64).sqrt())?;
        softmax(&plus(scores, mask)?, D::Minus1)?.matmul(&v)?.transpose(0, 1)?.reshape((tokens, heads * size))
    };
    Tensor::cat(&(0..batch).map(one).collect::<Result<Vec<_>>>()?, 0)
}

/// 0 for a token and the tokens before, -inf for the tokens behind.
fn causal(tokens: usize, device: &Device) -> Result<Tensor> {
    let ahead = |row, column| if column > row { f64::NEG_INFINITY } else { 0.0 };
    let mask: Vec<f64> = (0..tokens).flat_map(|row| (0..tokens).map(move |column| ahead(row, column))).collect();
    Tensor::from_vec(mask, (tokens, tokens), device)
}

/// Cosines and sines, (tokens, size / 2) each.
fn angles(tokens: usize, size: usize, theta: f32, device: &Device) -> Result<(Tensor, Tensor)> {
    let angle = |token: usize, index: usize| token as f32 * (1.0 / theta.powf(index as f32 / size as f32));
    let all = (0..tokens).flat_map(|token| (0..size).step_by(2).map(move |index| f64::from(angle(token, index))));
    let angles = Tensor::from_iter(all, device)?.reshape((tokens, size / 2))?;
    Ok((angles.cos()?, angles.sin()?))
}
