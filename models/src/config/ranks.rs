//! What a rank of a group has of a decoder.

use super::{Config, Experts};
use candle::Result;
use candle_tilegemm::nn::parallel::Group;

impl Config {
    /// The numbers that ranks have parts of.
    fn split(&self) -> Vec<(&'static str, usize)> {
        let mut sizes = vec![("config: num_key_value_heads", self.kv_heads), ("config: hidden_size", self.hidden)];
        if !self.experts.as_ref().is_some_and(|experts| experts.layers.iter().all(|has_experts| *has_experts)) {
            sizes.push(("config: intermediate_size", self.feed_forward));
        }
        sizes.push(("config: vocab_size", self.vocabulary));
        sizes.extend(self.experts.as_ref().map(|experts| ("config: moe_intermediate_size", experts.feed_forward)));
        sizes
    }

    /// A rank's heads and inner numbers; all else is as it is.
    ///
    /// # Errors
    /// Sizes that the ranks do not divide.
    pub(crate) fn of_rank(&self, group: &Group) -> Result<Self> {
        group.divides(&self.split())?;
        let (ranks, experts) = (group.size(), self.experts.clone());
        Ok(Self {
            heads: self.heads / ranks,
            kv_heads: self.kv_heads / ranks,
            feed_forward: self.feed_forward / ranks,
            experts: experts.map(|experts| Experts { feed_forward: experts.feed_forward / ranks, ..experts }),
            ..self.clone()
        })
    }
}
