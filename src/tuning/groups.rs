//! The groups of rows in a key.

use crate::problem::{Problem, Rows};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The properties of groups that decide which kernel is fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GroupKey {
    /// Groups, and matrices B.
    pub count: usize,
    /// Groups that are expected to have rows.
    pub filled: usize,
    /// Pairs that share a row of A. The file omits the number where no list has the pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs_per_row: Option<usize>,
    /// Whether each row of D has a factor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled: bool,
    /// Whether the epilogue applies a gate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gate: bool,
}

impl GroupKey {
    /// The groups of a problem, if the problem has any.
    pub fn of(problem: &Problem) -> Option<Self> {
        let groups = problem.groups?;
        let pairs_per_row = match groups.rows {
            Rows::InOrder => None,
            Rows::Listed { pairs_per_row } => Some(pairs_per_row),
        };
        let gate = problem.epilogue.gate.is_some();
        Some(Self {
            count: groups.count,
            filled: groups.with_rows(problem.m),
            pairs_per_row,
            scaled: groups.scaled,
            gate,
        })
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, filled, pairs_per_row, scaled, gate } = self;
        write!(f, "in {count} groups ({filled} with rows")?;
        if let Some(pairs) = pairs_per_row {
            write!(f, ", rows of A by a list, {pairs} pairs for each")?;
        }
        write!(f, "{}{})", if *scaled { ", scaled" } else { "" }, if *gate { ", with a gate" } else { "" })
    }
}
