//! How long a kernel is expected to take: pure arithmetic over the row, the problem and the device.
//!
//! A first model: output tiles are spread over the multiprocessors in waves; each wave takes as long as its arithmetic or its
//! loads, whichever is longer, and the whole no less than what device memory needs. Estimates rank kernels; they are not
//! promises. The constants say where they come from.

use crate::arch::DeviceInfo;
use crate::kernel::{Family, KernelDesc};
use crate::problem::{DType, Problem};

/// Launch, scheduling, the first loads and the drain of the last tile, in microseconds. This and the constants below are
/// fitted to benches/record.
const LAUNCH_US: f64 = 4.5;
/// What L2 gives to all multiprocessors together, GB/s; nothing else bounds the small tiles at 4096^3.
const L2_GBPS: f64 = 11_000.0;
/// What one multiprocessor pulls, GB/s, where each has a single tile: with few tiles that is what limits a skinny product.
const SM_LOAD_GBPS: f64 = 110.0;
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
    let arithmetic = waves * 2.0 * tile_m * tile_n * depth / (peak_per_slot * efficiency(kernel));
    let tile_bytes = (tile_m + tile_n) * depth * problem.dtype.bytes() as f64;
    let l2 = tiles * tile_bytes / (L2_GBPS * 1e3);
    let single = tile_bytes / (SM_LOAD_GBPS * 1e3 * f64::from(blocks_per_tile));
    let load = if waves > 1.0 { l2 } else { l2.max(single) };
    overlapped(&[arithmetic, load, memory_us(problem, device)])
}

/// Time of activities that run side by side: that of the longest, and a little more where another is nearly as long, since
/// overlap is never perfect. The 4-norm: with the plain maximum a padded tile and a fitting one tie wherever device memory
/// decides.
fn overlapped(times: &[f64]) -> f64 {
    times.iter().map(|time| time.powi(4)).sum::<f64>().powf(0.25)
}

/// Share of the arithmetic peak that a full grid reaches where nothing else bounds it: ping-pong 674 of 750 TFLOP/s, SIMT 45
/// of 52.
fn efficiency(kernel: &KernelDesc) -> f64 {
    match (kernel.family, kernel.schedule) {
        (Family::SimtGemm, _) => 0.86,
        (_, "pingpong") => 0.9,
        _ => 1.0,
    }
}

/// cuBLAS by its distance from the roofline, launch apart: between what benches/record shows on sixteen shapes and an earlier
/// run over 98 Llama shapes on another card, which was 5 to 15 % slower.
fn vendor_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    let rows = problem.m.min(problem.n);
    let factor = match (problem.dtype, rows) {
        (DType::F32, 2..=64) => 2.0,
        (_, 0..=64) => 1.29,
        (DType::F16 | DType::BF16, 65..=256) => 1.2,
        (DType::F16 | DType::BF16, _) => 1.08,
        _ => 1.1,
    };
    LAUNCH_US + roofline_us(problem, device) * factor
}
