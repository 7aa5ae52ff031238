//! The device of a plan: its architecture and the facts that plans depend on.

use std::fmt;

pub use model::{ArchModel, Source};

mod cards;
mod model;

/// A CUDA architecture that a kernel is compiled for, or that a device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Arch {
    /// Compute capability as one number: 90 for 9.0. 0 for the vendor library, which runs on every device.
    pub capability: u16,
    /// Whether the code uses features of exactly this architecture (`sm_90a`) and runs on no other.
    pub exact: bool,
}

impl Arch {
    /// The architecture of a device.
    pub(crate) const fn device(capability: u16) -> Self {
        Self { capability, exact: false }
    }

    /// Bytes of shared memory of a multiprocessor (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
    pub(crate) const fn shared_bytes(self) -> u32 {
        let kib = match self.capability {
            80 | 87 => 164,
            90..=110 => 228,
            _ => 100,
        };
        kib * 1024
    }

    /// Whether machine code for this architecture runs on a device of compute capability `device`. The major version must be the
    /// same, and the code's minor version no newer; exact code needs the very same capability.
    /// CUDA C++ Programming Guide, "Binary Compatibility".
    pub fn runs_on(self, device: u16) -> bool {
        if self.capability == 0 {
            true // the vendor library brings its own machine code
        } else if self.exact {
            self.capability == device
        } else {
            self.capability / 10 == device / 10 && self.capability <= device
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.capability, self.exact) {
            (0, _) => f.pad("any"),
            (capability, exact) => f.pad(&format!("sm{capability}{}", if exact { "a" } else { "" })),
        }
    }
}

impl serde::Serialize for Arch {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The facts of a GPU that a plan depends on.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name that the driver gives.
    pub name: String,
    /// Compute capability: 90 for 9.0.
    pub capability: u16,
    /// Multiprocessors.
    pub sm_count: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// The numbers of the card that estimates are made of.
    pub model: ArchModel,
}
