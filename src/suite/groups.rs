//! Rows of a suite whose product has groups: the two products of a layer of experts.

use super::size::Size;
use crate::problem::{Groups, Rows};
use serde::{Deserialize, Serialize};

/// The groups of a row: tokens choose experts, and each expert has a matrix B of its own. M is the number of pairs of a token and one of
/// the token's experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShapeGroups {
    /// Experts, and matrices B.
    pub experts: Size,
    /// Experts of a token.
    pub top_k: Size,
    /// How tokens choose experts.
    #[serde(default)]
    pub routing: Distribution,
    /// The number from which the choices follow.
    #[serde(default)]
    pub seed: u32,
    /// Whether each pair has a row of A and a factor of its own, as in the down product; else the pairs of a token share a row of A.
    #[serde(default)]
    pub scaled: bool,
}

/// How tokens choose experts. The experts of a token are distinct.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Each expert is as likely as another.
    #[default]
    Uniform,
    /// The expert of rank r is chosen with weight 1 / r. The seed gives the experts their ranks.
    Zipf,
}

impl Distribution {
    /// The name in a suite.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
        }
    }
}

impl ShapeGroups {
    /// Tokens of a product of `m` rows.
    pub fn tokens(&self, m: usize) -> usize {
        m / self.top_k.get()
    }

    /// Pairs that share a row of A.
    pub fn pairs_per_row(&self) -> usize {
        if self.scaled {
            1
        } else {
            self.top_k.get()
        }
    }

    /// The groups as a program describes them, which does not know the routing.
    pub(super) fn groups(&self, m: usize) -> Groups {
        Groups::routed(self.experts.get(), self.tokens(m), self.top_k.get()).with(|groups| {
            groups.rows = Rows::Listed { pairs_per_row: self.pairs_per_row() };
            groups.scaled = self.scaled;
        })
    }

    /// What is wrong with the groups of a row of `m` rows.
    pub(super) fn mistake(&self, m: usize) -> Option<String> {
        let (experts, top_k) = (self.experts.get(), self.top_k.get());
        if top_k > experts {
            return Some(format!("a token has {top_k} of {experts} experts; expected no more than all"));
        }
        let what = format!("each token has {top_k} rows, and m is {m}; expected m to be a multiple of top_k");
        (!m.is_multiple_of(top_k)).then_some(what)
    }
}
