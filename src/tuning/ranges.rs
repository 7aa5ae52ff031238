//! Ranges of rows from measured numbers of rows.

use super::entry::{Entry, LEAST_GAIN};
use super::key::Key;
use crate::config::Config;
use crate::kernel::KernelDesc;

/// A range continues from one measured M to the next if the next is at most this many times as large. Within a factor
/// of two no kernel's number of tile rows more than doubles, and up to 512 the suite's rows have this spacing. From 512
/// to 2048 the last wave of a grid varies from empty to full, and the winner changes with the last wave.
pub const MOST_STEP: usize = 2;

/// The measurement at one number of rows.
///
/// A range covers the measured points. A range reaches from one point to the next where the same kernel won at both
/// points and the points are at most [`MOST_STEP`] apart. A measured point without a winner, or with another winner,
/// ends the range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    m: usize,
    won: Option<Won>,
}

/// A kernel, its configuration where the family chooses another one, and its gain.
pub type Won = (&'static KernelDesc, Option<Config>, f64);

impl Point {
    /// A kernel that was faster than the dispatcher's choice by these factors, each from a separate measurement. The
    /// kernel has won if there are at least two factors and every factor is above [`LEAST_GAIN`].
    pub fn new(m: usize, kernel: &'static KernelDesc, config: Option<Config>, gains: &[f64]) -> Self {
        let least = gains.iter().copied().fold(f64::INFINITY, f64::min);
        let is_repeatable = gains.len() > 1 && gains.iter().all(|gain| *gain > LEAST_GAIN && gain.is_finite());
        // The gain has no more digits than a measurement, and is rounded down.
        Self { m, won: is_repeatable.then(|| (kernel, config, (least * 1e3).floor() / 1e3)) }
    }

    /// A point where the dispatcher's choice was as good as every kernel.
    pub fn without_winner(m: usize) -> Self {
        Self { m, won: None }
    }

    /// The number of rows.
    pub fn m(&self) -> usize {
        self.m
    }

    /// The winning kernel, its configuration where the family chooses another one, and its gain.
    pub fn won(&self) -> Option<Won> {
        self.won
    }
}

/// The entries of these points.
pub(super) fn entries(key: Key, points: &[Point]) -> Vec<Entry> {
    let mut points = points.to_vec();
    points.sort_by_key(|point| point.m);
    points.dedup_by_key(|point| point.m);
    let mut done = Vec::new();
    let mut open: Option<Entry> = None; // ends at the point before
    for Point { m, won } in points {
        open = match (open, won) {
            (Some(entry), Some((kernel, config, gain)))
                if (entry.kernel, entry.config) == (kernel, config) && m <= MOST_STEP * entry.m[1] =>
            {
                Some(Entry { m: [entry.m[0], m], gain: entry.gain.min(gain), ..entry })
            }
            (entry, won) => {
                done.extend(entry);
                won.map(|(kernel, config, gain)| Entry { key, m: [m, m], kernel, config, gain, learned: None })
            }
        };
    }
    done.extend(open);
    done
}
