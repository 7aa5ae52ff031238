//! Random numbers, and what they pick.

use super::models::{Model, MODELS};
use candle_tilegemm::problem::{F32Mode, Format};
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The most rows.
const MOST_M: usize = 16_384;

/// Random numbers.
pub(in crate::lists) struct Draw(ChaCha8Rng);

impl Draw {
    pub(in crate::lists) fn new(seed: u64, stream: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut numbers = ChaCha8Rng::from_seed(key);
        numbers.set_stream(stream);
        Self(numbers)
    }

    /// A number below `end`.
    pub(in crate::lists) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.0.next_u64()) * end as u128) >> 64) as usize
    }

    pub(super) fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    pub(super) fn chance(&mut self, per_cent: usize) -> bool {
        self.below(100) < per_cent
    }

    /// A number of `octaves` octaves from 1 on: each octave is as likely as another, and evenly filled.
    pub(super) fn octaves(&mut self, octaves: usize) -> usize {
        let octave = 1 << self.below(octaves);
        octave + self.below(octave)
    }

    /// Rows: log-uniform, and three in ten at the edge of a tile or beside the edge.
    pub(super) fn rows(&mut self) -> usize {
        if self.chance(70) {
            return self.octaves(14);
        }
        let (tile, octaves) = self.of(&[(64, 8), (128, 7)]);
        (tile * self.octaves(octaves) + self.below(3) - 1).min(MOST_M)
    }

    /// A format and an f32 mode.
    pub(super) fn format(&mut self) -> (Format, Option<F32Mode>) {
        match self.below(100) {
            ..45 => (Format::BF16, None),
            45..70 => (Format::F16, None),
            70..86 => (Format::F32, Some(F32Mode::Accurate)),
            86..92 => (Format::F32, Some(F32Mode::Strict)),
            _ => (Format::F32, Some(F32Mode::Tf32)),
        }
    }

    /// A model: any in 16 bits, a small one in f32.
    pub(super) fn model(&mut self, format: Format) -> &'static Model {
        loop {
            let model = &MODELS[self.below(MODELS.len())];
            if format != Format::F32 || model.hidden <= 2048 {
                return model;
            }
        }
    }
}

/// One of these formats, by their shares.
pub(super) fn of_shares<T: Copy>(draw: &mut Draw, kinds: &[(T, usize)]) -> T {
    let mut at = draw.below(kinds.iter().map(|(_, share)| share).sum());
    for (kind, share) in kinds {
        if at < *share {
            return *kind;
        }
        at -= share;
    }
    unreachable!("a number below the sum of the shares")
}
