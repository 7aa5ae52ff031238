//! What a rank of a group has of a decoder.

use super::{Config, Experts};
use candle::{bail, Result};
use candle_tilegemm::nn::parallel::Group;

/// No model has more ranks: as far as errors name numbers of them.
const MOST_RANKS: usize = 64;

impl Config {
    /// The numbers that ranks have parts of.
    fn split(&self) -> Vec<(&'static str, usize)> {
        let mut sizes = vec![
            ("num_key_value_heads", self.kv_heads),
            ("hidden_size", self.hidden),
            ("intermediate_size", self.feed_forward),
            ("vocab_size", self.vocabulary),
        ];
        if let Some(experts) = &self.experts {
            sizes.push(("moe_intermediate_size", experts.feed_forward));
            if experts.layers.iter().all(|has_experts| *has_experts) {
                sizes.retain(|(name, _)| *name != "intermediate_size"); // no layer has that part
            }
        }
        sizes
    }

    /// A rank's heads and inner numbers; all else is as it is.
    ///
    /// # Errors
    /// Sizes that the ranks do not divide.
    pub(crate) fn of_rank(&self, group: &Group) -> Result<Self> {
        let ranks = group.size();
        let sizes = self.split();
        if let Some((name, size)) = sizes.iter().find(|(_, size)| !size.is_multiple_of(ranks)) {
            let divides_all = |ranks: &usize| sizes.iter().all(|(_, size)| size.is_multiple_of(*ranks));
            let legal: Vec<String> = (1..=MOST_RANKS).filter(divides_all).map(|ranks| ranks.to_string()).collect();
            bail!("config: {name} is {size}, which {ranks} ranks do not divide; expected {} ranks", legal.join(", "));
        }
        let experts = self.experts.clone();
        Ok(Self {
            heads: self.heads / ranks,
            kv_heads: self.kv_heads / ranks,
            feed_forward: self.feed_forward / ranks,
            experts: experts.map(|experts| Experts { feed_forward: experts.feed_forward / ranks, ..experts }),
            ..self.clone()
        })
    }
}
