//! The limits of the dispatcher's choice.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::family::KERNELS;
use crate::kernel::KernelDesc;
use crate::settings::{self, Switch};
use crate::workspace;

/// The limits of the dispatcher's choice: the vendor library, the workspace, a forced kernel.
///
/// ```
/// use candle_tilegemm::arch::DeviceInfo;
/// use candle_tilegemm::dispatch::{Dispatcher, Policy, Reason};
/// use candle_tilegemm::kernel::Role;
/// use candle_tilegemm::{Format, Layout, Problem};
///
/// let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
/// let problem = Problem::dense(2048, 4096, 4096, 1, Layout::NT, Format::BF16);
/// // Only our own kernels, and only those that need no memory beside the operands.
/// let plan = dispatcher.plan(&problem, Policy::own().with_workspace(0))?;
/// assert!(plan.kernel.role == Role::Kernel && plan.workspace.least == 0);
/// // A kernel by name.
/// let plan = dispatcher.plan(&problem, Policy::force("cublas_bf16_nt")?)?;
/// assert_eq!(plan.reason, Reason::Forced);
/// # Ok::<(), candle_tilegemm::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Whether the vendor library is a candidate.
    pub vendor: bool,
    /// Bytes of device memory that a kernel may count on beside the operands ([`crate::workspace`]).
    pub workspace: u64,
    /// Whether a row of the result depends neither on the number of rows nor on the row's place among them, to the bit: each N, K, type
    /// and architecture has one order of sums ([`SumOrder`](crate::kernel::SumOrder)). The vendor library and measured tables are not
    /// asked then.
    pub batch_invariant: bool,
    /// Whether products run on copies of operands ([`crate::packing`]) wherever copies are possible, even where that is slower.
    pub(super) copies: bool,
    /// Position in [`KERNELS`] of the one kernel to take, and the configuration to run it in.
    pub(super) forced: Option<(usize, Option<Config>)>,
}

impl Default for Policy {
    fn default() -> Self {
        Self { vendor: true, workspace: workspace::DEFAULT_BYTES, batch_invariant: false, copies: false, forced: None }
    }
}

impl Policy {
    /// Our own kernels only.
    pub fn own() -> Self {
        Self { vendor: false, ..Self::default() }
    }

    /// The kernel of this name and no other, in the configuration after `@` if there is one: `NAME` or `NAME@128x64_k2`.
    ///
    /// # Errors
    /// [`Error::UnknownKernel`] where the table has no such kernel, [`Error::BadSetting`] where the text after `@` is no [`Config`].
    pub fn force(text: &str) -> Result<Self> {
        let (name, config) = text.split_once('@').map_or((text, None), |(name, config)| (name, Some(config)));
        let kernel = KERNELS.iter().position(|kernel| kernel.name == name);
        let kernel = kernel.ok_or_else(|| Error::UnknownKernel(name.into()))?;
        let bad = |_| Error::BadSetting {
            name: "TILEGEMM_FORCE",
            value: text.into(),
            expected: "a kernel, or a kernel and a configuration as `tilegemm explain` prints them: NAME@128x64_k2",
        };
        let config = config.map(|config| config.parse().map_err(bad)).transpose()?;
        Ok(Self { forced: Some((kernel, config)), ..Self::default() })
    }

    /// From `TILEGEMM_FORCE=<kernel>[@<configuration>]`, `TILEGEMM_VENDOR=on|off`, `TILEGEMM_BATCH_INVARIANT=on|off` and
    /// `TILEGEMM_WORKSPACE=<MiB>`.
    pub fn from_env() -> Result<Self> {
        let policy = match settings::force()? {
            Some(name) => Self::force(&name)?,
            None if settings::vendor()? => Self::default(),
            None => Self::own(),
        };
        Ok(policy.with_batch_invariance(batch_invariant()?).with_workspace(workspace::bytes()?))
    }

    /// With another limit for the device memory that a kernel may count on; 0 for none.
    pub fn with_workspace(self, bytes: u64) -> Self {
        Self { workspace: bytes, ..self }
    }

    /// With or without batch invariance ([`Policy::batch_invariant`]). A kernel that is asked for by name is taken all the same.
    pub fn with_batch_invariance(self, on: bool) -> Self {
        Self { batch_invariant: on, ..self }
    }

    /// The fastest choice on copies of operands, where operands can be copied: for tests.
    #[doc(hidden)]
    pub fn with_copies(self) -> Self {
        Self { copies: true, ..self }
    }

    /// The kernel asked for by name.
    pub fn forced(&self) -> Option<&'static KernelDesc> {
        self.forced.map(|(index, _)| &KERNELS[index])
    }
}

static BATCH_INVARIANT: Switch = Switch::new(settings::batch_invariant);

/// Sets whether the products of this process are batch-invariant ([`Policy::batch_invariant`]), the interposer's products included.
///
/// ```
/// use candle_tilegemm::dispatch::{batch_invariant, set_batch_invariant};
///
/// set_batch_invariant(true);
/// assert!(batch_invariant()?);
/// # Ok::<(), candle_tilegemm::Error>(())
/// ```
pub fn set_batch_invariant(on: bool) {
    BATCH_INVARIANT.set(on);
}

/// Whether the products of this process are batch-invariant: by [`set_batch_invariant`], else by the environment variable
/// `TILEGEMM_BATCH_INVARIANT=on|off`, else false.
///
/// # Errors
/// [`Error::BadSetting`] when the environment variable decides and its value is neither.
pub fn batch_invariant() -> Result<bool> {
    BATCH_INVARIANT.is_on()
}
