//! What the dispatcher may choose from.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::family::KERNELS;
use crate::kernel::KernelDesc;
use crate::settings;
use crate::workspace;

/// What the dispatcher may choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Whether the vendor library is a candidate.
    pub vendor: bool,
    /// Bytes of device memory that a kernel may count on beside the operands ([`crate::workspace`]).
    pub workspace: u64,
    /// Whether products run on copies of operands ([`crate::packing`]) wherever copies are possible, even where that is slower.
    pub(super) copies: bool,
    /// Position in [`KERNELS`] of the one kernel to take, and the configuration to run it in.
    pub(super) forced: Option<(usize, Option<Config>)>,
}

impl Default for Policy {
    fn default() -> Self {
        Self { vendor: true, workspace: workspace::DEFAULT_BYTES, copies: false, forced: None }
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

    /// From `TILEGEMM_FORCE=<kernel>[@<configuration>]`, `TILEGEMM_VENDOR=on|off` and `TILEGEMM_WORKSPACE=<MiB>`.
    pub fn from_env() -> Result<Self> {
        let policy = match settings::force()? {
            Some(name) => Self::force(&name)?,
            None if settings::vendor()? => Self::default(),
            None => Self::own(),
        };
        Ok(policy.with_workspace(workspace::bytes()?))
    }

    /// With another limit for the device memory that a kernel may count on; 0 for none.
    pub fn with_workspace(self, bytes: u64) -> Self {
        Self { workspace: bytes, ..self }
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
