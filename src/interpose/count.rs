//! Counters of intercepted calls: calls on our kernels, forwarded calls, refused calls.

use crate::dispatch::Counter;

/// Why a call went to cuBLAS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Forwarded {
    /// The mode is [`super::Mode::Off`].
    Off,
    /// The dispatcher chose cuBLAS.
    Chosen,
    /// alpha and beta are in device memory.
    PointerMode,
    /// The operand types differ, or no kernel here computes in the type.
    Types,
    /// The type of the sums is not that of our kernels: f32, and f64 for f64.
    ComputeType,
    /// Operations, sizes, leading dimensions or scalars describe no product; cuBLAS reports the error.
    Arguments,
    /// The matrices of a batch are at the addresses of arrays in device memory.
    PointerArrays,
    /// A call of cuBLASLt has an order, an epilogue or another attribute that no kernel here has.
    Attributes,
    /// No kernel of this build supports the product.
    Unsupported,
    /// Our launch failed, or our code panicked before the launch.
    Failed,
}

const REASONS: [Forwarded; 10] = [
    Forwarded::Off,
    Forwarded::Chosen,
    Forwarded::PointerMode,
    Forwarded::Types,
    Forwarded::ComputeType,
    Forwarded::Arguments,
    Forwarded::PointerArrays,
    Forwarded::Attributes,
    Forwarded::Unsupported,
    Forwarded::Failed,
];

pub(super) static OURS: Counter = Counter::new();
pub(super) static REFUSED: Counter = Counter::new();
pub(super) static EXPERTS: Counter = Counter::new();
pub(super) static GGUF: Counter = Counter::new();
pub(super) static MISTRALRS: Counter = Counter::new();
pub(super) static FAILED: Counter = Counter::new();
static FORWARDED: [Counter; REASONS.len()] = [const { Counter::new() }; REASONS.len()];

pub(super) fn count_forwarded(reason: Forwarded) {
    FORWARDED[reason as usize].count();
}

/// Counts of the calls so far, by outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Calls that ran on our kernels.
    pub ours: u64,
    /// Calls that went to cuBLAS, by reason.
    pub forwarded: Vec<(Forwarded, u64)>,
    /// Calls answered with an error: in [`super::Mode::Force`], and after a failed launch that may have added to C
    /// already.
    pub refused: u64,
    /// Calls of candle's kernels for experts, with quantised weights, too, that ran on our kernels (feature `interpose-kernels`).
    pub experts: u64,
    /// Calls of candle's kernels for products with quantised weights that ran on our kernels (feature `interpose-kernels`).
    pub gguf: u64,
    /// Calls of mistralrs's kernels for weights in fp8 and MXFP4 that ran on our kernels (feature `interpose-mistralrs`).
    pub mistralrs: u64,
    /// Calls of candle's kernels for experts and for quantised weights, and of mistralrs's, that could not run: their results are NaN.
    pub failed: u64,
}

impl Stats {
    /// All calls of functions of cuBLAS and cuBLASLt.
    pub fn calls(&self) -> u64 {
        self.ours + self.refused + self.forwarded.iter().map(|(_, count)| count).sum::<u64>()
    }

    /// The counts since `earlier`.
    pub fn since(&self, earlier: &Stats) -> Stats {
        let before = |reason| earlier.forwarded.iter().find(|(r, _)| *r == reason).map_or(0, |(_, count)| *count);
        let forwarded = self.forwarded.iter().map(|&(reason, count)| (reason, count - before(reason)));
        Stats {
            ours: self.ours - earlier.ours,
            forwarded: forwarded.filter(|(_, count)| *count > 0).collect(),
            refused: self.refused - earlier.refused,
            experts: self.experts - earlier.experts,
            gguf: self.gguf - earlier.gguf,
            mistralrs: self.mistralrs - earlier.mistralrs,
            failed: self.failed - earlier.failed,
        }
    }
}

/// The counters of this process.
///
/// ```
/// use candle_tilegemm::interpose;
///
/// let before = interpose::stats();
/// // ... run the model ...
/// let stats = interpose::stats().since(&before);
/// println!("{} of {} calls on our kernels", stats.ours, stats.calls());
/// for (reason, calls) in &stats.forwarded {
///     println!("{calls} to cuBLAS: {reason:?}");
/// }
/// ```
pub fn stats() -> Stats {
    let count = |reason: Forwarded| (reason, FORWARDED[reason as usize].sum());
    Stats {
        ours: OURS.sum(),
        forwarded: REASONS.into_iter().map(count).filter(|(_, count)| *count > 0).collect(),
        refused: REFUSED.sum(),
        experts: EXPERTS.sum(),
        gguf: GGUF.sum(),
        mistralrs: MISTRALRS.sum(),
        failed: FAILED.sum(),
    }
}
