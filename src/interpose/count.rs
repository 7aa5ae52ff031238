//! What happened to the calls.

use crate::dispatch::Counter;

/// Why a call went to cuBLAS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Forwarded {
    /// [`super::Mode::Off`].
    Off,
    /// The dispatcher chose cuBLAS.
    Chosen,
    /// alpha and beta are in device memory.
    PointerMode,
    /// Operand types that differ, or that no kernel here computes in.
    Types,
    /// An accumulator that is not f32.
    ComputeType,
    /// Operations, sizes, leading dimensions or scalars that make no product; cuBLAS says what is wrong.
    Arguments,
    /// No kernel of this build takes it.
    Unsupported,
    /// Our launch failed, or we panicked before it.
    Failed,
}

const REASONS: [Forwarded; 8] = [
    Forwarded::Off,
    Forwarded::Chosen,
    Forwarded::PointerMode,
    Forwarded::Types,
    Forwarded::ComputeType,
    Forwarded::Arguments,
    Forwarded::Unsupported,
    Forwarded::Failed,
];

static OURS: Counter = Counter::new();
static REFUSED: Counter = Counter::new();
static FORWARDED: [Counter; REASONS.len()] = [const { Counter::new() }; REASONS.len()];

pub(super) fn count_ours() {
    OURS.count();
}

pub(super) fn count_refused() {
    REFUSED.count();
}

pub(super) fn count_forwarded(reason: Forwarded) {
    FORWARDED[reason as usize].count();
}

/// What happened to the calls so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Stats {
    /// Ran on our kernels.
    pub ours: u64,
    /// Went to cuBLAS, by reason.
    pub forwarded: Vec<(Forwarded, u64)>,
    /// Were answered with an error: in [`super::Mode::Force`], and where a launch failed that may have added to C already.
    pub refused: u64,
}

impl Stats {
    /// All calls.
    pub fn calls(&self) -> u64 {
        self.ours + self.refused + self.forwarded.iter().map(|(_, count)| count).sum::<u64>()
    }

    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &Stats) -> Stats {
        let before = |reason| earlier.forwarded.iter().find(|(r, _)| *r == reason).map_or(0, |(_, count)| *count);
        let forwarded = self.forwarded.iter().map(|&(reason, count)| (reason, count - before(reason)));
        Stats {
            ours: self.ours - earlier.ours,
            forwarded: forwarded.filter(|(_, count)| *count > 0).collect(),
            refused: self.refused - earlier.refused,
        }
    }
}

/// The counters of this process.
pub fn stats() -> Stats {
    let count = |reason: Forwarded| (reason, FORWARDED[reason as usize].sum());
    Stats {
        ours: OURS.sum(),
        forwarded: REASONS.into_iter().map(count).filter(|(_, count)| *count > 0).collect(),
        refused: REFUSED.sum(),
    }
}
