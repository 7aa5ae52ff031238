//! How a group divides a decoder.

use candle_tilegemm::nn::parallel::Group;

/// What a rank of a group has of a layer's experts. The router is whole on every rank, and chooses among all experts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExpertSplit {
    /// [`Inner`](Self::Inner), unless a rank's part would cut a block of the weights and the ranks divide the experts: then [`Whole`](Self::Whole).
    #[default]
    Auto,
    /// A part of the inner numbers of every expert: all ranks work on each token.
    Inner,
    /// Experts as a whole, a part of them: ranks work on the tokens that choose their experts, and wait for the one that most choose.
    Whole,
}

/// A rank's group, and how it divides what can be divided in two ways. A `&Group` is one with the defaults.
///
/// ```
/// use candle_tilegemm::nn::parallel::Group;
/// use candle_tilegemm_models::{ExpertSplit, Split};
///
/// let split = Split::from(&Group::one()).with_experts(ExpertSplit::Whole);
/// # let _ = split;
/// ```
#[derive(Debug, Clone)]
pub struct Split {
    pub(crate) group: Group,
    pub(crate) experts: ExpertSplit,
}

impl From<&Group> for Split {
    fn from(group: &Group) -> Self {
        Self { group: group.clone(), experts: ExpertSplit::default() }
    }
}

impl Split {
    /// The same with experts split so. All ranks of a group need the same.
    pub fn with_experts(self, experts: ExpertSplit) -> Self {
        Self { experts, ..self }
    }
}
