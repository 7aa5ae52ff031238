//! How the next tokens of sequences are chosen.

use candle::{bail, Result};
use candle_tilegemm::nn::Sampling;

/// How a [`Step`](crate::Step) chooses the next tokens: the settings of each sequence.
///
/// ```
/// use candle_tilegemm::nn::Sampling;
/// use candle_tilegemm_models::Sampler;
///
/// let greedy = Sampler::greedy();
/// let drawn = Sampler::same(Sampling::new(0.7, 42).with(|s| s.top_p = 0.9));
/// let each = Sampler::each([Sampling::greedy(), Sampling::new(1.0, 7)]); // of the slots 0 and 1
/// # let _ = (greedy, drawn, each);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    settings: Settings,
}

#[derive(Debug, Clone, PartialEq)]
enum Settings {
    Same(Sampling),
    Each(Vec<Sampling>),
}

impl Sampler {
    /// The token with the largest logit.
    pub fn greedy() -> Self {
        Self::same(Sampling::greedy())
    }

    /// The same settings for all sequences. They draw independently: the number of a sequence in the key of random numbers is its slot.
    pub fn same(sampling: Sampling) -> Self {
        Self { settings: Settings::Same(sampling) }
    }

    /// Settings of each slot, from 0. The numbers of sequences in the key of random numbers stay as they are.
    pub fn each(settings: impl IntoIterator<Item = Sampling>) -> Self {
        Self { settings: Settings::Each(settings.into_iter().collect()) }
    }

    /// The settings of these slots.
    pub(crate) fn of(&self, slots: &[usize]) -> Result<Vec<Sampling>> {
        match &self.settings {
            Settings::Same(sampling) => {
                Ok(slots.iter().map(|slot| sampling.with(|sampling| sampling.sequence = *slot as u32)).collect())
            }
            Settings::Each(settings) => {
                let of = |slot: &usize| match settings.get(*slot) {
                    Some(sampling) => Ok(*sampling),
                    None => bail!(
                        "Sampler: {} settings, none of them for slot {slot}; give each slot its own",
                        settings.len()
                    ),
                };
                slots.iter().map(of).collect()
            }
        }
    }
}
