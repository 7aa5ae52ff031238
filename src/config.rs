//! The configuration of a launch: chosen with the plan, passed to the kernel.

use serde::{de, Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// How a kernel runs one problem, as far as the kernel leaves a choice. A plan holds a configuration. The kernel refuses configurations that the
/// kernel was not compiled for.
///
/// A field is 0, and `swap_ab` is false, where the kernel has nothing to choose. The text form names the fields that are not:
/// `128x64_c2x1_k2_s5_w8_swap` is a tile of 128 x 64, clusters of 2 x 1 blocks, K in 2 parts, 5 pipeline stages, 8 warps, and A and B swapped.
///
/// ```
/// use candle_tilegemm::Config;
///
/// let config: Config = "128x64_k2".parse()?;
/// assert_eq!((config.tile, config.split), ([128, 64], 2));
/// assert_eq!(config.to_string(), "128x64_k2");
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub struct Config {
    /// Rows and columns of D that a thread block computes, or a warp of the kernels for few rows.
    pub tile: [u32; 2],
    /// Blocks of a cluster along M and N, which share loads.
    pub cluster: [u32; 2],
    /// Parts of K that are computed side by side, and added up in the end.
    pub split: u32,
    /// Pipeline stages in shared memory.
    pub stages: u32,
    /// Warps of a thread block.
    pub warps: u32,
    /// Whether B is on the tensor cores' M side.
    pub swap_ab: bool,
}

impl Config {
    /// A tile, and K in so many parts.
    pub(crate) const fn tile(tile: [u32; 2], split: u32) -> Self {
        Self { tile, cluster: [0, 0], split, stages: 0, warps: 0, swap_ab: false }
    }

    /// This configuration after `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Whether there is nothing to choose.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tile, cluster, split, stages, warps, swap_ab } = *self;
        let mut parts = Vec::new();
        if tile != [0, 0] {
            parts.push(format!("{}x{}", tile[0], tile[1]));
        }
        if cluster != [0, 0] {
            parts.push(format!("c{}x{}", cluster[0], cluster[1]));
        }
        if split != 0 {
            parts.push(format!("k{split}"));
        }
        if stages != 0 {
            parts.push(format!("s{stages}"));
        }
        if warps != 0 {
            parts.push(format!("w{warps}"));
        }
        if swap_ab {
            parts.push("swap".into());
        }
        f.pad(&parts.join("_"))
    }
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is no configuration; expected parts of 128x64_c2x1_k2_s5_w8_swap");
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0).ok_or_else(bad);
        let pair = |text: &str| {
            let (x, y) = text.split_once('x').ok_or_else(bad)?;
            Ok::<_, String>([number(x)?, number(y)?])
        };
        let mut config = Self::default();
        for part in text.split('_').filter(|part| !part.is_empty()) {
            match part.split_at(part.chars().next().map_or(0, char::len_utf8)) {
                _ if part == "swap" => config.swap_ab = true,
                ("c", rest) => config.cluster = pair(rest)?,
                ("k", rest) => config.split = number(rest)?,
                ("s", rest) => config.stages = number(rest)?,
                ("w", rest) => config.warps = number(rest)?,
                _ => config.tile = pair(part)?,
            }
        }
        // One text for one configuration.
        match config.to_string() == text {
            true => Ok(config),
            false => Err(bad()),
        }
    }
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
