//! Everything that can go wrong, each with what to do about it.

/// The result of this crate's own operations; candle's side converts the error into [`candle::Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why another part of the crate says no: a typed error of that part, which [`source`](std::error::Error::source) gives.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a product could not be planned or run.
///
/// The cause of [`Error::Forced`] is a [`Rejection`](crate::kernel::Rejection), the cause of [`Error::Tuning`] a
/// [`Refusal`](crate::tuning::Refusal), the cause of [`Error::Workspace`] a [`WorkspaceError`](crate::workspace::WorkspaceError):
///
/// ```
/// use candle_tilegemm::arch::DeviceInfo;
/// use candle_tilegemm::dispatch::{Dispatcher, Policy};
/// use candle_tilegemm::kernel::Rejection;
/// use candle_tilegemm::{DType, Layout, Problem};
/// use std::error::Error;
///
/// let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
/// let problem = Problem::dense(64, 64, 64, 1, Layout::NT, DType::F32);
/// let error = dispatcher.plan(&problem, Policy::force("cublas_bf16_nt")?).unwrap_err();
/// let rejection = error.source().and_then(|cause| cause.downcast_ref());
/// assert_eq!(rejection, Some(&Rejection::DType { have: DType::BF16, need: DType::F32 }));
/// # Ok::<(), candle_tilegemm::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The CUDA runtime finds no usable device.
    #[error("no CUDA device ({0}); `tilegemm doctor` says what is missing")]
    NoDevice(String),

    /// The linked kernels were built from another header.
    #[error("the kernel library has ABI version {have}, this crate needs {need}; run `cargo clean -p candle-tilegemm` and build again")]
    Abi {
        /// The library's.
        have: i32,
        /// This crate's.
        need: i32,
    },

    /// A linked kernel is not what the table says it is.
    #[error("kernel {kernel} of the linked library does not match the table of this build: {what}; run `cargo clean -p candle-tilegemm` and build again")]
    TableMismatch {
        /// The kernel.
        kernel: String,
        /// The field, with both values.
        what: String,
    },

    /// No kernel of this build runs the problem.
    #[error("no kernel of this build runs {problem}: {reasons}; `tilegemm explain` lists them all")]
    Unsupported {
        /// The problem that was asked for.
        problem: String,
        /// The nearest misses.
        reasons: String,
    },

    /// The kernel that was asked for by name cannot run the problem.
    #[error("{kernel} was asked for by name but cannot run {problem}: {rejection}; unset TILEGEMM_FORCE to let the dispatcher choose")]
    Forced {
        /// Its name.
        kernel: String,
        /// The problem that was asked for.
        problem: String,
        /// Why not.
        #[source]
        rejection: Cause,
    },

    /// There is no kernel of that name.
    #[error("no kernel is named '{0}'; `tilegemm kernels` lists the names")]
    UnknownKernel(String),

    /// An environment variable or option holds something else than it may.
    #[error("{name}={value} is not understood; expected {expected}")]
    BadSetting {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },

    /// A kernel refused what the dispatcher took it for; nothing was launched.
    #[error("{kernel} refused {problem}, which it was chosen for; please report this, and set TILEGEMM_FORCE to another kernel meanwhile")]
    Refused {
        /// The kernel.
        kernel: &'static str,
        /// The problem that it was given.
        problem: String,
    },

    /// A CUDA call failed.
    #[error("{kernel}: {error}")]
    Cuda {
        /// The kernel that was being launched, or the call.
        kernel: &'static str,
        /// CUDA's name and description of the error.
        error: String,
    },

    /// A suite file is not what it should be.
    #[error("{name}: {what}")]
    Suite {
        /// The file.
        name: String,
        /// The line, the field and what was expected there.
        what: String,
    },

    /// A measured table is not to be used here.
    #[error("{name} {refusal}")]
    Tuning {
        /// The table.
        name: String,
        /// Why not.
        #[source]
        refusal: Cause,
    },

    /// A kernel needs a workspace that its stream has not, and nothing runs in its place.
    #[error("there is no workspace for {what}: {lack}")]
    Workspace {
        /// A kernel, or a stream that was to get one.
        what: &'static str,
        /// Why not.
        #[source]
        lack: Cause,
    },

    /// The vendor library failed.
    #[error("cuBLAS: {0}")]
    Vendor(String),
}
