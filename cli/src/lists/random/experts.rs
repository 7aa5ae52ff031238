//! Random products of experts with quantised weights: gate, up or down of models of random sizes, in the formats of candle's kernels.

use super::draw::{of_shares, Draw};
use crate::lists::experts::GGUF_CLASS as CLASS;
use crate::lists::Shape;
use candle_tilegemm::internal::suite::{Distribution, ShapeGroups, Size};
use candle_tilegemm::problem::{Format, Layout};

/// Formats by their shares in twentieths.
pub(super) const FORMATS: [(Format, usize); 6] =
    [(Format::Q4K, 7), (Format::Q6K, 5), (Format::Q8_0, 3), (Format::Q5K, 2), (Format::Q3K, 2), (Format::Q2K, 1)];
const EXPERTS: [usize; 6] = [8, 16, 32, 64, 128, 256];
/// The most experts of a token.
const MOST_CHOSEN: usize = 8;
/// Sizes are multiples of this, a block of K.
const STEP: usize = 256;
/// The largest hidden size and the largest size between the two products, over `STEP`.
const MOST_SIZES: [usize; 2] = [28, 56];
/// The most numbers of all matrices, and the most numbers of A and of D.
const MOST_NUMBERS: usize = 2 << 30;
const MOST_OF_ROWS: usize = 1 << 28;
/// The most tokens: octaves from 1 on.
const OCTAVES: usize = 13;

/// The product of a seed and an index.
pub(super) fn product(seed: u64, index: usize) -> Shape {
    let mut draw = Draw::new(seed, 3 << 61 | index as u64);
    loop {
        let [hidden, inner] = MOST_SIZES.map(|most| STEP * (1 + draw.below(most)));
        let (experts, scaled) = (draw.of(&EXPERTS), draw.chance(35));
        let (top_k, tokens) = (1 + draw.below(MOST_CHOSEN), draw.octaves(OCTAVES));
        let routing = if draw.chance(50) { Distribution::Uniform } else { Distribution::Zipf };
        let (format, routing_seed) = (of_shares(&mut draw, &FORMATS), draw.below(1 << 16) as u32);
        let (n, k) = if scaled { (hidden, inner) } else { (inner, hidden) };
        let rows = tokens * top_k;
        if experts * n * k > MOST_NUMBERS || rows * n.max(k) > MOST_OF_ROWS {
            continue;
        }
        let size = |size: usize| Size::try_from(size).expect("sizes are above zero");
        let groups = ShapeGroups { experts: size(experts), top_k: size(top_k), routing, seed: routing_seed, scaled };
        return Shape {
            id: format!("random-{CLASS}-{seed}-{index:04}"),
            class: CLASS.into(),
            b: Some(format),
            groups: Some(groups),
            from: Some(format!("{tokens} tokens, {format}")),
            ..Shape::dense([rows, n, k].map(size), Size::default(), Layout::NT, Format::F32)
        };
    }
}
