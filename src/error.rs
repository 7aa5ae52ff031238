//! The errors of this crate. Each message names a remedy.

/// The result of this crate's own operations; candle's side converts the error into [`candle::Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The cause of an error: a typed error of another part of the crate, which [`source`](std::error::Error::source)
/// returns.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a product could not be planned or run.
///
/// The cause of [`Error::Forced`] is a [`Rejection`](crate::kernel::Rejection), the cause of [`Error::Workspace`] a [`WorkspaceError`](crate::workspace::WorkspaceError):
///
/// ```
/// use candle_tilegemm::arch::DeviceInfo;
/// use candle_tilegemm::dispatch::{Dispatcher, Policy};
/// use candle_tilegemm::kernel::Rejection;
/// use candle_tilegemm::{Format, Layout, Problem};
/// use std::error::Error;
///
/// let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
/// let problem = Problem::dense(64, 64, 64, 1, Layout::NT, Format::F32);
/// let error = dispatcher.plan(&problem, Policy::force("cublas_bf16_nt")?).unwrap_err();
/// let rejection = error.source().and_then(|cause| cause.downcast_ref());
/// assert!(matches!(rejection, Some(Rejection::Types { have, need }) if have.a == Format::BF16 && need.a == Format::F32));
/// # Ok::<(), candle_tilegemm::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The CUDA runtime finds no usable device.
    #[error("no CUDA device ({0}); `tilegemm doctor` says what is missing")]
    NoDevice(String),

    /// The linked kernels were built from another version of the header.
    #[error("the kernel library has ABI version {have}, this crate needs {need}; run `cargo clean -p candle-tilegemm` and build again")]
    Abi {
        /// The library's ABI version.
        have: i32,
        /// This crate's ABI version.
        need: i32,
    },

    /// A linked kernel differs from its row of the table.
    #[error("kernel {kernel} of the linked library does not match the table of this build: {what}; run `cargo clean -p candle-tilegemm` and build again")]
    TableMismatch {
        /// The kernel.
        kernel: String,
        /// The field, with both values.
        what: String,
    },

    /// No kernel of this build runs the problem, or none of the table, where a plan is made for a build that is not here.
    #[error("no kernel runs {problem}: {reasons}; `tilegemm explain` lists them all")]
    Unsupported {
        /// The requested problem.
        problem: String,
        /// The kernels closest to a match, with their rejections.
        reasons: String,
    },

    /// The kernels for such problems are not in this build.
    #[error("the kernels for {problem} are not in this build; build with the {features}")]
    NotBuilt {
        /// The requested problem.
        problem: String,
        /// The Cargo features that build them, in words: `feature gguf`.
        features: String,
    },

    /// The kernel that was requested by name cannot run the problem.
    #[error("{kernel} was asked for by name but cannot run {problem}: {rejection}; unset TILEGEMM_FORCE to let the dispatcher choose")]
    Forced {
        /// The kernel's name.
        kernel: String,
        /// The requested problem.
        problem: String,
        /// The reason.
        #[source]
        rejection: Cause,
    },

    /// There is no kernel of that name.
    #[error("no kernel is named '{0}'; `tilegemm kernels` lists the names")]
    UnknownKernel(String),

    /// An environment variable or option has a value that is not permitted.
    #[error("{name}={value} is not understood; expected {expected}")]
    BadSetting {
        /// The name of the variable or option.
        name: &'static str,
        /// The value.
        value: String,
        /// The permitted values.
        expected: &'static str,
    },

    /// A kernel refused a problem that the dispatcher chose the kernel for; nothing was launched.
    #[error("{kernel} refused {problem}, which it was chosen for; please report this, and set TILEGEMM_FORCE to another kernel meanwhile")]
    Refused {
        /// The kernel.
        kernel: &'static str,
        /// The problem.
        problem: String,
    },

    /// A CUDA call failed.
    #[error("{kernel}: {error}")]
    Cuda {
        /// The kernel of the failed launch, or the failed call.
        kernel: &'static str,
        /// CUDA's name and description of the error.
        error: String,
    },

    /// Device memory has no room for a kernel's code.
    #[error("device memory is full: {free_mib} MiB are free, and loading {kernel} takes up to {need_mib} MiB; free memory, or call `prepare` before memory is full")]
    MemoryFull {
        /// The kernel.
        kernel: &'static str,
        /// Free device memory.
        free_mib: usize,
        /// Free device memory that a load needs.
        need_mib: usize,
    },

    /// A suite file is invalid.
    #[error("{name}: {what}")]
    Suite {
        /// The file.
        name: String,
        /// The line, the field and the expected value.
        what: String,
    },

    /// A measured table cannot be used on this machine.
    #[error("{name} {refusal}")]
    Tuning {
        /// The table.
        name: String,
        /// The reason.
        #[source]
        refusal: Cause,
    },

    /// A kernel needs a workspace, the stream has none, and no other kernel replaces the kernel.
    #[error("there is no workspace for {what}: {lack}")]
    Workspace {
        /// A kernel, or the stream that needs the workspace.
        what: &'static str,
        /// The reason.
        #[source]
        lack: Cause,
    },

    /// A kernel of a layer does not take its arguments; nothing was launched.
    #[error("{block}: {what}")]
    Layer {
        /// The block, such as `attention::decode`.
        block: &'static str,
        /// What does not fit, and what would.
        what: String,
    },

    /// The vendor library failed.
    #[error("cuBLAS: {0}")]
    Vendor(String),
}
