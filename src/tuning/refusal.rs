//! Why a table is not used, and what to do about it.

/// Why a table is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
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
    /// The kernels have changed.
    #[error("was measured with other kernels (hash {have}, here {need}); measure it again with `tilegemm tune`")]
    Kernels {
        /// The table's hash.
        have: String,
        /// This build's.
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
    /// It names a kernel that is not in the table.
    #[error("names the kernel '{kernel}', which there is not (see `tilegemm kernels`); measure it again with `tilegemm tune`")]
    UnknownKernel {
        /// The name.
        kernel: String,
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
