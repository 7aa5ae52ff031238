//! Layouts of A and B.

use std::fmt;

/// Layout of (A, B), in row-major terms.
///
/// The first letter is `n` when the rows of A (m x k) are contiguous. The second letter is `t` when the columns of B (k
/// x n) are contiguous, so that B is stored as n x k. A Linear layer, `x @ w^T`, has the layout `nt`.
///
/// ```
/// use candle_tilegemm::{Format, Layout, Problem};
///
/// let problem = Problem::dense(2, 3, 4, 1, Layout::NT, Format::F32);
/// assert_eq!([problem.a.row_stride, problem.a.col_stride], [4, 1]);
/// assert_eq!([problem.b.row_stride, problem.b.col_stride], [1, 4]);
/// assert_eq!("nt".parse(), Ok(problem.layout()));
/// ```
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
