//! The device of a plan: its architecture and the facts that plans depend on.

use std::fmt;

#[doc(hidden)]
pub use cards::Chip;
pub(crate) use cards::Known;
pub use model::{ArchModel, Source};

mod cards;
mod model;

/// The compute capabilities that have a Cargo feature: `sm80` and so on.
const FEATURES: [u16; 5] = [80, 89, 90, 100, 120];

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
    #[doc(hidden)]
    /// The architecture of a device.
    pub const fn device(capability: u16) -> Self {
        Self { capability, exact: false }
    }

    #[doc(hidden)]
    /// The words that tell the user of a device of compute capability `device` how to get kernels for the device, where `built` are the
    /// capabilities of this build.
    pub fn remedy(device: u16, built: &[u16]) -> String {
        let built = match built {
            [] => "no kernels".into(),
            archs => {
                format!("kernels for {}", archs.iter().map(|arch| format!("sm{arch}")).collect::<Vec<_>>().join(", "))
            }
        };
        let device_is = format!("this build has {built}, and the device is an sm{device}");
        match FEATURES.into_iter().rev().find(|arch| Arch::device(*arch).runs_on(device)) {
            Some(feature) => format!("{device_is}; build with the feature sm{feature}"),
            None => format!("{device_is}, which no feature builds for; cuBLAS runs there"),
        }
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
///
/// ```
/// use candle_tilegemm::arch::{DeviceInfo, Source};
///
/// let h100 = DeviceInfo::h100();
/// assert_eq!((h100.capability, h100.sm_count), (90, 132));
/// assert_eq!(h100.model.source, Source::Measured);
/// for name in DeviceInfo::names() {
///     println!("{name}: {}", DeviceInfo::by_name(name).expect("a name of the list").name);
/// }
/// ```
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
