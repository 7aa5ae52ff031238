//! Counting in a path that many threads take.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that threads do not slow each other down with: each adds to one of several cache lines.
#[derive(Debug, Default)]
pub(crate) struct Counter([Line; LINES]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

const LINES: usize = 8;

#[cfg(feature = "cuda")]
thread_local! {
    static LINE: usize = {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % LINES
    };
}

impl Counter {
    /// Zero.
    #[cfg(feature = "interpose")]
    pub const fn new() -> Self {
        Self([const { Line(AtomicU64::new(0)) }; LINES])
    }

    /// Counts one.
    #[cfg(feature = "cuda")]
    pub fn count(&self) {
        self.0[LINE.with(|line| *line)].0.fetch_add(1, Ordering::Relaxed);
    }

    /// The count so far.
    pub fn sum(&self) -> u64 {
        self.0.iter().map(|line| line.0.load(Ordering::Relaxed)).sum()
    }
}
