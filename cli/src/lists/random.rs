//! Random products of the kind that models have, for estimates that no suite was fitted to.
//!
//! A seed is an endless list of products, the same on every platform and in every version: `cli/tests/cli/random` holds the first ones. ChaCha8
//! gives the numbers. The stream of ChaCha8 is a standard, and all arithmetic is on integers. Product `i` has a stream of its own, so
//! that a change of one kind of product would leave the others alone. A change of the list changes the meaning of records: new
//! kinds of products go to new lists ([`OWN_LISTS`]).

use super::experts::GGUF_CLASS;
use super::{gguf, Shape};
use candle_tilegemm::problem::Format;
pub(super) use draw::Draw;
use kinds::{kinds, product, BLOCK, OF_MODELS, SHARES};

mod blocks;
mod draw;
mod experts;
mod extreme;
mod kinds;
mod models;
mod narrow;
mod widths;

/// Classes of the products. The first seven are dense: 16 bits by the number of rows, and f32 by mode.
pub const CLASSES: [&str; 10] =
    ["decode", "small", "mid", "prefill", "f32", "strict", "tf32", "layouts", "unaligned", "attention"];

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

const LISTS: [OwnList; 5] = [
    OwnList { class: gguf::CLASS, shares: || of_formats(&blocks::FORMATS), product: blocks::product },
    OwnList { class: GGUF_CLASS, shares: || of_formats(&experts::FORMATS), product: experts::product },
    OwnList { class: widths::CLASS, shares: of_kinds, product: widths::product },
    OwnList { class: narrow::CLASS, shares: || of_formats(&narrow::FORMATS), product: narrow::product },
    OwnList { class: extreme::CLASS, shares: || of_formats(&extreme::FORMATS), product: extreme::product },
];

/// The classes that have lists of their own.
pub const OWN_LISTS: [&str; LISTS.len()] =
    [LISTS[0].class, LISTS[1].class, LISTS[2].class, LISTS[3].class, LISTS[4].class];

fn own_list(classes: &[String]) -> Option<OwnList> {
    LISTS.into_iter().find(|list| classes == [list.class])
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
