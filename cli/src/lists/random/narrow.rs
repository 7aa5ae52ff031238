//! Random products with narrow weights, in a list of their own.

use super::draw::{of_shares, Draw};
use super::kinds::{layer, shape};
use super::models::MODELS;
use crate::lists::{Shape, Shared};
use candle_tilegemm::problem::{Format, Layout};

pub(super) const CLASS: &str = "narrow";

/// Activations, weights and factors.
type Recipe = (Format, Option<Format>, Shared);

const fn wide(weights: Format, scale: Shared) -> Recipe {
    (Format::BF16, Some(weights), scale)
}
const fn of_8_bits(format: Format, scale: Shared) -> Recipe {
    (format, None, scale)
}

/// Recipes by their shares in twentieths, as checkpoints have them.
const RECIPES: [(Recipe, usize); 12] = [
    (wide(Format::U4, Shared::Group(128)), 4),
    (wide(Format::U4, Shared::Group(64)), 1),
    (wide(Format::U4, Shared::Group(32)), 1),
    (wide(Format::F8E4M3, Shared::Row), 2),
    (wide(Format::F8E4M3, Shared::Block([128, 128])), 2),
    (wide(Format::F8E4M3, Shared::Tensor), 1),
    (wide(Format::F4E2M1, Shared::Group(32)), 2),
    (wide(Format::I8, Shared::Row), 1),
    (of_8_bits(Format::F8E4M3, Shared::Tensor), 1),
    (of_8_bits(Format::F8E4M3, Shared::Row), 2),
    (of_8_bits(Format::F8E4M3, Shared::Block([128, 128])), 2),
    (of_8_bits(Format::I8, Shared::Row), 1),
];

/// Shares of the recipes by format, in twentieths.
pub(super) const FORMATS: [(Format, usize); 4] =
    [(Format::U4, 6), (Format::F8E4M3, 10), (Format::F4E2M1, 2), (Format::I8, 2)];

/// The smallest model's hidden size.
const LEAST_HIDDEN: usize = 1024;

/// The product of a seed and an index.
pub(super) fn product(seed: u64, index: usize) -> Shape {
    let mut draw = Draw::new(seed, 1 << 58 | index as u64);
    let (n, k, (dtype, b, scale), from) = loop {
        let model = &MODELS[draw.below(MODELS.len())];
        // Models of language: others have few such checkpoints.
        if !model.gated || model.hidden < LEAST_HIDDEN {
            continue;
        }
        let (n, k, from) = layer(&mut draw, model);
        let recipe = of_shares(&mut draw, &RECIPES);
        // Checkpoints have whole groups.
        let group = match recipe.2 {
            Shared::Group(group) => group as usize,
            _ => 32,
        };
        if k % group.max(32) == 0 {
            break (n, k, recipe, from);
        }
    };
    let zeros = b == Some(Format::U4) && draw.chance(30);
    let fast = dtype == Format::F8E4M3 && !matches!(scale, Shared::Block(_)) && draw.chance(50);
    let rows = if draw.chance(70) { draw.octaves(8) } else { draw.octaves(13) };
    Shape {
        id: format!("random-{CLASS}-{seed}-{index:04}"),
        class: CLASS.into(),
        b,
        scale: Some(scale),
        zeros,
        fast,
        from: Some(format!("{from}, {} {scale}", b.unwrap_or(dtype))),
        out: dtype.is_narrow().then_some(Format::BF16),
        ..shape([rows, n, k], 1, Layout::NT, (dtype, None))
    }
}
