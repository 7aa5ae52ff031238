//! Device memory that kernels need beside the operands: how much, and how a product is cut up to do with less.
//!
//! A kernel that multiplies f32 by bf16 parts ([`Math::Bf16x6`]) splits operands beforehand, unless it does that on their way
//! (`sm90_bf16x6_direct`); one that multiplies as TF32 ([`Math::Tf32`]) transposes one where none is K-major; those of
//! `sm90_sgemm` transpose what is; and what comes of that lies in a workspace. There is one for each device and stream, of
//! [`DEFAULT_BYTES`] unless `TILEGEMM_WORKSPACE` (MiB, 0 for none) says otherwise. It is allocated when the first such kernel is
//! launched on the stream, or by [`prepare`](crate::prepare), and neither moved nor freed before the process ends, so that a CUDA
//! graph which has captured its address can be replayed. Streams beyond [`MOST_STREAMS`] of a device share one more: their products
//! wait for each other. A stream that is gone leaves its own to the next one, unless a graph has the address: the per-thread stream
//! when its thread ends, another stream when CUDA gives its handle to a new one. From half of [`MOST_STREAMS`] on, streams record an
//! event after each use for that; what was used last before then stays where it is.
//!
//! A product that needs more is computed in pieces, unless it is added to its own result
//! ([`Epilogue::in_place`](crate::problem::Epilogue::in_place)): that takes another kernel. Where there is none (no memory, or the stream is being captured and has none of
//! its own), the product runs as it would with [`Policy::with_workspace(0)`](crate::dispatch::Policy::with_workspace), on a
//! kernel that needs none; an event of the target `tilegemm::workspace` says so, once for each distinct product.
//!
//! Products on one stream share its workspace, in the order of the stream. A graph that is replayed uses that of the stream on
//! which it was captured: replay it there, or in order with what runs there.

use crate::error::Result;
use crate::kernel::{Family, KernelDesc, Math};
use crate::problem::{Layout, Problem};
use crate::settings;
use once_cell::sync::OnceCell;

#[cfg(any(feature = "cuda", test))]
pub(crate) mod cut;
#[cfg(any(feature = "cuda", test))]
pub(crate) mod streams;

/// Size of a workspace.
pub const DEFAULT_BYTES: u64 = 128 << 20;
/// How many streams of a device get one of their own.
pub const MOST_STREAMS: usize = 8;

/// The size that `TILEGEMM_WORKSPACE` asks for, else [`DEFAULT_BYTES`].
///
/// # Errors
/// [`Error::BadSetting`](crate::Error::BadSetting) when the variable holds something else than a number.
pub fn bytes() -> Result<u64> {
    static BYTES: OnceCell<u64> = OnceCell::new();
    BYTES.get_or_try_init(|| Ok(settings::workspace()?.map_or(DEFAULT_BYTES, |mib| u64::from(mib) << 20))).copied()
}

/// Why a stream has no workspace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    /// By `TILEGEMM_WORKSPACE`.
    #[error("TILEGEMM_WORKSPACE=0 switches it off")]
    Off,
    /// Nothing can be allocated then.
    #[error("the stream is being captured and had none before; launch such a product before, or call `prepare`")]
    Capturing,
    /// Memory would run out with streams that come and go.
    #[error(
        "{MOST_STREAMS} streams of the device have one of their own, and what further ones share cannot be captured"
    )]
    ManyStreams,
    /// CUDA's error.
    #[error(
        "it could not be allocated ({0}); call `prepare` before memory is full, or set TILEGEMM_WORKSPACE to fewer MiB"
    )]
    Failed(String),
    /// The product's smallest piece does not fit.
    #[error("it has {have} bytes, {need} are needed; set TILEGEMM_WORKSPACE to more MiB")]
    Small {
        /// What the kernel needs at least.
        need: u64,
        /// Its size.
        have: u64,
    },
}

/// How much of a workspace a kernel needs for a product, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Need {
    /// For the smallest piece that can be computed at a time; 0: it needs none.
    pub least: u64,
    /// For the whole at once.
    pub best: u64,
}

/// What a kernel keeps in the workspace for each row of A and column of B, and the smallest number of them in a piece.
///
/// This is the contract of `tg_gemm_args::workspace`, in numbers.
struct Share {
    row: u64,
    column: u64,
    /// Rows and columns are rounded up to these.
    lines: [usize; 2],
    step: [usize; 2],
}

/// K is rounded up to this.
const DEPTH: usize = 64;

impl Share {
    fn of(kernel: &KernelDesc, problem: &Problem) -> Option<Self> {
        let depth = problem.k.div_ceil(DEPTH).saturating_mul(DEPTH) as u64;
        let [row, column] = match (kernel.math, kernel.layout) {
            _ if kernel.family == Family::Sm90Bf16x6Direct => return None,
            // Three bf16 planes of B; A as f32, transposed, where its rows are not contiguous.
            (Math::Bf16x6, Layout::TN | Layout::TT) => [4 * depth, 6 * depth],
            (Math::Bf16x6, _) => [0, 6 * depth],
            _ => kernel.transposes(problem).map(|transposed| if transposed { 4 * depth } else { 0 }),
        };
        if row + column == 0 {
            return None;
        }
        // Rows of planes of a row-major B are multiples of 16 bytes; what is transposed to have K outside has lines of 32.
        let lines = if kernel.family == Family::Sm90Sgemm { [32, 32] } else { [1, 8] };
        let step = [0, 1].map(|i| ((kernel.tile[i] * kernel.cluster[i]) as usize).next_multiple_of(lines[i]));
        Some(Self { row, column, lines, step })
    }

    fn rows(&self, rows: usize) -> u64 {
        self.row.saturating_mul(rows.next_multiple_of(self.lines[0]) as u64)
    }

    fn columns(&self, columns: usize) -> u64 {
        self.column.saturating_mul(columns.next_multiple_of(self.lines[1]) as u64)
    }

    fn matrices(&self, rows: usize, columns: usize, matrices: usize) -> u64 {
        self.rows(rows).saturating_add(self.columns(columns)).saturating_mul(matrices as u64)
    }
}

/// What `kernel` needs for the canonical `problem`.
pub(crate) fn need(kernel: &KernelDesc, problem: &Problem) -> Need {
    let Some(share) = Share::of(kernel, problem).filter(|_| !problem.is_empty()) else { return Need::default() };
    let Problem { m, n, .. } = *problem;
    let best = share.matrices(m, n, problem.batch_count());
    // Where a piece fails after others were added to C, the whole cannot be computed again.
    let least = match problem.epilogue.in_place {
        true => best,
        false => share.matrices(m.min(share.step[0]), n.min(share.step[1]), 1),
    };
    Need { least, best }
}

#[cfg(test)]
mod tests;
