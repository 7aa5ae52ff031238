//! Expected times of kernels: pure arithmetic over the row, the problem and the device.
//!
//! Each family estimates its own kernels (`src/family`), in three layers: the numbers of the card
//! ([`ArchModel`](crate::arch::ArchModel)), the models that families share (the roofline, the pipeline of a ring, output tiles in
//! waves, the time of an epilogue), and the family's fitted numbers. Estimates rank kernels; they are not promises.

use crate::arch::DeviceInfo;
use crate::kernel::{ElementCost, Math};
use crate::problem::{Activation, Format, Groups, Operand, Problem};

pub(crate) use pipeline::{memory_us, overlap_by};

pub(crate) mod pipeline;
pub(crate) mod tf32;
pub(crate) mod tiles;

/// Time that the epilogue adds to the bare product.
pub(crate) fn epilogue_us(cost: &ElementCost, problem: &Problem, device: &DeviceInfo) -> f64 {
    let elements = problem.outputs() / f64::from(device.sm_count);
    1e-3 * elements * element_ns(cost, problem)
}

/// The least time that arithmetic and device memory allow, in microseconds. For f32 the fastest arithmetic that the mode admits counts.
pub fn roofline_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    let admitted = [Math::Native, Math::Tf32, Math::Bf16x6].into_iter().filter(|math| problem.f32_mode.admits(*math));
    let times = admitted.map(|math| arithmetic_us(problem, math, device));
    times.fold(f64::INFINITY, f64::min).max(memory_us(problem, device))
}

pub(crate) fn arithmetic_us(problem: &Problem, math: Math, device: &DeviceInfo) -> f64 {
    let operands = problem.a.format.in_products_with(problem.b.format);
    problem.flops() / (peak_tflops(operands, math, device) * 1e6)
}

/// Time of `passes` elementwise kernels over D: the cost of an epilogue that no GEMM kernel fuses.
pub fn elementwise_us(problem: &Problem, passes: usize, device: &DeviceInfo) -> f64 {
    let elements = problem.outputs();
    let bytes = 2.0 * elements * problem.d.format.bits() / 8.0;
    passes as f64 * (device.model.launch_us + pipeline::stream_us(bytes, 1.0, device))
}

/// Time of a kernel that gates a product: it reads the product, and writes half as many numbers.
pub fn gate_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    let bytes = 3.0 * problem.outputs() * problem.d.format.bits() / 8.0;
    device.model.overlapped_launch_us + pipeline::stream_us(bytes, 1.0, device)
}

pub(crate) fn peak_tflops(operands: Format, math: Math, device: &DeviceInfo) -> f64 {
    match (operands, math) {
        (Format::F32, Math::Native) => device.model.f32_tflops,
        (Format::F32, Math::Tf32) => device.model.tf32_tflops,
        (Format::F32, Math::Bf16x6) => device.model.half_tflops / 6.0,
        (Format::F64, _) => device.model.f64_tflops,
        // Data sheets, from Ada on.
        (Format::F8E4M3 | Format::I8, _) => 2.0 * device.model.half_tflops,
        _ => device.model.half_tflops,
    }
}

/// The number of distinct matrices of an operand: a batch stride of 0 repeats one matrix.
pub(crate) fn distinct(problem: &Problem, operand: &Operand) -> f64 {
    let along = problem.batch.into_iter().zip(operand.batch_stride);
    along.map(|(count, stride)| if stride == 0 { 1.0 } else { count as f64 }).product()
}

/// Rows of a group for which a grouped kernel's tiles are counted, of `m` rows in all. Tokens choose their experts by chance: the rows of a group vary by the
/// square root of the expected rows, and half of that is added.
pub(crate) fn rows_of_group(groups: &Groups, m: usize) -> usize {
    let expected = groups.expected_rows(m);
    (expected + 0.5 * expected.sqrt()).ceil().max(1.0) as usize
}

/// Time of activities that run side by side: the longest time, and a little more where another time is nearly as long, since
/// overlap is never perfect. The function is the 4-norm. With the plain maximum, a padded tile and a fitting tile would tie wherever
/// device memory decides.
pub(crate) fn overlapped(times: &[f64]) -> f64 {
    times.iter().map(|time| time.powi(4)).sum::<f64>().sqrt().sqrt()
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
