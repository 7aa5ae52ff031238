//! Device memory that kernels need beside the operands: how much there is, and which stream has it.
//!
//! A kernel that multiplies f32 by bf16 parts ([`Math::Bf16x6`](crate::kernel::Math::Bf16x6)) splits operands beforehand, unless it does that on their way
//! (`sm90_bf16x6_direct`); one that multiplies as TF32 ([`Math::Tf32`](crate::kernel::Math::Tf32)) transposes one where none is K-major; those of
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
use crate::settings;
use once_cell::sync::OnceCell;

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

#[cfg(test)]
mod tests;
