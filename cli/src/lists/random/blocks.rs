//! Random products with quantised weights. They have a list of their own: the list of all other products of a seed stays as it is.

use super::draw::{of_shares, Draw};
use super::kinds::{layer, shape};
use super::models::MODELS;
use crate::lists::gguf::CLASS;
use crate::lists::Shape;
use candle_tilegemm::problem::{Format, Layout};

/// Formats by their shares in twentieths: files in Q4_K_M have matrices in Q4_K and Q6_K.
pub(super) const FORMATS: [(Format, usize); 10] = [
    (Format::Q4K, 6),
    (Format::Q6K, 4),
    (Format::Q8_0, 2),
    (Format::Q4_0, 2),
    (Format::Q5K, 1),
    (Format::Q3K, 1),
    (Format::Q2K, 1),
    (Format::Q4_1, 1),
    (Format::Q5_0, 1),
    (Format::Q5_1, 1),
];

/// The smallest model's hidden size.
const LEAST_HIDDEN: usize = 1024;

/// The product of a seed and an index.
pub(super) fn product(seed: u64, index: usize) -> Shape {
    let mut draw = Draw::new(seed, 1 << 62 | index as u64);
    let (n, k, format, from) = loop {
        let model = &MODELS[draw.below(MODELS.len())];
        // Models of language with a gate: files have few others.
        if !model.gated || model.hidden < LEAST_HIDDEN {
            continue;
        }
        let (n, k, from) = layer(&mut draw, model);
        let format = of_shares(&mut draw, &FORMATS);
        // Files have no other lengths in a format.
        if k % format.block().elements == 0 {
            break (n, k, format, from);
        }
    };
    let rows = if draw.chance(70) { draw.octaves(8) } else { draw.octaves(13) };
    Shape {
        id: format!("random-{CLASS}-{seed}-{index:04}"),
        class: CLASS.into(),
        b: Some(format),
        from: Some(format!("{from}, {format}")),
        ..shape([rows, n, k], 1, Layout::NT, (Format::F32, None))
    }
}
