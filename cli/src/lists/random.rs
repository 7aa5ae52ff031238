//! Random products of the kind that models have, for estimates that no suite was fitted to.
//!
//! A seed is an endless list of products, the same on every platform and in every version: `cli/tests/cli/random` holds the first ones. ChaCha8
//! gives the numbers. The stream of ChaCha8 is a standard, and all arithmetic is on integers. Product `i` has a stream of its own, so
//! that a change of one kind of product would leave the others alone. A change of the list changes the meaning of records: new
//! kinds of products go to new lists ([`OWN_LISTS`]).

use super::experts::GGUF_CLASS;
use super::{gguf, Lines, Shape, Size};
use candle_tilegemm::problem::{F32Mode, Format, Layout};
use models::{Model, MODELS, VOCABULARIES};
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

mod blocks;
mod experts;
mod extreme;
mod models;
mod widths;

/// The kind of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
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
const SHARES: [(Kind, &str, u32); 4] = [
    (Kind::Dense, "dense nt", 75),
    (Kind::Layouts, "other layouts", 8),
    (Kind::Unaligned, "unaligned", 9),
    (Kind::Attention, "attention", 8),
];
const BLOCK: usize = 100;

/// Classes of the products. The first seven are dense: 16 bits by the number of rows, and f32 by mode.
pub const CLASSES: [&str; 10] =
    ["decode", "small", "mid", "prefill", "f32", "strict", "tf32", "layouts", "unaligned", "attention"];

/// The most rows.
const MOST_M: usize = 16_384;
/// The largest products, by the logarithm of m n k: 16 bits, f32, and f32 in the mode `strict`. An H100 takes 12 to 25 ms for them.
const MOST_VOLUME: [u32; 3] = [42, 39, 38];
/// The most elements of D, by the logarithm.
const MOST_D: u32 = 28;

/// Shares in per cent of each kind of product; of a list with weights in blocks, of each format.
pub fn shares(classes: &[String]) -> Vec<(&'static str, u32)> {
    own_list(classes).map_or_else(of_kinds, |list| (list.shares)())
}

fn of_kinds() -> Vec<(&'static str, u32)> {
    SHARES.into_iter().map(|(_, name, share)| (name, share)).collect()
}

fn of_formats(formats: &[(Format, usize)]) -> Vec<(&'static str, u32)> {
    formats.iter().map(|(format, share)| (format.name(), 5 * *share as u32)).collect()
}

/// The first `count` products of these classes in the list of `seed`. Without classes, products of all classes count. A class of [`OWN_LISTS`], alone, has a list of
/// its own. Other classes give no products.
pub fn products(seed: u64, count: usize, classes: &[String]) -> Vec<Shape> {
    if let Some(list) = own_list(classes) {
        return (0..count).map(|index| (list.product)(seed, index)).collect();
    }
    if !classes.iter().all(|class| CLASSES.contains(&class.as_str())) {
        return Vec::new();
    }
    let wanted = |shape: &Shape| classes.is_empty() || classes.contains(&shape.class);
    list(seed).filter(wanted).take(count).collect()
}

/// A class with a list of its own: the shares of its kinds of products, and the product of a seed and an index.
struct OwnList {
    class: &'static str,
    shares: fn() -> Vec<(&'static str, u32)>,
    product: fn(u64, usize) -> Shape,
}

const LISTS: [OwnList; 4] = [
    OwnList { class: gguf::CLASS, shares: || of_formats(&blocks::FORMATS), product: blocks::product },
    OwnList { class: GGUF_CLASS, shares: || of_formats(&experts::FORMATS), product: experts::product },
    OwnList { class: widths::CLASS, shares: of_kinds, product: widths::product },
    OwnList { class: extreme::CLASS, shares: || of_formats(&extreme::FORMATS), product: extreme::product },
];

/// The classes that have lists of their own.
pub const OWN_LISTS: [&str; LISTS.len()] = [LISTS[0].class, LISTS[1].class, LISTS[2].class, LISTS[3].class];

fn own_list(classes: &[String]) -> Option<OwnList> {
    LISTS.into_iter().find(|list| classes == [list.class])
}

/// One of these formats, by their shares.
fn of_shares(draw: &mut Draw, formats: &[(Format, usize)]) -> Format {
    let mut at = draw.below(formats.iter().map(|(_, share)| share).sum());
    for (format, share) in formats {
        if at < *share {
            return *format;
        }
        at -= share;
    }
    unreachable!("a number below the sum of the shares")
}

/// The list of a seed.
pub fn list(seed: u64) -> impl Iterator<Item = Shape> {
    (0..).flat_map(move |block: usize| {
        let kinds = kinds(seed, block as u64);
        kinds.into_iter().enumerate().map(move |(at, kind)| {
            let index = BLOCK * block + at;
            product(&mut Draw::new(seed, index as u64), format!("random-{seed}-{index:04}"), kind, &OF_MODELS)
        })
    })
}

/// The kinds of a block of products, in a random order.
fn kinds(seed: u64, block: u64) -> Vec<Kind> {
    let mut kinds: Vec<Kind> =
        SHARES.into_iter().flat_map(|(kind, _, share)| std::iter::repeat_n(kind, share as usize)).collect();
    let mut draw = Draw::new(seed, 1 << 63 | block);
    for last in (1..kinds.len()).rev() {
        kinds.swap(last, draw.below(last + 1));
    }
    kinds
}

/// N and K of a layer, its name, and the hidden size of its model.
struct Layer {
    n: usize,
    k: usize,
    from: String,
    hidden: usize,
}

/// The attention heads of a model.
struct Heads {
    head: usize,
    heads: usize,
    from: String,
}

/// Where sizes come from.
struct Source {
    layer: fn(&mut Draw, Format) -> Layer,
    heads: fn(&mut Draw, Format) -> Heads,
    rows: fn(&mut Draw) -> usize,
}

/// The sizes of [`MODELS`].
const OF_MODELS: Source = Source {
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

fn product(draw: &mut Draw, id: String, kind: Kind, source: &Source) -> Shape {
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

/// Random numbers.
pub(super) struct Draw(ChaCha8Rng);

impl Draw {
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut numbers = ChaCha8Rng::from_seed(key);
        numbers.set_stream(stream);
        Self(numbers)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.0.next_u64()) * end as u128) >> 64) as usize
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn chance(&mut self, per_cent: usize) -> bool {
        self.below(100) < per_cent
    }

    /// A number of `octaves` octaves from 1 on: each octave is as likely as another, and evenly filled.
    fn octaves(&mut self, octaves: usize) -> usize {
        let octave = 1 << self.below(octaves);
        octave + self.below(octave)
    }

    /// Rows: log-uniform, and three in ten at the edge of a tile or beside the edge.
    fn rows(&mut self) -> usize {
        if self.chance(70) {
            return self.octaves(14);
        }
        let (tile, octaves) = self.of(&[(64, 8), (128, 7)]);
        (tile * self.octaves(octaves) + self.below(3) - 1).min(MOST_M)
    }

    /// A format and an f32 mode.
    fn format(&mut self) -> (Format, Option<F32Mode>) {
        match self.below(100) {
            ..45 => (Format::BF16, None),
            45..70 => (Format::F16, None),
            70..86 => (Format::F32, Some(F32Mode::Accurate)),
            86..92 => (Format::F32, Some(F32Mode::Strict)),
            _ => (Format::F32, Some(F32Mode::Tf32)),
        }
    }

    /// A model: any in 16 bits, a small one in f32.
    fn model(&mut self, format: Format) -> &'static Model {
        loop {
            let model = &MODELS[self.below(MODELS.len())];
            if format != Format::F32 || model.hidden <= 2048 {
                return model;
            }
        }
    }
}

/// N and K of a layer of a model, or of its part on one of several cards, and the layer's name.
fn layer(draw: &mut Draw, model: &Model) -> (usize, usize, String) {
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
fn shape([m, n, k]: [usize; 3], batch: usize, layout: Layout, (dtype, f32): (Format, Option<F32Mode>)) -> Shape {
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
