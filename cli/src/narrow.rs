//! The factors of narrow weights, as options.

use crate::{Failure, Result};
use candle_tilegemm::problem::Scale;
use candle_tilegemm::Format;

#[derive(Debug, Clone, clap::Args)]
pub struct Factors {
    /// Narrow weights with a factor for so many numbers along K, of each row
    #[arg(long, value_name = "NUMBERS", conflicts_with = "scale", value_parser = clap::value_parser!(u32).range(1..))]
    group: Option<u32>,
    /// Narrow weights with a factor for all of them, for each row, or for each block of so many rows by numbers along K: `tensor`, `row`, or such as `128x128`
    #[arg(long, value_name = "FACTORS", value_parser = Shared::parse)]
    scale: Option<Shared>,
    /// Narrow weights with zeros beside the factors
    #[arg(long)]
    zeros: bool,
}

/// The weights that share a factor.
#[derive(Debug, Clone, Copy)]
enum Shared {
    Tensor,
    Row,
    Group(u32),
    Block([u32; 2]),
}

impl Shared {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let number = |text: &str| text.parse().ok().filter(|number: &u32| *number > 0);
        let block = || text.split_once('x').and_then(|(rows, along_k)| Some([number(rows)?, number(along_k)?]));
        match text {
            "tensor" => Ok(Self::Tensor),
            "row" => Ok(Self::Row),
            _ => block().map(Self::Block).ok_or_else(|| "expected tensor, row, or a block such as 128x128".into()),
        }
    }
}

impl Factors {
    /// The factors of weights of `n` x `k` in this format, beside activations in `dtype`: what checkpoints have, unless asked otherwise.
    pub fn scale(&self, weights: Format, dtype: Format, [n, k]: [usize; 2]) -> Result<Scale> {
        if self.zeros && !weights.has_zero() {
            return Err(Failure::Usage(format!("--zeros: {weights} has none; u4 and u8 have")));
        }
        let shared = self.scale.or(self.group.map(Shared::Group)).unwrap_or(match weights {
            Format::F4E2M1 => Shared::Group(32),
            Format::F8E4M3 => Shared::Tensor,
            _ => Shared::Row,
        });
        let format = match (weights, shared) {
            (Format::F4E2M1, Shared::Group(16)) => Format::F8E4M3,
            (Format::F4E2M1, _) => Format::F8E8M0,
            (Format::F8E4M3, _) => Format::F32,
            _ if dtype.is_narrow() => Format::F32,
            _ if dtype == Format::F32 => Format::F16,
            _ => dtype,
        };
        let scale = match shared {
            Shared::Tensor => Scale::of_tensor(format),
            Shared::Row => Scale::of_rows(format),
            Shared::Group(numbers) => Scale::of_groups(format, numbers, n),
            Shared::Block(block) => Scale::of_blocks(format, block, k),
        };
        Ok(if self.zeros { scale.with_zeros() } else { scale })
    }

    /// The factors of activations in 8 bits, of `m` x `k`: one, one for each row, or with blocks of weights one for so many numbers of a row, by M.
    pub fn of_activations(&self, dtype: Format, [m, k]: [usize; 2]) -> Option<Scale> {
        let [all, rows] = [u32::MAX, 1];
        let usual = if dtype == Format::F8E4M3 { Shared::Tensor } else { Shared::Row };
        let scale = match self.scale.or(self.group.map(Shared::Group)).unwrap_or(usual) {
            Shared::Tensor => Scale::of_tensor(Format::F32),
            Shared::Row => Scale::new(Format::F32, [rows, all], [1, 0]),
            Shared::Group(along_k) | Shared::Block([_, along_k]) => {
                Scale::new(Format::F32, [rows, along_k.min(u32::try_from(k).unwrap_or(all))], [1, m as i64])
            }
        };
        dtype.is_narrow().then_some(scale)
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
