//! The choice of the next token.

use super::check::{Check, Rows};
use super::kinds::MOST_DRAWN;
use crate::error::Result;
use crate::ffi;
use crate::launch::layers;
use crate::problem::Format;
use std::ffi::c_void;

/// [`Sampling::to_words`](super::Sampling::to_words) has the fields of the kernel's settings.
const _: () = assert!(size_of::<ffi::tg_sampling>() == 40 && std::mem::offset_of!(ffi::tg_sampling, seed) == 32);

/// The next token of each sequence by its row of logits; positions and lengths grow by 1. `tg_sample` of `csrc/layer/layer.h` states the rules.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// sequences x vocabulary.
    pub logits: Rows,
    /// The words of each sequence's [`Sampling`](super::Sampling), or null: all take the largest logit.
    pub settings: *const c_void,
    /// Null: no padding. A sequence with a negative slot changes nothing.
    pub slots: *const i32,
    /// The result.
    pub tokens: *mut u32,
    /// Of the tokens that made the logits.
    pub positions: *mut i32,
    /// May be null.
    pub lengths: *mut i32,
    /// sequences x `history_stride` tokens by position, or null.
    pub history: *mut u32,
    /// Numbers from a sequence's history to the next.
    pub history_stride: i64,
    /// Set to 1 + s of a sequence s without a number above -inf; may be null.
    pub error: *mut i32,
    /// [`sample_workspace`] bytes, zeroed before the first use, for launches with the same sequences and vocabulary.
    pub workspace: *mut c_void,
    /// Its bytes.
    pub workspace_bytes: u64,
    /// Sequences, at most 65535.
    pub sequences: usize,
    /// Columns of the logits.
    pub vocabulary: usize,
    /// f16, bf16 or f32.
    pub format: Format,
}

/// The bytes of a workspace for [`Sample`] on the current device.
///
/// # Errors
/// Counts of 2^31 and more.
pub fn sample_workspace(sequences: usize, vocabulary: usize) -> Result<u64> {
    let check = Check("Sampler");
    let (sequences, vocabulary) = (check.count("sequences", sequences)?, check.count("tokens", vocabulary)?);
    // SAFETY: a function without pointers.
    Ok(unsafe { ffi::tg_sample_workspace(sequences, vocabulary) } as u64)
}

impl Sample {
    /// Launches on a stream of the current device.
    ///
    /// # Errors
    /// [`Error::Layer`](crate::Error::Layer) where the kernel does not take the arguments, and CUDA's errors.
    ///
    /// # Safety
    /// All pointers are memory of the current device of the sizes above, which stays allocated until the stream has passed the launch.
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<()> {
        let check = Check("Sampler");
        let format = check.format("logits", self.format, &[Format::F16, Format::BF16, Format::F32])?;
        check.that(self.sequences <= 65535, || format!("{} sequences; expected at most 65535", self.sequences))?;
        check.that(self.vocabulary > 0 && (self.settings.is_null() || self.vocabulary <= MOST_DRAWN), || {
            format!("a vocabulary of {}; the kernel draws from 1 to {MOST_DRAWN} tokens", self.vocabulary)
        })?;
        let need = sample_workspace(self.sequences, self.vocabulary)?;
        check.that(self.workspace_bytes >= need, || {
            format!("a workspace of {} bytes; expected {need}", self.workspace_bytes)
        })?;
        let args = ffi::tg_sample {
            logits: self.logits.at,
            logits_stride: self.logits.stride,
            settings: self.settings.cast(),
            slots: self.slots,
            tokens: self.tokens,
            positions: self.positions,
            lengths: self.lengths,
            history: self.history,
            history_stride: self.history_stride,
            error: self.error,
            workspace: self.workspace,
            workspace_bytes: self.workspace_bytes as i64,
            sequences: self.sequences as i32,
            vocabulary: check.count("tokens", self.vocabulary)?,
            format,
        };
        // SAFETY: the caller's promises.
        layers::answer(check.0, unsafe { ffi::tg_sample_launch(&args, &layers::on(stream)?) })
    }
}
