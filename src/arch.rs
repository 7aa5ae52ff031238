//! The device of a plan: its architecture and the facts that plans depend on.

use std::fmt;

pub use model::{ArchModel, Source};

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

impl DeviceInfo {
    /// One H100 SXM5 80 GB.
    pub fn h100() -> Self {
        Self::known("NVIDIA H100 80GB HBM3", 90, 132, 50 << 20, 80 << 30)
    }

    /// One H200 SXM 141 GB.
    pub fn h200() -> Self {
        Self::known("NVIDIA H200", 90, 132, 60 << 20, 141 << 30)
    }

    /// One A100 SXM4 80 GB.
    pub fn a100() -> Self {
        Self::known("NVIDIA A100-SXM4-80GB", 80, 108, 40 << 20, 80 << 30)
    }

    fn known(name: &str, capability: u16, sm_count: u32, l2_bytes: u64, memory_bytes: u64) -> Self {
        let model = ArchModel::of(name, capability, sm_count);
        Self { name: name.into(), capability, sm_count, l2_bytes, memory_bytes, model }
    }

    /// A device of another machine, by its short name.
    pub fn by_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "h100" => Some(Self::h100()),
            "h200" => Some(Self::h200()),
            "a100" => Some(Self::a100()),
            _ => None,
        }
    }
}
