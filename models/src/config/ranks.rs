//! What a rank of a group has of a decoder.

use super::{Config, Experts};
use crate::split::{ExpertSplit, Split};
use candle::Result;
use candle_tilegemm::nn::parallel::Group;
use std::ops::Range;

/// A rank's part of a decoder.
pub(crate) struct Rank {
    /// The rank's heads and inner numbers; all else is as it is.
    pub config: Config,
    pub group: Group,
    /// The experts of a layer that the rank has.
    pub experts: Range<usize>,
}

impl Rank {
    /// The only rank of a decoder.
    pub fn whole(config: &Config) -> Self {
        let experts = 0..config.experts.as_ref().map_or(0, |experts| experts.count);
        Self { config: config.clone(), group: Group::one(), experts }
    }

    /// A rank's part. `cuts` says whether so many of the experts' inner numbers cut a block of their weights.
    ///
    /// # Errors
    /// Sizes that the ranks do not divide, and errors of `cuts`.
    pub fn new(config: &Config, split: Split, cuts: impl FnOnce(usize) -> Result<bool>) -> Result<Self> {
        let Split { group, experts: split } = split;
        let has_whole_experts = match (&config.experts, split) {
            (None, _) | (_, ExpertSplit::Inner) => false,
            (_, ExpertSplit::Whole) => true,
            (Some(experts), ExpertSplit::Auto) => {
                let [count, inner] = [experts.count, experts.feed_forward];
                let divides = |count: usize| count.is_multiple_of(group.size());
                group.size() > 1 && divides(count) && (!divides(inner) || cuts(inner / group.size())?)
            }
        };
        group.divides(&config.split(has_whole_experts))?;
        let ranks = group.size();
        let of_rank = Config {
            heads: config.heads / ranks,
            kv_heads: config.kv_heads / ranks,
            feed_forward: config.feed_forward / ranks,
            ..config.clone()
        };
        if has_whole_experts {
            let count = config.experts.as_ref().map_or(0, |experts| experts.count);
            return Ok(Self { config: of_rank, experts: group.part("the number of experts", count)?, group });
        }
        let experts = config.experts.clone();
        let experts = experts.map(|experts| Experts { feed_forward: experts.feed_forward / ranks, ..experts });
        Ok(Self { group, ..Self::whole(&Config { experts, ..of_rank }) })
    }
}

impl Config {
    /// The numbers that ranks have parts of.
    fn split(&self, whole_experts: bool) -> Vec<(&'static str, usize)> {
        let mut sizes = vec![("config: num_key_value_heads", self.kv_heads), ("config: hidden_size", self.hidden)];
        if !self.experts.as_ref().is_some_and(|experts| experts.layers.iter().all(|has_experts| *has_experts)) {
            sizes.push(("config: intermediate_size", self.feed_forward));
        }
        sizes.push(("config: vocab_size", self.vocabulary));
        sizes.extend(self.experts.as_ref().map(|experts| match whole_experts {
            true => ("config: num_experts", experts.count),
            false => ("config: moe_intermediate_size", experts.feed_forward),
        }));
        sizes
    }
}
