//! Where it runs: the architecture and the device facts that plans depend on.

use std::fmt;

/// A CUDA architecture that a kernel is compiled for, or that a device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arch {
    /// Compute capability as one number: 90 for 9.0. 0 for the vendor library, which covers all.
    pub capability: u16,
    /// Compiled with the features of exactly this architecture (`sm_90a`): runs on no other.
    pub exact: bool,
}

impl Arch {
    /// The architecture of a device.
    pub const fn device(capability: u16) -> Self {
        Self { capability, exact: false }
    }

    /// Whether machine code for this architecture runs on a device of compute capability `device`: the same major version
    /// and no newer minor one, or the very same where it was compiled for that one alone.
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

/// What a plan needs to know of a GPU.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct DeviceInfo {
    /// As the driver gives it.
    pub name: String,
    /// 90 for compute capability 9.0.
    pub capability: u16,
    /// Multiprocessors.
    pub sm_count: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Rates that estimates are made with.
    pub rates: Rates,
}

/// Sustained rates of a GPU on random data, as measured where we could, else from its datasheet.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
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
    /// One H100 SXM5 80 GB; rates measured 2026-11-21 (README, "Numbers").
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

    /// A device that is not here, by its short name.
    pub fn by_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "h100" => Some(Self::h100()),
            "h200" => Some(Self::h200()),
            "a100" => Some(Self::a100()),
            _ => None,
        }
    }
}

impl Rates {
    /// Rates of a GPU by its name, or scaled from its multiprocessors where the name is not known.
    pub fn of(name: &str, capability: u16, sm_count: u32) -> Self {
        match name {
            // Measured: cuBLAS bf16 8192^3, a read-only stream kernel, candle f32 and f64 8192^3.
            _ if name.contains("H100") && sm_count >= 132 => Self::new(3120.0, 800.0, 52.0, 64.0),
            // Same die; bandwidth from a device-to-device copy.
            _ if name.contains("H200") => Self::new(4300.0, 790.0, 52.0, 64.0),
            // Datasheet, at 80 % for what is sustained.
            _ if name.contains("A100") => Self::new(1630.0, 250.0, 15.6, 15.6),
            _ => Self::per_sm(capability, f64::from(sm_count)),
        }
    }

    fn new(hbm_gbps: f64, half_tflops: f64, f32_tflops: f64, f64_tflops: f64) -> Self {
        Self { hbm_gbps, half_tflops, f32_tflops, f64_tflops }
    }

    /// Arithmetic per multiprocessor and clock (CUDA C++ Programming Guide, "Arithmetic Instructions") at 1.5 GHz.
    fn per_sm(capability: u16, sms: f64) -> Self {
        let (half, f32_, f64_, hbm) = match capability {
            100.. => (8192.0, 256.0, 4.0, 1000.0),
            90..=99 => (4096.0, 256.0, 128.0, 3000.0),
            80 => (2048.0, 128.0, 64.0, 1500.0),
            _ => (1024.0, 256.0, 4.0, 700.0),
        };
        let tflops = |per_clock: f64| per_clock * sms * 1.5e9 / 1e12;
        Self::new(hbm, tflops(half), tflops(f32_), tflops(f64_))
    }
}
