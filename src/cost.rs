//! Expected times of kernels: pure arithmetic over the row, the problem and the device.
//!
//! Each family estimates its own kernels (`src/family`). This module has the models that families share: the roofline, a pipeline of
//! output tiles in waves (`cost::tiles`), and the time of an epilogue. Estimates rank kernels; they are not promises. Each constant states its
//! source.

use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::kernel::{Case, ElementCost, KernelDesc, Math};
use crate::problem::{Activation, Format, Operand, Problem};
use crate::workspace;

pub(crate) mod tf32;
pub(crate) mod tiles;

/// Launch, scheduling, the first loads and the drain of the last tile, in microseconds; fitted to benches/record.
pub(crate) const LAUNCH_US: f64 = 3.7;
/// [`LAUNCH_US`] where the kernel overlaps the kernel before it; fitted to benches/record.
pub(crate) const OVERLAPPED_LAUNCH_US: f64 = 1.7;

/// Expected time of `kernel` for the canonical `problem`, in microseconds, with a workspace of the default size.
pub fn estimate_us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    configure(&Case { kernel, problem, device, workspace: workspace::DEFAULT_BYTES }).1
}

/// The configuration that a plan takes, and its expected time in microseconds.
pub(crate) fn configure(case: &Case) -> (Config, f64) {
    if case.problem.is_empty() {
        return (Config::default(), 0.0);
    }
    let config = case.kernel.family().choose(case);
    (config, configured_us(case, &config))
}

/// Expected time in this configuration, in microseconds.
pub(crate) fn configured_us(case: &Case, config: &Config) -> f64 {
    if case.problem.is_empty() {
        return 0.0;
    }
    let family = case.kernel.family();
    let elements = case.problem.outputs() / f64::from(case.device.sm_count);
    family.estimate(case, config) + 1e-3 * elements * element_ns(&family.element_cost(case.kernel), case.problem)
}

/// The least time that arithmetic and device memory allow, in microseconds. For f32 the fastest arithmetic that the mode admits counts.
pub fn roofline_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    let admitted = [Math::Native, Math::Tf32, Math::Bf16x6].into_iter().filter(|math| problem.f32_mode.admits(*math));
    let times = admitted.map(|math| arithmetic_us(problem, math, device));
    times.fold(f64::INFINITY, f64::min).max(memory_us(problem, device))
}

pub(crate) fn arithmetic_us(problem: &Problem, math: Math, device: &DeviceInfo) -> f64 {
    problem.flops() / (peak_tflops(problem.a.format, math, device) * 1e6)
}

/// Time of `passes` elementwise kernels over D: the cost of an epilogue that no GEMM kernel fuses.
pub fn elementwise_us(problem: &Problem, passes: usize, device: &DeviceInfo) -> f64 {
    let elements = problem.outputs();
    let bytes = 2.0 * elements * problem.d.format.bits() / 8.0;
    passes as f64 * (LAUNCH_US + bytes / (device.rates.hbm_gbps * 1e3))
}

pub(crate) fn memory_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    problem.bytes() / (device.rates.hbm_gbps * 1e3)
}

pub(crate) fn peak_tflops(operands: Format, math: Math, device: &DeviceInfo) -> f64 {
    match (operands, math) {
        (Format::F32, Math::Native) => device.rates.f32_tflops,
        // Tensor cores take half as many TF32 products as bf16 products in a cycle, at a slightly higher clock, as they draw less power:
        // 412 TFLOP/s of 8192^3 on an H100.
        (Format::F32, Math::Tf32) => device.rates.half_tflops * 0.515,
        (Format::F32, Math::Bf16x6) => device.rates.half_tflops / 6.0,
        (Format::F64, _) => device.rates.f64_tflops,
        _ => device.rates.half_tflops,
    }
}

/// The number of distinct matrices of an operand: a batch stride of 0 repeats one matrix.
pub(crate) fn distinct(problem: &Problem, operand: &Operand) -> f64 {
    let along = problem.batch.into_iter().zip(operand.batch_stride);
    along.map(|(count, stride)| if stride == 0 { 1.0 } else { count as f64 }).product()
}

/// Time of activities that run side by side: the longest time, and a little more where another time is nearly as long, since
/// overlap is never perfect. The function is the 4-norm. With the plain maximum, a padded tile and a fitting tile would tie wherever
/// device memory decides.
pub(crate) fn overlapped(times: &[f64]) -> f64 {
    times.iter().map(|time| time.powi(4)).sum::<f64>().powf(0.25)
}

/// [`overlapped`] by another norm.
pub(crate) fn overlap_by(norm: f64, times: &[f64]) -> f64 {
    times.iter().map(|time| time.powf(norm)).sum::<f64>().powf(1.0 / norm)
}

/// Time that the epilogue adds for each element of D, in nanoseconds of one multiprocessor.
fn element_ns(cost: &ElementCost, problem: &Problem) -> f64 {
    let epilogue = &problem.epilogue;
    // Instructions of csrc/common/activation.hpp.
    let instructions = match (epilogue.activation, problem.d.format.bytes(1)) {
        (Activation::Identity | Activation::Relu, _) => 0.0,
        (Activation::GeluErf, 2) => 11.0,
        (Activation::GeluErf, _) => 14.0,
        (Activation::GeluTanh, _) => 8.0,
        (Activation::Silu, 2) => 6.0,
        (Activation::Silu, _) => 14.0,
    };
    let bias = if instructions > 0.0 && epilogue.bias.is_some() { cost.bias } else { 0.0 };
    let residual = if epilogue.reads_c() { cost.residual } else { 0.0 };
    let unaligned = if problem.d.align() < 16 { cost.unaligned } else { 0.0 };
    cost.instruction * instructions + bias + residual + unaligned
}
