//! Reasons why a table or an entry is not used, with the remedy.

use super::key::Key;
use std::fmt;

/// Why a table is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The file does not exist, or this user may not read the file.
    #[error("cannot be read ({0}); set TILEGEMM_TUNING to another file, or unset it")]
    Unreadable(String),
    /// The file is not in the format.
    #[error("is no measured table ({0}); `tilegemm tune` writes one")]
    Format(String),
    /// The file is in another version of the format.
    #[error("has schema {have}, and this version reads {need}; measure it again with `tilegemm tune`")]
    Schema {
        /// The table's schema.
        have: u32,
        /// This crate's schema.
        need: u32,
    },
    /// Another version of this crate made the table.
    #[error("was measured with candle-tilegemm {have}, and this is {need}; measure it again with `tilegemm tune`")]
    CrateVersion {
        /// The table's version.
        have: String,
        /// This crate's version.
        need: String,
    },
    /// The table is for another GPU model.
    #[error("was measured on an {have}, and this is an {need}; measure one for this GPU with `tilegemm tune`")]
    Gpu {
        /// The table's GPU model.
        have: String,
        /// This machine's GPU model.
        need: String,
    },
    /// The driver is from another branch.
    #[error("was measured with a driver {have}, and this is {need}; measure it again with `tilegemm tune`")]
    Driver {
        /// The table's branch.
        have: String,
        /// This machine's branch.
        need: String,
    },
    /// Another compiler made the kernels.
    #[error("was measured with kernels that CUDA {have} compiled, here it was {need}; measure it again with `tilegemm tune`")]
    Cuda {
        /// The table's CUDA version.
        have: String,
        /// This build's CUDA version.
        need: String,
    },
    /// An entry is invalid.
    #[error("entry for {entry}: {what}; correct it, or measure it again with `tilegemm tune`")]
    Entry {
        /// The entry's rows and key.
        entry: String,
        /// The invalid value, and the expected value.
        what: String,
    },
}

/// Why an entry of a used table is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryRefusal {
    /// The table of kernels has no kernel of that name.
    #[error("there is no kernel {kernel} (see `tilegemm kernels`)")]
    UnknownKernel {
        /// The name of the kernel.
        kernel: String,
    },
    /// The kernel's code has changed since the measurement.
    #[error("{kernel} was measured with other code (hash {have}, here {need})")]
    OtherCode {
        /// The kernel.
        kernel: String,
        /// The entry's hash.
        have: String,
        /// This build's hash, [`KernelDesc::code`](crate::kernel::KernelDesc::code).
        need: String,
    },
    /// The kernel cannot run the entry's product: on this GPU, in this build, or in the entry's configuration.
    #[error("{kernel}: {why}")]
    Unfit {
        /// The kernel.
        kernel: String,
        /// The [`Rejection`](crate::kernel::Rejection).
        why: String,
    },
}

/// A refused entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedEntry {
    /// The products that the entry was measured for.
    pub key: Key,
    /// First and last number of rows.
    pub m: [usize; 2],
    /// Why the entry is refused.
    pub refusal: EntryRefusal,
}

impl fmt::Display for RefusedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, m: [first, last], refusal } = self;
        write!(f, "the entry for M {first} to {last} of {key}: {refusal}")
    }
}

/// How many entries of a table are refused, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct RefusedCounts {
    /// Entries with [`EntryRefusal::UnknownKernel`].
    pub unknown_kernel: usize,
    /// Entries with [`EntryRefusal::OtherCode`].
    pub other_code: usize,
    /// Entries with [`EntryRefusal::Unfit`].
    pub unfit: usize,
}

impl RefusedCounts {
    /// The numbers of these entries.
    pub fn of(refused: &[RefusedEntry]) -> Self {
        let mut counts = Self::default();
        for entry in refused {
            *match entry.refusal {
                EntryRefusal::UnknownKernel { .. } => &mut counts.unknown_kernel,
                EntryRefusal::OtherCode { .. } => &mut counts.other_code,
                EntryRefusal::Unfit { .. } => &mut counts.unfit,
            } += 1;
        }
        counts
    }

    /// Whether all entries are used.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// For instance `3 entries are refused: 2 of kernels whose code has changed, 1 of kernels that are gone`.
impl fmt::Display for RefusedCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unknown_kernel, other_code, unfit } = *self;
        let reasons = [
            (other_code, "of kernels whose code has changed"),
            (unknown_kernel, "of kernels that are gone"),
            (unfit, "of kernels that cannot run them here"),
        ];
        let reasons = reasons.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
        let all = unknown_kernel + other_code + unfit;
        let verb = if all == 1 { "entry is" } else { "entries are" };
        let reasons: Vec<String> = reasons.collect();
        write!(f, "{all} {verb} refused: {}", reasons.join(", "))
    }
}
