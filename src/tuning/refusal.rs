//! Why a table or one of its entries is not used, and what to do about it.

use super::Key;
use std::fmt;

/// Why a table is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such file, or it is not for us.
    #[error("cannot be read ({0}); set TILEGEMM_TUNING to another file, or unset it")]
    Unreadable(String),
    /// It is not in the format.
    #[error("is no measured table ({0}); `tilegemm tune` writes one")]
    Format(String),
    /// It is in another version of the format.
    #[error("has schema {have}, and this version reads {need}; measure it again with `tilegemm tune`")]
    Schema {
        /// The table's.
        have: u32,
        /// This crate's.
        need: u32,
    },
    /// Another version of this crate made it.
    #[error("was measured with candle-tilegemm {have}, and this is {need}; measure it again with `tilegemm tune`")]
    CrateVersion {
        /// The table's.
        have: String,
        /// This crate's.
        need: String,
    },
    /// It is for another GPU model.
    #[error("was measured on an {have}, and this is an {need}; measure one for this GPU with `tilegemm tune`")]
    Gpu {
        /// The table's.
        have: String,
        /// This machine's.
        need: String,
    },
    /// The driver is of another branch.
    #[error("was measured with a driver {have}, and this is {need}; measure it again with `tilegemm tune`")]
    Driver {
        /// The table's branch.
        have: String,
        /// This machine's.
        need: String,
    },
    /// Another compiler made the kernels.
    #[error("was measured with kernels that CUDA {have} compiled, here it was {need}; measure it again with `tilegemm tune`")]
    Cuda {
        /// The table's.
        have: String,
        /// This build's.
        need: String,
    },
    /// An entry makes no sense.
    #[error("entry for {entry}: {what}; correct it, or measure it again with `tilegemm tune`")]
    Entry {
        /// Its rows and key.
        entry: String,
        /// What is wrong, and what was expected.
        what: String,
    },
}

/// Why an entry of a table is refused, where the table is used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryRefusal {
    /// The table of kernels has none of that name.
    #[error("there is no kernel {kernel} (see `tilegemm kernels`)")]
    UnknownKernel {
        /// The name.
        kernel: String,
    },
    /// The kernel's code has changed since it was measured.
    #[error("{kernel} was measured with other code (hash {have}, here {need})")]
    OtherCode {
        /// The kernel.
        kernel: String,
        /// The entry's hash.
        have: String,
        /// This build's, [`KernelDesc::code`](crate::kernel::KernelDesc::code).
        need: String,
    },
}

/// An entry that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedEntry {
    /// For which products it was measured.
    pub key: Key,
    /// First and last number of rows.
    pub m: [usize; 2],
    /// Why it is refused.
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
    /// Those of [`EntryRefusal::UnknownKernel`].
    pub unknown_kernel: usize,
    /// Those of [`EntryRefusal::OtherCode`].
    pub other_code: usize,
}

impl RefusedCounts {
    pub(super) fn of(refused: &[RefusedEntry]) -> Self {
        let unknown = |entry: &&RefusedEntry| matches!(entry.refusal, EntryRefusal::UnknownKernel { .. });
        let unknown_kernel = refused.iter().filter(unknown).count();
        Self { unknown_kernel, other_code: refused.len() - unknown_kernel }
    }

    /// Whether all entries are used.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// For instance `3 entries are refused: 2 of kernels whose code has changed, 1 of kernels that are gone`.
impl fmt::Display for RefusedCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unknown_kernel, other_code } = *self;
        let reasons = [(other_code, "of kernels whose code has changed"), (unknown_kernel, "of kernels that are gone")];
        let reasons = reasons.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
        let verb = if unknown_kernel + other_code == 1 { "entry is" } else { "entries are" };
        let reasons: Vec<String> = reasons.collect();
        write!(f, "{} {verb} refused: {}", unknown_kernel + other_code, reasons.join(", "))
    }
}
