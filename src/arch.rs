//! The device of a plan: its architecture and the facts that plans depend on.

use std::fmt;

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
    #[cfg(feature = "cli")]
    pub(crate) const fn device(capability: u16) -> Self {
        Self { capability, exact: false }
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
    /// Rates of memory and arithmetic, for estimates.
    pub rates: Rates,
}

/// Sustained rates of a GPU on random data: measured where we could measure, else from the data sheet.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Rates {
    /// Device memory, GB/s read.
    pub hbm_gbps: f64,
    /// f16 and bf16 on tensor cores with f32 accumulation, TFLOP/s, dense.
    pub half_tflops: f64,
    /// f32 fused multiply-adds, TFLOP/s.
    pub f32_tflops: f64,
    /// f64, TFLOP/s.
    pub f64_tflops: f64,
}

impl DeviceInfo {
    /// One H100 SXM5 80 GB; rates measured 2026-11-21 (docs/benchmarks.md).
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
        let rates = Rates::of(name, capability, sm_count);
        Self { name: name.into(), capability, sm_count, l2_bytes, memory_bytes, rates }
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

/// A GPU's rates by the name that the driver gives: GB/s of device memory, and TFLOP/s in the order of [`Rates`]. f64 is the rate of tensor
/// cores where they have f64.
type Sheet = (&'static str, [f64; 4]);

/// Measured rates: memory by a kernel that only reads, on the H200 by a device-to-device copy; bf16 by cuBLAS at 8192^3; f32 and f64 by
/// candle at 8192^3.
const MEASURED: [Sheet; 2] =
    [("NVIDIA H100 80GB HBM3", [3120.0, 800.0, 52.0, 64.0]), ("NVIDIA H200", [4300.0, 790.0, 52.0, 64.0])];

/// Rates of data sheets, dense; f16 and bf16 with f32 accumulation.
#[rustfmt::skip]
const SHEETS: [Sheet; 20] = [
    // NVIDIA A100 Tensor Core GPU datasheet (2021)
    ("NVIDIA A100-SXM4-40GB", [1555.0, 312.0, 19.5, 19.5]),
    ("NVIDIA A100-SXM4-80GB", [2039.0, 312.0, 19.5, 19.5]),
    ("NVIDIA A100-PCIE-40GB", [1555.0, 312.0, 19.5, 19.5]),
    ("NVIDIA A100 80GB PCIe", [1935.0, 312.0, 19.5, 19.5]),
    // NVIDIA A10, L4 and L40S datasheets; f64 is 1/64 of f32 (GA102 and Ada whitepapers)
    ("NVIDIA A10", [600.0, 125.0, 31.2, 0.49]),
    ("NVIDIA L4", [300.0, 121.0, 30.3, 0.47]),
    ("NVIDIA L40S", [864.0, 362.0, 91.6, 1.43]),
    // NVIDIA GA102, Ada and RTX Blackwell GPU architecture whitepapers, appendix A
    ("NVIDIA GeForce RTX 3090", [936.0, 71.0, 35.6, 0.56]),
    ("NVIDIA GeForce RTX 4090", [1008.0, 165.2, 82.6, 1.29]),
    ("NVIDIA GeForce RTX 5090", [1792.0, 209.5, 104.8, 1.64]),
    // NVIDIA H100 PCIe product brief (114 multiprocessors); H100 and H200 datasheets, NVL
    ("NVIDIA H100 PCIe", [2000.0, 756.0, 51.0, 51.0]),
    ("NVIDIA H100 NVL", [3938.0, 835.0, 60.0, 60.0]),
    ("NVIDIA H200 NVL", [4800.0, 835.0, 60.0, 60.0]),
    // NVIDIA GH200 Grace Hopper Superchip datasheet: HBM3, named by the CPU's memory, and HBM3e
    ("NVIDIA GH200 120GB", [4000.0, 990.0, 67.0, 67.0]),
    ("NVIDIA GH200 480GB", [4000.0, 990.0, 67.0, 67.0]),
    ("NVIDIA GH200 144G HBM3e", [4900.0, 990.0, 67.0, 67.0]),
    // NVIDIA H20 datasheet (78 multiprocessors)
    ("NVIDIA H20", [4000.0, 148.0, 44.0, 1.0]),
    // NVIDIA HGX B200 and B300 datasheets, an eighth
    ("NVIDIA B200", [8000.0, 2250.0, 75.0, 37.0]),
    ("NVIDIA B300", [8000.0, 2250.0, 75.0, 1.25]),
    ("NVIDIA B300 SXM6 AC", [8000.0, 2250.0, 75.0, 1.25]),
];

/// The sustained share of a data sheet's rate.
const SUSTAINED: f64 = 0.8;

impl Rates {
    /// Rates of a GPU by the whole name that the driver gives; scaled from the multiprocessors where the name is unknown.
    pub fn of(name: &str, capability: u16, sm_count: u32) -> Self {
        let find = |sheets: &[Sheet]| sheets.iter().find(|(known, _)| *known == name).map(|(_, rates)| *rates);
        let [hbm_gbps, half_tflops, f32_tflops, f64_tflops] = find(&MEASURED)
            .or_else(|| find(&SHEETS).map(|sheet| sheet.map(|rate| SUSTAINED * rate)))
            .unwrap_or_else(|| Self::per_sm(capability, f64::from(sm_count)));
        Self { hbm_gbps, half_tflops, f32_tflops, f64_tflops }
    }

    /// Memory of the architecture's usual card, and arithmetic per multiprocessor and clock at 1.5 GHz. Sources: CUDA C++ Programming
    /// Guide, "Arithmetic Instructions"; for tensor cores the whitepapers of [`SHEETS`], for GeForce cards where an architecture has both
    /// kinds.
    fn per_sm(capability: u16, sms: f64) -> [f64; 4] {
        let (half, f32_, f64_, hbm) = match capability {
            80 => (2048.0, 128.0, 128.0, 1500.0),
            87 => (1024.0, 256.0, 4.0, 160.0), // Orin
            90 => (4096.0, 256.0, 256.0, 3000.0),
            100 => (8192.0, 256.0, 128.0, 6400.0),
            103 => (8192.0, 256.0, 4.0, 6400.0),
            101 | 110 => (8192.0, 256.0, 4.0, 220.0), // Thor
            121 => (512.0, 256.0, 4.0, 220.0),        // GB10
            86 | 89 | 120 => (512.0, 256.0, 4.0, 700.0),
            _ => (1024.0, 256.0, 4.0, 700.0),
        };
        let tflops = |per_clock: f64| per_clock * sms * 1.5e9 / 1e12;
        [hbm, tflops(half), tflops(f32_), tflops(f64_)]
    }
}
