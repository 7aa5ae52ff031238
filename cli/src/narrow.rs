//! The factors of narrow weights, as options.

use crate::{Failure, Result};
use candle_tilegemm::internal::suite::Shared;
use candle_tilegemm::problem::Scale;
use candle_tilegemm::Format;

#[derive(Debug, Clone, clap::Args)]
pub struct Factors {
    /// Narrow weights with a factor for so many numbers along K, of each row
    #[arg(long, value_name = "NUMBERS", conflicts_with = "scale", value_parser = clap::value_parser!(u32).range(1..))]
    group: Option<u32>,
    /// Narrow weights with a factor for all of them, for each row, or for each block of so many rows by numbers along K: `tensor`, `row`, or such as `128x128`
    #[arg(long, value_name = "FACTORS", value_parser = str::parse::<Shared>)]
    scale: Option<Shared>,
    /// Narrow weights with zeros beside the factors
    #[arg(long)]
    zeros: bool,
}

impl Factors {
    /// The factors of weights of `n` x `k` in this format, beside activations in `dtype`: what checkpoints have, unless asked otherwise.
    pub fn scale(&self, weights: Format, dtype: Format, [n, k]: [usize; 2]) -> Result<Scale> {
        if self.zeros && !weights.has_zero() {
            return Err(Failure::Usage(format!("--zeros: {weights} has none; u4 and u8 have")));
        }
        let scale = self.shared().unwrap_or(Shared::usual(weights)).of_weights(weights, dtype, [n, k]);
        Ok(if self.zeros { scale.with_zeros() } else { scale })
    }

    /// The factors of activations in 8 bits, of `m` x `k`: one, one for each row, or with blocks of weights one for so many numbers of a row, by M.
    pub fn of_activations(&self, dtype: Format, [m, k]: [usize; 2]) -> Option<Scale> {
        let usual = if dtype == Format::F8E4M3 { Shared::Tensor } else { Shared::Row };
        dtype.is_narrow().then(|| self.shared().unwrap_or(usual).of_activations([m, k]))
    }

    fn shared(&self) -> Option<Shared> {
        self.scale.or(self.group.map(Shared::Group))
    }

    /// Refuses options beside other weights.
    pub fn refuse(&self) -> Result {
        match self.group.is_none() && self.scale.is_none() && !self.zeros {
            true => Ok(()),
            false => Err(Failure::Usage(
                "--group, --scale, --zeros: only narrow weights have factors beside them, such as --b u4".into(),
            )),
        }
    }
}
