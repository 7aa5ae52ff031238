//! Products of groups of rows, each with a matrix B of its own.

/// A product of groups of rows, each with a matrix B of its own: the grouped GEMM of a mixture-of-experts model.
///
/// The rows of a group follow one another. The numbers of rows lie on the device. A plan depends on the numbers here and in the problem (M is
/// the rows of all groups), never on the numbers on the device: a captured graph stays right when the routing changes.
///
/// A row of no group gives a row of zeros in D. An expert of another GPU is no group here: its number is `count` or more. A row whose place is out of range is
/// left out: the kernel reads and writes nothing for such a row. Each place is listed once; a row of D that is not listed stays as it is.
///
/// ```
/// use candle_tilegemm::problem::{Groups, Rows};
///
/// // Qwen3-30B-A3B: 512 tokens choose 8 of 128 experts each.
/// let groups = Groups::routed(128, 512, 8);
/// assert_eq!(groups.expected_rows(512 * 8), 32.0);
/// assert_eq!(groups.rows, Rows::Listed { pairs_per_row: 8 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[non_exhaustive]
pub struct Groups {
    /// Groups, and matrices B, which are the inner batch stride of B apart.
    pub count: usize,
    /// Groups that are expected to have rows.
    pub filled: usize,
    /// How the device tells the rows of a group.
    pub bounds: Bounds,
    /// The rows of A and D that belong to a row of the product.
    pub rows: Rows,
    /// Whether each row of D has a factor, in f32.
    pub scaled: bool,
}

/// How the device tells the rows of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Bounds {
    /// By the first row of each group, and the end of the last group: i32, one more than there are groups. Rows before the first group and behind the last
    /// group are of no group.
    FirstRow,
    /// By the group of each row, in ascending order: u32. Rows of no group come last, with any numbers that are not below the number of groups.
    GroupOfRow,
}

/// The rows of A and D that belong to a row of the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rows {
    /// The same row.
    InOrder,
    /// A list on the device, in u32, has the pair p of each row: the row of the product reads row p / `pairs_per_row` of A, and writes row p
    /// of D. With `top_k` pairs for each row of A, a pair is a token and one of the token's experts.
    Listed {
        /// Pairs that share a row of A.
        pairs_per_row: usize,
    },
}

impl Groups {
    /// `count` groups, which all have rows, with the first row of each group on the device.
    pub const fn new(count: usize) -> Self {
        Self { count, filled: count, bounds: Bounds::FirstRow, rows: Rows::InOrder, scaled: false }
    }

    /// The product of `tokens` rows of A with `top_k` of `experts` matrices B each, by lists of the pairs and of their groups.
    ///
    /// With uniform routing, an expert is chosen by no token with probability `(1 - top_k / experts)^tokens`.
    pub fn routed(experts: usize, tokens: usize, top_k: usize) -> Self {
        let missed = (1.0 - top_k as f64 / experts.max(1) as f64).max(0.0).powf(tokens as f64);
        let filled = (experts as f64 * (1.0 - missed)).round().max(1.0) as usize;
        let rows = Rows::Listed { pairs_per_row: top_k.max(1) };
        Self { bounds: Bounds::GroupOfRow, rows, filled, ..Self::new(experts) }
    }

    /// The same groups after `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Rows of A for `m` rows of the product.
    pub fn rows_of_a(&self, m: usize) -> usize {
        match self.rows {
            Rows::InOrder => m,
            Rows::Listed { pairs_per_row } => m.div_ceil(pairs_per_row.max(1)),
        }
    }

    /// The expected number of groups that have rows, of `m` rows in all.
    pub fn with_rows(&self, m: usize) -> usize {
        self.filled.min(self.count).min(m)
    }

    /// The expected rows of a group that has rows, of `m` rows in all.
    pub fn expected_rows(&self, m: usize) -> f64 {
        m as f64 / self.with_rows(m).max(1) as f64
    }
}
