//! From measured numbers of rows to ranges of them.

use super::{Entry, Key, LEAST_GAIN};
use crate::config::Config;
use crate::kernel::KernelDesc;

/// A range goes on from one measured M to the next if that is at most this many times as large. Within a factor of two no
/// kernel's number of tile rows more than doubles, and the suite's rows are spaced by that up to 512. From 512 to 2048 the
/// last wave of a grid can be anything from empty to full, and the winner changes with it.
pub const MOST_STEP: usize = 2;

/// What was measured at one number of rows.
///
/// A range covers the measured points and reaches from one to the next where the same kernel won at both, and they are at most
/// [`MOST_STEP`] apart. A measured point without a winner, or with another one, ends it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    m: usize,
    won: Option<Won>,
}

/// A kernel, its configuration where that is not its family's choice, and its gain.
pub type Won = (&'static KernelDesc, Option<Config>, f64);

impl Point {
    /// A kernel that was faster than the dispatcher's choice by these factors, each from a measurement of its own. It has won
    /// if every one of them, of at least two, is above [`LEAST_GAIN`].
    pub fn new(m: usize, kernel: &'static KernelDesc, config: Option<Config>, gains: &[f64]) -> Self {
        let least = gains.iter().copied().fold(f64::INFINITY, f64::min);
        let is_repeatable = gains.len() > 1 && gains.iter().all(|gain| *gain > LEAST_GAIN && gain.is_finite());
        // No more digits than a measurement has, and no better than it was.
        Self { m, won: is_repeatable.then(|| (kernel, config, (least * 1e3).floor() / 1e3)) }
    }

    /// The dispatcher's choice was as good as any.
    pub fn without_winner(m: usize) -> Self {
        Self { m, won: None }
    }

    /// The number of rows.
    pub fn m(&self) -> usize {
        self.m
    }

    /// The kernel that won, its configuration where that is not its family's choice, and its gain.
    pub fn won(&self) -> Option<Won> {
        self.won
    }
}

/// The entries that these points make.
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
                won.map(|(kernel, config, gain)| Entry { key, m: [m, m], kernel, config, gain })
            }
        };
    }
    done.extend(open);
    done
}
