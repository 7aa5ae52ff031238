//! Workspaces: device memory that kernels need beside the operands, one for each stream of a device.
//!
//! # Contents
//!
//! - Prepared operands: bf16 parts of f32 numbers, and transposed matrices. A kernel before the product writes them.
//!   `footprint` of `src/family/<family>.rs` states their bytes for each row of A and each column of B.
//! - Partial sums of a split K. `scratch_bytes` of `src/family/<family>.rs` states their bytes for the whole product.
//! - Copies of operands ([`crate::packing`]).
//!
//! A family without `footprint` and `scratch_bytes` needs a workspace for copies only.
//!
//! # Size and lifetime
//!
//! A workspace has [`DEFAULT_BYTES`], or the size that `TILEGEMM_WORKSPACE` sets (MiB, 0 for none). The first launch on the stream that
//! needs a workspace allocates it, or [`prepare`](crate::prepare) does. A workspace is neither moved nor freed before the process
//! ends, so that a CUDA graph which has captured its address can be replayed.
//!
//! [`MOST_STREAMS`] streams of a device have a workspace each. Further streams share one more, and their products wait for each
//! other. A stream that is gone leaves its workspace to the next one, unless a graph has the address. A per-thread stream is gone
//! when its thread ends, another stream when CUDA gives its handle to a new stream. From half of [`MOST_STREAMS`] on, streams record an
//! event after each use of their workspace, so that the next stream can wait for that use. A workspace whose last use was before
//! then stays with its stream.
//!
//! # Without a workspace
//!
//! A product that needs more memory than the workspace has is computed in pieces. A product that is added to its own result
//! ([`Epilogue::in_place`](crate::problem::Epilogue::in_place)) is not; another kernel runs it. A stream has no workspace where memory
//! has run out, or where the stream is being captured and had none before. The product then runs as with
//! [`Policy::with_workspace(0)`](crate::dispatch::Policy::with_workspace), on a kernel that needs no workspace. An event of the target
//! `tilegemm::workspace` says so, once for each distinct product.
//!
//! # Order
//!
//! Products on one stream share its workspace, in the order of the stream. A graph uses the workspace of the stream on which it was
//! captured: replay the graph on that stream, or in order with that stream.

use crate::error::Result;
use crate::problem::{Format, Problem};
use crate::settings;
use once_cell::sync::OnceCell;

pub(crate) mod partition;
#[cfg(any(feature = "cuda", test))]
pub(crate) mod streams;

pub use partition::Need;

/// Bytes of a workspace, unless `TILEGEMM_WORKSPACE` sets another size.
pub const DEFAULT_BYTES: u64 = 128 << 20;
/// Streams of a device that get a workspace of their own.
pub const MOST_STREAMS: usize = 8;

/// Bytes of a workspace: the size that `TILEGEMM_WORKSPACE` asks for, else [`DEFAULT_BYTES`].
///
/// ```
/// use candle_tilegemm::dispatch::Policy;
/// use candle_tilegemm::workspace;
///
/// // Plans for the memory that launches will have.
/// let policy = Policy::own().with_workspace(workspace::bytes()?);
/// assert!(!policy.vendor);
/// # Ok::<(), candle_tilegemm::Error>(())
/// ```
///
/// # Errors
/// [`Error::BadSetting`](crate::Error::BadSetting) when the variable holds no number.
pub fn bytes() -> Result<u64> {
    static BYTES: OnceCell<u64> = OnceCell::new();
    BYTES.get_or_try_init(|| Ok(settings::workspace()?.map_or(DEFAULT_BYTES, |mib| u64::from(mib) << 20))).copied()
}

/// Why a stream has no workspace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkspaceError {
    /// `TILEGEMM_WORKSPACE` is 0.
    #[error("TILEGEMM_WORKSPACE=0 switches it off")]
    Off,
    /// The stream is being captured, and nothing can be allocated during a capture.
    #[error("the stream is being captured and had none before; launch such a product before, or call `prepare`")]
    Capturing,
    /// Every workspace has a stream, and the shared workspace of further streams cannot be captured.
    #[error(
        "{MOST_STREAMS} streams of the device have one of their own, and what further ones share cannot be captured"
    )]
    ManyStreams,
    /// The allocation failed with this error of CUDA.
    #[error(
        "it could not be allocated ({0}); call `prepare` before memory is full, or set TILEGEMM_WORKSPACE to fewer MiB"
    )]
    Failed(String),
    /// The product's smallest piece does not fit into the workspace.
    #[error("it has {have} bytes, {need} are needed; set TILEGEMM_WORKSPACE to more MiB")]
    Small {
        /// Bytes that the kernel needs at least.
        need: u64,
        /// Bytes of the workspace.
        have: u64,
    },
}

/// Elements of D, over all matrices.
pub(crate) fn outputs(problem: &Problem) -> u64 {
    (problem.m as u64).saturating_mul(problem.n as u64).saturating_mul(problem.batch_count() as u64)
}

/// Device memory for the sums of `parts` parts of K (csrc/common/add_parts.hpp), in bytes.
pub(crate) fn parts_bytes(parts: u64, problem: &Problem) -> u64 {
    let accumulator = if problem.a.format == Format::F64 { 8 } else { 4 };
    if parts > 1 {
        outputs(problem).saturating_mul(parts * accumulator)
    } else {
        0
    }
}

#[cfg(test)]
mod tests;
