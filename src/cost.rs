//! How long a kernel is expected to take: pure arithmetic over the row, the problem and the device.
//!
//! A first model: output tiles are spread over the multiprocessors in waves; each wave takes as long as its arithmetic or its
//! loads, whichever is longer, and the whole no less than what device memory needs. Estimates rank kernels; they are not
//! promises. The constants say where they come from.

use crate::arch::DeviceInfo;
use crate::kernel::{Family, KernelDesc};
use crate::problem::{DType, Problem};

/// Launch, scheduling and the drain of the last tile, in microseconds: an empty kernel in a CUDA graph takes 2 to 3.
const LAUNCH_US: f64 = 3.0;
/// What one multiprocessor pulls when every tile comes from device memory, GB/s, and when most loads hit L2. Fitted to
/// benches/record (one wave of 16 ... 64 tiles at M = 1 and 128; many waves at 4096^3).
const COLD_LOAD_GBPS: f64 = 65.0;
const WARM_LOAD_GBPS: f64 = 95.0;
/// What all of L2 gives, GB/s; fitted to the small tiles at 4096^3, which nothing else bounds.
const L2_GBPS: f64 = 10_000.0;
/// The reference kernel reads both factors of every product through L1.
const REFERENCE_TFLOPS: f64 = 0.6;

/// Expected time of `kernel` for the canonical `problem`, in microseconds.
pub fn estimate_us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    if problem.is_empty() {
        return 0.0;
    }
    match kernel.family {
        Family::Cublas => vendor_us(problem, device),
        Family::Reference => LAUNCH_US + problem.flops() / (REFERENCE_TFLOPS * 1e6),
        Family::SimtGemm | Family::Sm90Gemm | Family::TileGemm => LAUNCH_US + tiled_us(kernel, problem, device),
    }
}

/// The least time that arithmetic and device memory allow, in microseconds.
pub fn roofline_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    let arithmetic = problem.flops() / (peak_tflops(problem.dtype, device) * 1e6);
    arithmetic.max(memory_us(problem, device))
}

/// Time of `passes` elementwise kernels over D, which is what an epilogue costs that no GEMM kernel fuses.
pub fn elementwise_us(problem: &Problem, passes: usize, device: &DeviceInfo) -> f64 {
    let elements = (problem.m * problem.n * problem.batch_count()) as f64;
    let bytes = 2.0 * elements * problem.dtype.bytes() as f64;
    passes as f64 * (LAUNCH_US + bytes / (device.rates.hbm_gbps * 1e3))
}

fn memory_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    problem.bytes() / (device.rates.hbm_gbps * 1e3)
}

fn peak_tflops(dtype: DType, device: &DeviceInfo) -> f64 {
    match dtype {
        DType::F16 | DType::BF16 => device.rates.half_tflops,
        DType::F32 => device.rates.f32_tflops,
        DType::F64 => device.rates.f64_tflops,
    }
}

fn tiled_us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    let [tile_m, tile_n, tile_k] = kernel.tile.map(f64::from);
    let tiles = (problem.m as f64 / tile_m).ceil() * (problem.n as f64 / tile_n).ceil() * problem.batch_count() as f64;
    let blocks_per_tile = if kernel.family == Family::TileGemm { kernel.cluster.iter().product::<u32>() } else { 1 };
    let slots = f64::from(device.sm_count / blocks_per_tile);
    let waves = (tiles / slots).ceil();
    let depth = (problem.k as f64 / tile_k).ceil() * tile_k;

    let peak_per_slot = peak_tflops(problem.dtype, device) * 1e6 / slots; // FLOP per microsecond
    let arithmetic = 2.0 * tile_m * tile_n * depth / (peak_per_slot * mma_efficiency(kernel));
    let tile_bytes = (tile_m + tile_n) * depth * problem.dtype.bytes() as f64;
    let load_gbps = if waves > 1.0 { WARM_LOAD_GBPS } else { COLD_LOAD_GBPS };
    let load = tile_bytes / (load_gbps * 1e3 * f64::from(blocks_per_tile));
    let l2 = tiles * tile_bytes / (L2_GBPS * 1e3);
    overlapped(&[waves * arithmetic, waves * load, l2, memory_us(problem, device)])
}

/// Time of activities that run side by side: that of the longest, and a little more where another is nearly as long, since
/// overlap is never perfect. The 3-norm; without it a padded tile and a fitting one tie wherever device memory decides.
fn overlapped(times: &[f64]) -> f64 {
    times.iter().map(|time| time.powi(3)).sum::<f64>().cbrt()
}

/// Share of the arithmetic peak that a tile's inner loop reaches: small tiles load more per product. Fitted to benches/record:
/// 0.97 for 128x128, 0.99 for 256x256; SIMT 45 of 52 TFLOP/s.
fn mma_efficiency(kernel: &KernelDesc) -> f64 {
    let [m, n, _] = kernel.tile.map(f64::from);
    match kernel.family {
        Family::SimtGemm => 0.86,
        _ => m * n / (m * n + 2.0 * (m + n)),
    }
}

/// cuBLAS by its measured distance from the roofline on 98 Llama shapes (H100, CUDA 13.0): 1.29 up to 64 rows, 1.36 up to
/// 256, 1.145 above; f32 at 16 x 4096 x 4096: 2.4.
fn vendor_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    let rows = problem.m.min(problem.n);
    let factor = match (problem.dtype, rows) {
        (DType::F32, 2..=64) => 2.4,
        (_, 0..=64) => 1.29,
        (DType::F16 | DType::BF16, 65..=256) => 1.36,
        (DType::F16 | DType::BF16, _) => 1.145,
        _ => 1.05,
    };
    LAUNCH_US + roofline_us(problem, device) * factor
}
