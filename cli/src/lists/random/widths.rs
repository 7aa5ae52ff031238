//! Random products of models that nobody knows: hidden sizes by ratios of feed-forward layers, over any number of cards. They judge estimates that were fitted to
//! the sizes of known models. Kinds, formats and f32 modes have the shares of the list of known models.

use super::draw::Draw;
use super::kinds::{self, kinds, Heads, Layer, Source, BLOCK};
use crate::lists::Shape;
use candle_tilegemm::problem::Format;

/// The name of the list. Its products have the classes of the list of known models.
pub(super) const CLASS: &str = "widths";

/// Hidden sizes.
const WIDTHS: [usize; 25] = [
    256, 384, 576, 640, 920, 1152, 1224, 1408, 1536, 1792, 2112, 2304, 2560, 2880, 3072, 3584, 3840, 5120, 5376, 6144,
    6656, 7168, 8192, 12288, 16384,
];
/// The share of pruned hidden sizes in per cent: up to an eighth is gone, to a multiple of 8.
const PRUNED: usize = 30;
/// The largest hidden size in f32.
const MOST_IN_F32: usize = 2048;
/// Sizes of feed-forward layers over hidden sizes.
const RATIOS: [(usize, usize); 8] = [(1, 1), (4, 3), (2, 1), (8, 3), (3, 1), (7, 2), (4, 1), (16, 3)];
/// Heads of queries to a head of keys.
const QUERIES: [usize; 4] = [1, 2, 4, 8];
const CARDS: [usize; 11] = [1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8];
/// A card's part is rounded up to a multiple of one of these.
const STEPS: [usize; 6] = [8, 8, 8, 16, 32, 64];
/// Elements of an attention head.
const HEADS: [usize; 3] = [64, 96, 128];

const SOURCE: Source = Source {
    layer,
    heads: |draw, format| {
        let (width, head) = (width(draw, format), draw.of(&HEADS));
        Heads { head, heads: width.div_ceil(head), from: format!("width {width}") }
    },
    rows: |draw| draw.octaves(14),
};

/// The product of a seed and an index.
pub(super) fn product(seed: u64, index: usize) -> Shape {
    let kind = kinds(seed, 1 << 61 | (index / BLOCK) as u64)[index % BLOCK];
    let mut draw = Draw::new(seed, 1 << 61 | index as u64);
    kinds::product(&mut draw, format!("random-{CLASS}-{seed}-{index:04}"), kind, &SOURCE)
}

fn width(draw: &mut Draw, format: Format) -> usize {
    loop {
        let width = draw.of(&WIDTHS);
        if format != Format::F32 || width <= MOST_IN_F32 {
            return if draw.chance(PRUNED) { width - 8 * draw.below(width / 64) } else { width };
        }
    }
}

fn layer(draw: &mut Draw, format: Format) -> Layer {
    let hidden = width(draw, format);
    let (times, over) = draw.of(&RATIOS);
    let (cards, step) = (draw.of(&CARDS), draw.of(&STEPS));
    let part = |size: usize| size.div_ceil(cards).next_multiple_of(step);
    let ffn = (hidden * times).div_ceil(over);
    let (n, k, layer) = match draw.below(12) {
        0 | 1 => (part(hidden + 2 * hidden.div_ceil(draw.of(&QUERIES))), hidden, "qkv"),
        2 | 3 => (hidden, part(hidden), "o"),
        4 | 5 => (part(2 * ffn), hidden, "gate_up"),
        6 | 7 => (hidden, part(ffn), "down"),
        8 => (part(ffn), hidden, "up"),
        9 => (part(hidden), hidden, "q"),
        10 => (part(hidden.div_ceil(draw.of(&QUERIES))), hidden, "kv"),
        _ => (part(1000 * (8 + draw.below(250))), hidden, "head"),
    };
    let from = format!("width {hidden} x {times}/{over} {layer} / {cards}");
    Layer { n, k, from, hidden }
}
