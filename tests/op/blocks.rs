//! The blocks of a layer on the CPU.

#[path = "../support/layers.rs"]
mod layers;
#[path = "../support/sampler.rs"]
mod sampler;

use candle::{DType, Device, Module, Result, Tensor, Var};
use candle_tilegemm::nn::attention::{self, KvCache, Rope, RopeStyle, Settings, Workspace};
use candle_tilegemm::nn::{gate, Embedding, GateFunction, Next, RmsNorm, Sampler, Sampling};
use candle_tilegemm::problem::Gate;
use layers::{ints, randn, Shape};

const CPU: &Device = &Device::Cpu;

/// Sizes that kernels have, and odd ones.
fn shapes() -> Vec<Shape> {
    let types =
        [(DType::F32, DType::F32), (DType::BF16, DType::BF16), (DType::F16, DType::F16), (DType::BF16, DType::F8E4M3)];
    let sizes = [(1, 1, 64, 40), (9, 3, 64, 70), (4, 1, 6, 50)];
    let of = |(dtype, cache)| {
        sizes.map(|(heads, kv_heads, head, capacity)| Shape { heads, kv_heads, head, capacity, dtype, cache })
    };
    types.into_iter().flat_map(of).collect()
}

#[test]
fn norms_are_as_in_f64() -> Result<()> {
    layers::norms(CPU)
}

#[test]
fn embeddings_are_rows_of_the_table() -> Result<()> {
    layers::embeddings(CPU)
}

#[test]
fn embeddings_of_blocks_are_rows_of_the_table() -> Result<()> {
    layers::embeddings_of_blocks(CPU)
}

#[test]
fn gates_are_as_in_f64() -> Result<()> {
    layers::gates(CPU)
}

#[test]
fn appends_are_as_in_f64() -> Result<()> {
    shapes().into_iter().try_for_each(|shape| layers::appends(CPU, shape))
}

#[test]
fn attention_of_one_row_is_as_in_f64() -> Result<()> {
    shapes().into_iter().try_for_each(|shape| layers::decodes(CPU, shape))
}

#[test]
fn attention_of_prompts_is_as_in_f64() -> Result<()> {
    shapes().into_iter().try_for_each(|shape| layers::prefills(CPU, shape))
}

#[test]
fn sinks_are_none_or_all_or_nan() -> Result<()> {
    layers::sinks::refused(CPU)?;
    shapes().into_iter().try_for_each(|shape| layers::sinks::special(CPU, shape))
}

#[test]
fn attention_passes_nan_on_and_reads_nothing_behind_a_length() -> Result<()> {
    let cache = KvCache::new(2, 1, 4, 2, DType::F32, CPU)?;
    // Positions 0 and 1 are numbers, 2 has a NaN in K, 3 in V.
    let rows = [[1., 0., 1., 2.], [0., 1., 3., 4.], [f32::NAN, 0., 5., 6.], [1., 0., f32::NAN, 8.]];
    let qkv: Vec<Vec<f32>> = rows.iter().map(|kv| [&[1., 1.], &kv[..]].concat()).collect();
    let q = attention::append(
        &Tensor::new(qkv, CPU)?,
        &cache,
        &ints(&[0, 1, 2, 3], CPU)?,
        Some(&ints(&[0; 4], CPU)?),
        &Rope::none(),
    )?;
    let of = |length: i32| -> Result<Vec<f32>> {
        let workspace = Workspace::new(1, 1, 2, CPU)?;
        let settings = Settings::new(2).with_scale(1.0);
        attention::decode(&q.narrow(0, 0, 1)?, &cache, &ints(&[length], CPU)?, None, &settings, &workspace)?
            .flatten_all()?
            .to_vec1()
    };
    assert_eq!(of(2)?, [2., 3.]);
    assert!(of(3)?.iter().all(|x| x.is_nan()));
    Ok(())
}

#[test]
fn append_and_attention_in_one_call_are_both() -> Result<()> {
    let shape = Shape { heads: 4, kv_heads: 2, head: 8, capacity: 6, dtype: DType::F32, cache: DType::F32 };
    let caches = [layers::filled(CPU, shape, 3)?, KvCache::new(3, 2, 6, 8, DType::F32, CPU)?];
    caches[1].k().slice_set(caches[0].k(), 0, 0)?;
    caches[1].v().slice_set(caches[0].v(), 0, 0)?;
    let (qkv, rope) = (randn(&[3, shape.columns()], DType::F32, CPU)?, Rope::new(RopeStyle::Halves, 8, 1e4, CPU)?);
    let (positions, lengths) = (ints(&[0, 3, 5], CPU)?, ints(&[1, 4, 6], CPU)?);
    let (settings, workspace) = (Settings::new(8), Workspace::new(3, 4, 8, CPU)?);
    let q = attention::append(&qkv, &caches[0], &positions, None, &rope)?;
    let expected = attention::decode(&q, &caches[0], &lengths, None, &settings, &workspace)?;
    let out = [q.zeros_like()?, q.zeros_like()?];
    attention::append_decode_into(
        &qkv,
        &caches[1],
        [&positions, &lengths],
        None,
        &rope,
        &settings,
        &workspace,
        [&out[0], &out[1]],
    )?;
    layers::close("q", &out[0], &layers::exact(&q)?, |_| 0.0)?;
    layers::close("the result", &out[1], &layers::exact(&expected)?, |_| 0.0)
}

/// A prompt in chunks, and token by token.
#[test]
fn a_prompt_in_parts_is_the_prompt() -> Result<()> {
    let (heads, kv_heads, head) = (4, 2, 16);
    let qkv = randn(&[11, (heads + 2 * kv_heads) * head], DType::F32, CPU)?;
    let (rope, settings) = (Rope::new(RopeStyle::Interleaved, head, 1e4, CPU)?, Settings::new(head).with_window(6));
    let workspace = Workspace::new(1, heads, head, CPU)?;
    let run = |parts: &[usize]| -> Result<Tensor> {
        let cache = KvCache::new(1, kv_heads, 16, head, DType::F32, CPU)?;
        let (mut past, mut outs) = (0, Vec::new());
        for &tokens in parts {
            let positions: Vec<i32> = (past..past + tokens).map(|p| p as i32).collect();
            let slots = ints(&vec![0; tokens], CPU)?;
            let part = qkv.narrow(0, past, tokens)?;
            let q = attention::append(&part, &cache, &ints(&positions, CPU)?, Some(&slots), &rope)?;
            outs.push(match tokens {
                1 => attention::decode(&q, &cache, &ints(&[past as i32 + 1], CPU)?, None, &settings, &workspace)?,
                _ => attention::prefill(&q, &cache, 0, past, &settings, &workspace)?,
            });
            past += tokens;
        }
        Tensor::cat(&outs, 0)
    };
    let whole = layers::exact(&run(&[11])?)?;
    layers::close("in two parts", &run(&[4, 7])?, &whole, |_| 1e-6)?;
    layers::close("token by token", &run(&[1; 11])?, &whole, |_| 1e-6)
}

#[test]
fn the_largest_logit_is_taken() -> Result<()> {
    sampler::greedy(CPU)
}

#[test]
fn a_choice_changes_what_the_next_step_reads() -> Result<()> {
    sampler::state(CPU)
}

#[test]
fn tokens_are_drawn_by_their_probability() -> Result<()> {
    sampler::distributions(CPU)
}

#[test]
fn tokens_of_the_history_are_penalised() -> Result<()> {
    sampler::penalties(CPU)
}

#[test]
fn draws_have_keys() -> Result<()> {
    sampler::keys(CPU)
}

#[test]
fn settings_can_be_replaced() -> Result<()> {
    let sampler = Sampler::new(&[Sampling::greedy(); 2], 4, CPU)?;
    let logits = Tensor::new(&[[0f32, 1., 2., 3.], [3., 2., 1., 0.]], CPU)?;
    let (tokens, positions) = (Tensor::zeros(2, DType::U32, CPU)?, ints(&[0, 0], CPU)?);
    sampler.choose(&logits, &Next::new(&tokens, &positions))?;
    assert_eq!(tokens.to_vec1::<u32>()?, [3, 0]);
    sampler.set(&[Sampling::new(1e9, 1); 2])?;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..50 {
        sampler.choose(&logits, &Next::new(&tokens, &positions))?;
        seen.extend(tokens.to_vec1::<u32>()?);
    }
    assert_eq!(seen.len(), 4, "at a high temperature all tokens are drawn");
    Ok(())
}

fn text<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => "no error".into(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_does_not_fit_is_named() -> Result<()> {
    let f32s = |shape: &[usize]| randn(shape, DType::F32, CPU);
    let norm = RmsNorm::new(f32s(&[8])?, 1e-5);
    let variable = Var::from_tensor(&f32s(&[2, 8])?)?;
    let cache = KvCache::new(2, 2, 4, 8, DType::F32, CPU)?;
    let (settings, workspace) = (Settings::new(8), Workspace::new(2, 4, 8, CPU)?);
    let qkv = f32s(&[2, 64])?;
    let append = |qkv: &Tensor, positions: &Tensor| {
        attention::append(qkv, &cache, positions, None, &Rope::new(RopeStyle::Halves, 8, 1e4, CPU)?)
    };
    let decode = |q: &Tensor, lengths: &Tensor, settings: &Settings| {
        attention::decode(q, &cache, lengths, None, settings, &workspace)
    };
    let two = ints(&[0, 1], CPU)?;
    let sampler = Sampler::greedy(2, 8, CPU)?;
    let tokens = Tensor::zeros(2, DType::U32, CPU)?;
    let errors = [
        (text(norm.forward(&f32s(&[2, 7])?)), "x has the shape [2, 7], and there are 8 weights"),
        (text(norm.forward(&randn(&[2, 8], DType::F64, CPU)?)), "x is in F64; expected one of"),
        (text(norm.forward(&randn(&[2, 8], DType::BF16, CPU)?)), "the weight is F32 [8]"),
        (text(norm.add(&f32s(&[2, 8])?, &f32s(&[3, 8])?)), "the residual has the shape [3, 8]; expected [2, 8]"),
        (text(norm.forward(variable.as_tensor())), "x tracks gradients, and this block passes none; call `.detach()`"),
        (text(norm.forward(&f32s(&[8, 2])?.t()?)), "call `.contiguous()?`"),
        (text(Embedding::new(f32s(&[4, 8])?, 8).forward(&f32s(&[2])?)), "tokens is F32 [2]"),
        (text(gate(&f32s(&[2, 7])?, Gate::Halves, GateFunction::SwiGlu)), "expected rows of gates and as many numbers"),
        (text(append(&f32s(&[2, 63])?, &two)), "expected rows of (heads + 2 * 2) * 8 numbers"),
        (text(append(&f32s(&[2, 32])?, &two)), "expected rows of (heads + 2 * 2) * 8 numbers"),
        (text(append(&qkv, &ints(&[0], CPU)?)), "positions is U32 [1]"),
        (text(append(&qkv, &Tensor::new(&[0i64, 1], CPU)?)), "expected 2 contiguous numbers in U32"),
        (text(append(&randn(&[2, 64], DType::BF16, CPU)?, &two)), "the cache is F32"),
        (text(append(Var::from_tensor(&qkv)?.as_tensor(), &two)), "qkv tracks gradients"),
        (text(decode(&f32s(&[2, 3, 8])?, &two, &settings)), "expected a multiple of 2 heads, of 8 numbers each"),
        (text(decode(&f32s(&[2, 4, 8])?, &ints(&[1], CPU)?, &settings)), "lengths is U32 [1]"),
        (text(decode(&f32s(&[2, 4, 8])?, &two, &Settings::new(8).with_scale(0.0))), "a scale of 0"),
        (
            text(attention::prefill(&f32s(&[2, 4, 8])?, &cache, 1, 3, &settings, &workspace)),
            "2 tokens from position 3 on in slot 1; the cache has 2 slots of 4 positions",
        ),
        (text(KvCache::new(1, 1, 1, 3, DType::F32, CPU)), "an even head"),
        (text(KvCache::new(1, 1, 1, 2, DType::U32, CPU)), "no caches in U32"),
        (text(KvCache::bytes(1 << 40, 1 << 20, 1 << 20, 64, DType::F16)), "more bytes than there are addresses"),
        (text(sampler.choose(&f32s(&[2, 7])?, &Next::new(&tokens, &two))), "the logits are [2, 7]"),
        (text(sampler.choose(&f32s(&[2, 8])?, &Next::new(&f32s(&[2])?, &two))), "tokens is F32 [2]"),
        (text(sampler.set(&[Sampling::greedy(); 2])), "make the sampler by `Sampler::new`"),
        (text(Sampler::greedy(0, 8, CPU)), "expected 1 and more"),
    ];
    for (error, words) in errors {
        assert!(error.contains(words), "{error}\ndoes not have\n{words}");
    }
    Ok(())
}
