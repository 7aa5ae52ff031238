//! The whole numbers of a suite, with their ranges.

use serde::de::{self, Deserializer, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An extent that every kernel interface can express.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Size(u32);

impl Default for Size {
    fn default() -> Self {
        Self(1)
    }
}

impl Size {
    /// The number itself.
    pub fn get(self) -> usize {
        self.0 as usize
    }
}

impl TryFrom<usize> for Size {
    type Error = String;

    fn try_from(size: usize) -> std::result::Result<Self, String> {
        match u32::try_from(size) {
            Ok(size) if (SIZES.least..=SIZES.most).contains(&size) => Ok(Self(size)),
            _ => Err(format!("{size} is no size; expected {SIZES}")),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_i64(SIZES).map(Self)
    }
}

const SIZES: Whole = Whole { least: 1, most: i32::MAX as u32 };
pub(super) const STRIDES: Whole = Whole { least: 0, most: u32::MAX };

/// The range of a number of the format.
#[derive(Clone, Copy)]
pub(super) struct Whole {
    least: u32,
    most: u32,
}

impl fmt::Display for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}, a whole number", self.least, self.most)
    }
}

impl Visitor<'_> for Whole {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> std::result::Result<u32, E> {
        let number_in_range = u32::try_from(number).ok().filter(|number| (self.least..=self.most).contains(number));
        number_in_range.ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
    }

    /// JSON has whole numbers without a sign.
    fn visit_u64<E: de::Error>(self, number: u64) -> std::result::Result<u32, E> {
        self.visit_i64(i64::try_from(number).unwrap_or(i64::MAX))
    }
}
