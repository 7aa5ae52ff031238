//! The kinds of products: layers of a model in several layouts, and its attention.

use super::draw::Draw;
use super::models::{Model, VOCABULARIES};
use crate::lists::{Lines, Shape, Size};
use candle_tilegemm::problem::{F32Mode, Format, Layout};

/// The kind of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A layer of a model, aligned, `x @ w^T`.
    Dense,
    /// A layer with other layouts: weights stored as K x N, and gradients of weights.
    Layouts,
    /// A layer with odd lengths, at odd addresses, or with odd strides, in every layout.
    Unaligned,
    /// Scores and values of attention.
    Attention,
}

/// Names of the kinds, and products of each among any hundred that begin at a multiple of a hundred.
pub(super) const SHARES: [(Kind, &str, u32); 4] = [
    (Kind::Dense, "dense nt", 75),
    (Kind::Layouts, "other layouts", 8),
    (Kind::Unaligned, "unaligned", 9),
    (Kind::Attention, "attention", 8),
];
pub(super) const BLOCK: usize = 100;

/// The largest products, by the logarithm of m n k: 16 bits, f32, and f32 in the mode `strict`. An H100 takes 12 to 25 ms for them.
const MOST_VOLUME: [u32; 3] = [42, 39, 38];
/// The most elements of D, by the logarithm.
const MOST_D: u32 = 28;

/// The kinds of a block of products, in a random order.
pub(super) fn kinds(seed: u64, block: u64) -> Vec<Kind> {
    let mut kinds: Vec<Kind> =
        SHARES.into_iter().flat_map(|(kind, _, share)| std::iter::repeat_n(kind, share as usize)).collect();
    let mut draw = Draw::new(seed, 1 << 63 | block);
    for last in (1..kinds.len()).rev() {
        kinds.swap(last, draw.below(last + 1));
    }
    kinds
}

/// N and K of a layer, its name, and the hidden size of its model.
pub(super) struct Layer {
    pub n: usize,
    pub k: usize,
    pub from: String,
    pub hidden: usize,
}

/// The attention heads of a model.
pub(super) struct Heads {
    pub head: usize,
    pub heads: usize,
    pub from: String,
}

/// Where sizes come from.
pub(super) struct Source {
    pub layer: fn(&mut Draw, Format) -> Layer,
    pub heads: fn(&mut Draw, Format) -> Heads,
    pub rows: fn(&mut Draw) -> usize,
}

/// The sizes of [`MODELS`].
pub(super) const OF_MODELS: Source = Source {
    layer: |draw, format| {
        let model = draw.model(format);
        let (n, k, from) = layer(draw, model);
        Layer { n, k, from, hidden: model.hidden }
    },
    heads: |draw, format| {
        let &Model { name, head, heads, .. } = draw.model(format);
        Heads { head, heads, from: name.into() }
    },
    rows: Draw::rows,
};

pub(super) fn product(draw: &mut Draw, id: String, kind: Kind, source: &Source) -> Shape {
    loop {
        let drawn = match kind {
            Kind::Dense => dense(draw, source),
            Kind::Layouts => layouts(draw, source),
            Kind::Unaligned => unaligned(draw, source),
            Kind::Attention => attention(draw, source),
        };
        if kind == Kind::Attention || is_aligned(&drawn) == (kind != Kind::Unaligned) {
            return Shape { id, class: class(kind, &drawn).into(), ..drawn };
        }
    }
}

/// Whether all lines of A, B and D lie at multiples of 16 bytes. A definition of alignment elsewhere may change, and does not count here.
fn is_aligned(shape: &Shape) -> bool {
    let [lines_of_a, lines_of_b] = shape.lines();
    let line = |lines: Lines, stride: Option<u32>| match lines.count {
        1 => lines.length,
        _ => stride.map_or(lines.length, |stride| stride as usize),
    };
    let [a_offset, b_offset, d_offset] =
        [shape.a_offset, shape.b_offset, shape.d_offset].map(|offset| offset.unwrap_or(0) as usize);
    let elements = [
        line(lines_of_a, shape.a_stride),
        line(lines_of_b, shape.b_stride),
        shape.n.get(),
        a_offset,
        b_offset,
        d_offset,
    ];
    let of_16_bytes = if shape.dtype == Format::F32 { 4 } else { 8 };
    elements.iter().all(|elements| elements % of_16_bytes == 0)
}

fn class(kind: Kind, shape: &Shape) -> &'static str {
    match (kind, shape.f32, shape.m.get()) {
        (Kind::Layouts, ..) => "layouts",
        (Kind::Unaligned, ..) => "unaligned",
        (Kind::Attention, ..) => "attention",
        (_, Some(F32Mode::Strict), _) => "strict",
        (_, Some(F32Mode::Tf32), _) => "tf32",
        (_, Some(_), _) => "f32",
        (_, None, ..=4) => "decode",
        (_, None, ..=64) => "small",
        (_, None, ..=256) => "mid",
        (_, None, _) => "prefill",
    }
}

/// N and K of a layer of a model, or of its part on one of several cards, and the layer's name.
pub(super) fn layer(draw: &mut Draw, model: &Model) -> (usize, usize, String) {
    let &Model { name, hidden, ffn, head, heads, kv_heads, vocabulary, gated } = model;
    let cards = loop {
        let cards = draw.of(&[1, 1, 1, 1, 2, 2, 4, 8]);
        if heads % cards == 0 && ffn % cards == 0 {
            break cards;
        }
    };
    let (q, kv, ffn) = (head * heads / cards, head * (kv_heads / cards).max(1), ffn / cards);
    let (n, k, layer) = match draw.below(12) {
        0 | 1 => (q + 2 * kv, hidden, "qkv"),
        2 | 3 => (hidden, q, "o"),
        4 | 5 => (if gated { 2 * ffn } else { ffn }, hidden, if gated { "gate_up" } else { "up" }),
        6 | 7 => (hidden, ffn, "down"),
        8 => (ffn, hidden, "up"),
        9 => (q, hidden, "q"),
        10 => (kv, hidden, "kv"),
        _ => (usize::div_ceil(vocabulary, cards), hidden, "head"),
    };
    let part = if cards > 1 { format!(" / {cards}") } else { String::new() };
    (n, k, format!("{name} {layer}{part}"))
}

/// A row of these sizes. M is halved as long as the product is too large.
pub(super) fn shape(
    [m, n, k]: [usize; 3],
    batch: usize,
    layout: Layout,
    (dtype, f32): (Format, Option<F32Mode>),
) -> Shape {
    let volume = match f32 {
        None => MOST_VOLUME[0],
        Some(F32Mode::Strict) => MOST_VOLUME[2],
        Some(_) => MOST_VOLUME[1],
    };
    let mut m = m;
    let outputs = |m: usize| m as u64 * n as u64 * batch as u64;
    while m > 1 && (outputs(m) >> MOST_D > 0 || (outputs(m) * k as u64) >> volume > 0) {
        m /= 2;
    }
    let size = |size: usize| Size::try_from(size).expect("sizes of models are sizes");
    Shape { f32, ..Shape::dense([m, n, k].map(size), size(batch), layout, dtype) }
}

fn dense(draw: &mut Draw, source: &Source) -> Shape {
    let format = draw.format();
    let Layer { n, k, from, .. } = (source.layer)(draw, format.0);
    Shape { from: Some(from), ..shape([(source.rows)(draw), n, k], 1, Layout::NT, format) }
}

/// Weights stored as K x N, and gradients of weights: the sum is over the rows of a batch.
fn layouts(draw: &mut Draw, source: &Source) -> Shape {
    let format = draw.format();
    let Layer { n, k, from, .. } = (source.layer)(draw, format.0);
    let rows = (source.rows)(draw);
    let (sizes, layout) = match draw.below(4) {
        0 | 1 => ([rows, n, k], Layout::NN),
        2 => ([k, n, rows], Layout::TN),
        // The sum is along lines of B.
        _ => ([k, n, rows.next_multiple_of(8)], Layout::TT),
    };
    Shape { from: Some(from), ..shape(sizes, 1, layout, format) }
}

/// A layer with odd lengths, a vocabulary of odd length, or views at odd addresses or with odd strides.
fn unaligned(draw: &mut Draw, source: &Source) -> Shape {
    let format = draw.format();
    let Layer { n, k, from, hidden } = (source.layer)(draw, format.0);
    let layout = draw.of(&[Layout::NT, Layout::NT, Layout::NT, Layout::NN, Layout::TN, Layout::TT]);
    let rows = (source.rows)(draw);
    let sizes = |n: usize, k: usize| [rows, n, k];
    let of_model = |what: &str, shape: Shape| Shape { from: Some(format!("{from}, {what}")), ..shape };
    match draw.below(10) {
        0..4 => {
            let [n, k] = match draw.below(3) {
                0 => [n - 1 - draw.below(7), k],
                1 => [n, k - 1 - draw.below(7)],
                _ => [n - 1 - draw.below(7), k - 1 - draw.below(7)],
            };
            of_model("odd lengths", shape(sizes(n, k), 1, layout, format))
        }
        4 | 5 => {
            let (name, n) = draw.of(&VOCABULARIES);
            Shape { from: Some(format!("{name} head")), ..shape([rows, n, hidden], 1, layout, format) }
        }
        6 | 7 => {
            let mut offset = || draw.chance(50).then(|| 1 << draw.below(3));
            let (a_offset, b_offset, d_offset) = (offset(), offset(), offset());
            of_model("odd addresses", Shape { a_offset, b_offset, d_offset, ..shape(sizes(n, k), 1, layout, format) })
        }
        _ => {
            let plain = shape(sizes(n, k), 1, layout, format);
            let [a, b] = plain.lines().map(|lines| lines.length as u32);
            let mut stride = |line: u32| draw.chance(60).then(|| line + 1 + draw.below(7) as u32);
            let (a_stride, b_stride) = (stride(a), stride(b));
            of_model("odd strides", Shape { a_stride, b_stride, ..plain })
        }
    }
}

/// Scores and values of attention, for one token or for a sequence, of any length.
fn attention(draw: &mut Draw, source: &Source) -> Shape {
    let format = draw.format();
    let Heads { head, heads, from } = (source.heads)(draw, format.0);
    let heads = heads * draw.of(&[1, 1, 1, 2, 4, 8, 16]);
    let mut tokens = 16 * draw.octaves(8);
    tokens = if draw.chance(50) { tokens - 1 - draw.below(15) } else { tokens };
    while (tokens as u64 * tokens as u64 * heads as u64) >> (MOST_D - 1) > 0 {
        tokens /= 2;
    }
    let rows = if draw.chance(25) { 1 } else { tokens };
    let (sizes, layout, what) = match draw.below(2) {
        0 => ([rows, tokens, head], Layout::NT, "scores"),
        _ => ([rows, head, tokens], Layout::NN, "values"),
    };
    Shape { from: Some(format!("{from} {what}")), ..shape(sizes, heads, layout, format) }
}
