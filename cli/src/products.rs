//! The products that a command is about: a suite, or random products of a seed.

use crate::lists::{experts, gguf, narrow, random};
use crate::words::{self, Words};
use crate::{Failure, Result};
use candle_tilegemm::internal::suite::{self, Shape};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The products of a class.
type List = fn() -> Vec<Shape>;
/// The classes that the crate lists whole.
const LISTED: [(&str, List); 9] = [
    (experts::CLASS, experts::products),
    (experts::GGUF_CLASS, experts::gguf_products),
    (gguf::CLASS, gguf::products),
    (narrow::FP8, narrow::fp8),
    (narrow::W4A16, narrow::w4a16),
    (narrow::MXFP4, narrow::mxfp4),
    (narrow::FP8_EXPERTS, narrow::fp8_experts),
    (narrow::W4A16_EXPERTS, narrow::w4a16_experts),
    (narrow::MXFP4_EXPERTS, narrow::mxfp4_experts),
];

#[derive(Debug, Clone, clap::Args)]
pub struct Products {
    /// Products to take instead of benches/suite.toml, in its format; `tilegemm trace` writes such a file
    #[arg(long, value_name = "FILE")]
    pub suite: Option<PathBuf>,
    /// This many random products of the kind that models have
    #[arg(long, value_name = "N", requires = "seed", conflicts_with = "suite", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub random: Option<u32>,
    /// The list of random products; a seed's products never change
    #[arg(long, value_name = "S", requires = "random")]
    pub seed: Option<u64>,
    /// Random products of these classes only; several words with commas. Alone, with --random: `widths`, layers of models that nobody knows, `extreme`, one short
    /// and one long extent, and `narrow`, narrow weights. `experts`, `fp8`, `w4a16` or `mxfp4` alone, without --random: the products of models with experts or with
    /// narrow weights, and `fp8-experts`, `w4a16-experts` or `mxfp4-experts` of both; `gguf` or `gguf-experts` alone: of models with quantised
    /// weights, and of experts with such weights; with --random, random ones
    #[arg(long, value_name = "CLASS", value_delimiter = ',', value_parser = classes())]
    pub class: Vec<String>,
    /// Only rows whose id or class contains this word; several words with commas
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    pub only: Vec<String>,
}

impl Products {
    /// The rows.
    pub fn shapes(&self) -> Result<Vec<Shape>> {
        let rows = match (self.random, self.seed) {
            (None, _) if self.listed().is_some() => self.listed().map_or_else(Vec::new, |products| products()),
            (Some(count), Some(seed)) => random::products(seed, count as usize, &self.class),
            _ if self.class.is_empty() => suite_rows(self.suite.as_deref())?,
            _ => Vec::new(),
        };
        if rows.is_empty() && !self.class.is_empty() {
            let what = "--class names classes of random products, with --random N --seed S; or is `widths`, `extreme` or `narrow` alone, with --random N --seed S; or is `gguf` \
                        or `gguf-experts` alone; or is `experts`, `fp8`, `w4a16`, `mxfp4`, `fp8-experts`, `w4a16-experts` or `mxfp4-experts` alone, \
                        without --random";
            return Err(Failure::Usage(what.into()));
        }
        only(rows, &self.only)
    }

    /// The products of the class, where it is one that the crate lists whole.
    fn listed(&self) -> Option<List> {
        LISTED.into_iter().find(|(name, _)| self.is_class(name)).map(|(_, products)| products)
    }

    /// Whether the products are those of this class.
    pub fn is_class(&self, name: &str) -> bool {
        self.class == [name] && self.suite.is_none()
    }

    /// The shares of the kinds or the formats of random products, in per cent, for the record.
    #[cfg_attr(not(feature = "bench"), allow(dead_code))]
    pub fn shares(&self) -> BTreeMap<String, u32> {
        let shares = || random::shares(&self.class).into_iter().map(|(name, share)| (name.into(), share)).collect();
        self.random.map_or_else(BTreeMap::new, |_| shares())
    }
}

fn classes() -> Words<String> {
    let whole = LISTED.map(|(name, _)| name).into_iter().filter(|name| !random::OWN_LISTS.contains(name));
    words::names(random::CLASSES.into_iter().chain(random::OWN_LISTS).chain(whole))
}

/// The rows of this crate's suite.
pub fn of_the_suite() -> Result<Vec<Shape>> {
    suite_rows(None)
}

fn suite_rows(path: Option<&Path>) -> Result<Vec<Shape>> {
    let rows = match path {
        None => suite::parse("benches/suite.toml", suite::SHIPPED),
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|e| Failure::Usage(format!("cannot read {}: {e}", path.display())))?;
            suite::parse(&path.display().to_string(), &text)
        }
    };
    rows.map_err(|error| Failure::Usage(error.to_string()))
}

/// Whether an id or a class contains a word, in any case.
pub fn has(text: &str, word: &str) -> bool {
    text.to_lowercase().contains(&word.to_lowercase())
}

/// The rows whose id or class contains one of these words.
fn only(mut rows: Vec<Shape>, words: &[String]) -> Result<Vec<Shape>> {
    let wanted = |word: &String, shape: &Shape| [&shape.id, &shape.class].iter().any(|text| has(text, word));
    rows.retain(|shape| words.is_empty() || words.iter().any(|text| wanted(text, shape)));
    if rows.is_empty() {
        return Err(Failure::Usage(format!("no id or class of the suite contains {}", words.join(" or "))));
    }
    Ok(rows)
}
