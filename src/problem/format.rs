//! Element types, and the layouts of A and B.

use std::fmt;

/// Element type of the operands and of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Format {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
}

impl Format {
    /// Size of an element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Format::F16 | Format::BF16 => 2,
            Format::F32 => 4,
            Format::F64 => 8,
        }
    }

    /// The name used in kernel names and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Format::F16 => "f16",
            Format::BF16 => "bf16",
            Format::F32 => "f32",
            Format::F64 => "f64",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        [Format::F16, Format::BF16, Format::F32, Format::F64]
            .into_iter()
            .find(|dtype| dtype.name() == s)
            .ok_or_else(|| format!("unknown dtype '{s}'; expected f16, bf16, f32 or f64"))
    }
}

/// Layout of (A, B), in row-major terms.
///
/// The first letter is `n` when the rows of A (m x k) are contiguous. The second letter is `t` when the columns of B (k
/// x n) are contiguous, so that B is stored as n x k. A Linear layer, `x @ w^T`, has the layout `nt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Layout {
    /// a\[m,k\] @ b\[k,n\]
    NN,
    /// a\[m,k\] @ b\[n,k\]^T
    NT,
    /// a\[k,m\]^T @ b\[k,n\]
    TN,
    /// a\[k,m\]^T @ b\[n,k\]^T
    TT,
    /// Any strides, including operands without a contiguous dimension.
    Any,
}

impl Layout {
    /// The name used in kernel names and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::NN => "nn",
            Layout::NT => "nt",
            Layout::TN => "tn",
            Layout::TT => "tt",
            Layout::Any => "any",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Layout {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        [Layout::NN, Layout::NT, Layout::TN, Layout::TT]
            .into_iter()
            .find(|layout| layout.name() == s)
            .ok_or_else(|| format!("unknown layout '{s}'; expected nn, nt, tn or tt"))
    }
}
