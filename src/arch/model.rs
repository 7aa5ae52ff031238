//! The numbers of a card that all estimates share, each with its source.

/// The origin of a card's rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Source {
    /// The rates were measured on the card.
    Measured,
    /// The rates are a share of the card's data sheet.
    DataSheet,
    /// The name is unknown: the rates are the architecture's for each multiprocessor.
    Architecture,
}

/// A card in fifteen numbers. Rates are sustained on random data.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct ArchModel {
    /// The origin of the rates of memory and arithmetic.
    pub source: Source,
    /// The clock of the multiprocessors without a power limit, GHz.
    pub clock_ghz: f64,
    /// Device memory, GB/s read.
    pub memory_gbps: f64,
    /// f16 and bf16 on tensor cores with f32 accumulation, TFLOP/s, dense.
    pub half_tflops: f64,
    /// TF32 on tensor cores, TFLOP/s, dense.
    pub tf32_tflops: f64,
    /// f32 by fused multiply-adds, TFLOP/s.
    pub f32_tflops: f64,
    /// f64, TFLOP/s; on tensor cores where they have f64.
    pub f64_tflops: f64,
    /// f32 operations of a multiprocessor in a clock.
    pub f32_per_clock: f64,
    /// f64 operations of a multiprocessor in a clock.
    pub f64_per_clock: f64,
    /// Bytes that L2 gives to one multiprocessor in a clock.
    pub l2_bytes_per_clock: f64,
    /// Bytes of loads from device memory that one multiprocessor has in flight.
    pub bytes_in_flight: f64,
    /// Latency of a TMA load from device memory under load, from the request to the arrival, microseconds.
    pub latency_us: f64,
    /// A launch that overlaps no other kernel, with scheduling, first loads and drain, microseconds.
    pub launch_us: f64,
    /// A launch that overlaps the kernel before (programmatic dependent launch), microseconds.
    pub overlapped_launch_us: f64,
    /// The share of the multiprocessors that clusters of four and of eight blocks reach.
    pub cluster_reach: [f64; 2],
    /// Bytes of shared memory of a multiprocessor.
    pub shared_bytes: u32,
}

/// A card's rates by the name that the driver gives: GB/s of device memory, then TFLOP/s of f16, TF32, f32 and f64, dense. f64 is
/// the rate of tensor cores where they have f64.
type Rates = [f64; 5];

/// Measured rates: memory by a kernel that only reads, on the H200 by a device-to-device copy; bf16, TF32, f32 and f64 by cuBLAS at
/// 8192^3 (2026-11-21 and 2026-11-22, docs/benchmarks.md). TF32 of the H200 has the H100's ratio to bf16: tensor cores take half as
/// many TF32 products as bf16 products in a cycle, at a slightly higher clock, because TF32 products draw less power.
const MEASURED: [(&str, Rates); 2] = [
    ("NVIDIA H100 80GB HBM3", [3120.0, 800.0, 412.0, 52.0, 64.0]),
    ("NVIDIA H200", [4300.0, 790.0, 406.85, 52.0, 64.0]),
];
/// The clock of the measured cards under load: NVML, in every whole record.
const MEASURED_GHZ: f64 = 1.98;

/// Rates of data sheets. Tensor cores take half as many TF32 products as f16 products in all of these sheets.
#[rustfmt::skip]
const SHEETS: [(&str, [f64; 4]); 20] = [
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
/// TF32 over f16 on data sheets.
const TF32: f64 = 0.5;
/// The clock of a card that no table names, GHz.
const UNKNOWN_GHZ: f64 = 1.5;

/// Latency under load on an H100, and a multiprocessor's share of that card's memory, GB/s: 37 recordings of swapped products of 5 to 96
/// rows (2026-11-22). Loads queue for the memory: the latency shrinks as a multiprocessor's share of the memory grows (Little's law). On the
/// H200 with 1.38 times the share, the latencies that fit the record best are 0.71 and 0.74 of the H100's, in two families.
const LATENCY_US: f64 = 1.22;
const LATENCY_GBPS: f64 = 3120.0 / 132.0;
/// Latency without a queue, microseconds: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking"
/// (2024), rounded up for TMA.
const LEAST_LATENCY_US: f64 = 0.6;

/// An architecture's multiprocessor.
struct Multiprocessor {
    /// Operations in a clock: f16 on tensor cores, f32, f64.
    per_clock: [f64; 3],
    /// Memory of the architecture's usual card, GB/s.
    memory_gbps: f64,
}

/// Sources: CUDA C++ Programming Guide, "Arithmetic Instructions"; for tensor cores the whitepapers of [`SHEETS`], for GeForce cards where an architecture has both kinds.
fn multiprocessor(capability: u16) -> Multiprocessor {
    let (half, f32_, f64_, memory_gbps) = match capability {
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
    Multiprocessor { per_clock: [half, f32_, f64_], memory_gbps }
}

impl ArchModel {
    /// The model of the card with exactly this name of the driver; of a card that no table names, by the architecture.
    pub fn of(name: &str, capability: u16, sm_count: u32) -> Self {
        let multiprocessor = multiprocessor(capability);
        let [half_per_clock, f32_per_clock, f64_per_clock] = multiprocessor.per_clock;
        let sms = f64::from(sm_count);
        let measured = MEASURED.iter().find(|(known, _)| *known == name);
        let sheet = SHEETS.iter().find(|(known, _)| *known == name);
        let (source, rates, clock_ghz) = match (measured, sheet) {
            (Some((_, rates)), _) => (Source::Measured, *rates, MEASURED_GHZ),
            // A data sheet's rate of f32 is the rate of all lanes at the highest clock.
            (_, Some((_, [memory, half, f32_, f64_]))) => {
                let rates = [*memory, *half, TF32 * half, *f32_, *f64_].map(|rate| SUSTAINED * rate);
                (Source::DataSheet, rates, f32_ * 1e3 / (f32_per_clock * sms.max(1.0)))
            }
            _ => {
                let tflops = |per_clock: f64| per_clock * sms * UNKNOWN_GHZ * 1e9 / 1e12;
                let [half, f32_, f64_] = [half_per_clock, f32_per_clock, f64_per_clock].map(tflops);
                (Source::Architecture, [multiprocessor.memory_gbps, half, TF32 * half, f32_, f64_], UNKNOWN_GHZ)
            }
        };
        let [memory_gbps, half_tflops, tf32_tflops, f32_tflops, f64_tflops] = rates;
        Self {
            source,
            clock_ghz,
            memory_gbps,
            half_tflops,
            tf32_tflops,
            f32_tflops,
            f64_tflops,
            f32_per_clock,
            f64_per_clock,
            // Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (2018), and every architecture since.
            l2_bytes_per_clock: 64.0,
            // 50 GB/s of one multiprocessor on an H100, by the latency: 37 recordings of swapped products of 5 to 96 rows (2026-11-22).
            bytes_in_flight: 50e3 * LATENCY_US,
            latency_us: (LATENCY_US * LATENCY_GBPS / (memory_gbps / sms.max(1.0))).max(LEAST_LATENCY_US),
            // The H100 records of benches/record.
            launch_us: 3.7,
            // Kernels overlap from Hopper on.
            overlapped_launch_us: if capability >= 90 { 1.7 } else { 3.7 },
            // The H100: 120 and 112 of 132 multiprocessors. Groups of 18 and fewer multiprocessors leave a remainder.
            cluster_reach: [120.0 / 132.0, 112.0 / 132.0],
            shared_bytes: shared_bytes(capability),
        }
    }

    /// The rate of L2 to one multiprocessor, GB/s.
    pub fn l2_gbps_per_sm(&self) -> f64 {
        self.l2_bytes_per_clock * self.clock_ghz
    }

    /// The rate at which one multiprocessor reads device memory, where the others leave bandwidth, GB/s: the bytes in flight over the latency.
    pub fn pull_gbps(&self) -> f64 {
        self.bytes_in_flight / (self.latency_us * 1e3)
    }

    /// Multiprocessors, of `sms`, that clusters of `blocks` reach.
    pub fn reached(&self, sms: usize, blocks: usize) -> usize {
        let share = match blocks {
            ..=2 => return sms,
            3..=4 => self.cluster_reach[0],
            _ => self.cluster_reach[1],
        };
        // The product of a whole number and its share is a little below the whole number at times.
        (sms as f64 * share + 1e-6) as usize
    }
}

/// Bytes of shared memory of a multiprocessor (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
fn shared_bytes(capability: u16) -> u32 {
    let kib = match capability {
        80 | 87 => 164,
        90..=110 => 228,
        _ => 100,
    };
    kib * 1024
}
