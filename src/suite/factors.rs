//! The factors of narrow weights, in words.

use crate::problem::{Format, Scale};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

const ALL: u32 = u32::MAX;

/// The weights that share a factor: `tensor`, `row`, `g128` (numbers of a row), or `128x128` (rows by numbers of each).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Shared {
    /// All.
    Tensor,
    /// A row.
    Row,
    /// So many numbers of a row.
    Group(u32),
    /// So many rows by so many numbers of each.
    Block([u32; 2]),
}

impl Shared {
    /// What shares a factor in checkpoints with such weights.
    pub fn usual(weights: Format) -> Self {
        match weights {
            Format::F4E2M1 => Self::Group(32),
            Format::F8E4M3 => Self::Tensor,
            _ => Self::Row,
        }
    }

    /// The factors of weights of `n` x `k`, beside activations in `dtype`.
    pub fn of_weights(self, weights: Format, dtype: Format, [n, k]: [usize; 2]) -> Scale {
        let format = match (weights, self) {
            (Format::F4E2M1, Self::Group(16)) => Format::F8E4M3,
            (Format::F4E2M1, _) => Format::F8E8M0,
            (Format::F8E4M3, _) => Format::F32,
            _ if dtype.is_narrow() => Format::F32,
            _ if dtype == Format::F32 => Format::F16,
            _ => dtype,
        };
        match self {
            Self::Tensor => Scale::of_tensor(format),
            Self::Row => Scale::of_rows(format),
            Self::Group(numbers) => Scale::of_groups(format, numbers, n),
            Self::Block(block) => Scale::of_blocks(format, block, k),
        }
    }

    /// The factors of activations of `m` x `k` in 8 bits: one, one for each row, or for so many numbers of a row, by M.
    pub fn of_activations(self, [m, k]: [usize; 2]) -> Scale {
        match self {
            Self::Tensor => Scale::of_tensor(Format::F32),
            Self::Row => Scale::new(Format::F32, [1, ALL], [1, 0]),
            Self::Group(along_k) | Self::Block([_, along_k]) => {
                Scale::new(Format::F32, [1, along_k.min(u32::try_from(k).unwrap_or(ALL))], [1, m as i64])
            }
        }
    }
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor => f.write_str("tensor"),
            Self::Row => f.write_str("row"),
            Self::Group(numbers) => write!(f, "g{numbers}"),
            Self::Block([rows, along_k]) => write!(f, "{rows}x{along_k}"),
        }
    }
}

impl FromStr for Shared {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().filter(|number: &u32| *number > 0);
        let group = || text.strip_prefix('g').and_then(number).map(Self::Group);
        let block = || text.split_once('x').and_then(|(rows, along_k)| Some([number(rows)?, number(along_k)?]));
        match text {
            "tensor" => Ok(Self::Tensor),
            "row" => Ok(Self::Row),
            _ => group().or_else(|| block().map(Self::Block)).ok_or_else(|| {
                format!(
                    "'{text}' names no factors; expected tensor, row, a group such as g128, or a block such as 128x128"
                )
            }),
        }
    }
}

impl From<Shared> for String {
    fn from(shared: Shared) -> Self {
        shared.to_string()
    }
}

impl TryFrom<String> for Shared {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}
