//! The pipeline that families share: what goes on side by side in a kernel that moves tiles through a ring, in bytes and steps over the
//! numbers of the card. Each family states its own share of a rate, and how well the activities overlap.

use crate::arch::DeviceInfo;
use crate::problem::{Operand, Problem};

/// Times of activities that run side by side, in microseconds; 0 where a family has no such bound.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Activities {
    /// Arithmetic of the busiest multiprocessor, with the epilogues that nothing hides.
    pub products: f64,
    /// Waiting for stages of the ring.
    pub ring: f64,
    /// Loads from L2.
    pub l2: f64,
    /// Device memory.
    pub memory: f64,
}

impl Activities {
    /// The time of all of them together.
    pub fn overlapped(&self, norm: f64) -> f64 {
        overlap_by(norm, &[self.products, self.ring, self.l2, self.memory])
    }

    /// The longest of the times: no norm is below.
    pub fn longest(&self) -> f64 {
        self.products.max(self.ring).max(self.l2).max(self.memory)
    }
}

/// Time of activities that run side by side, by this norm: [`super::overlapped`] is the 4-norm.
pub(crate) fn overlap_by(norm: f64, times: &[f64]) -> f64 {
    // A power by multiplication takes a plan a tenth of the time of a power by logarithm.
    let is_whole = norm.fract() == 0.0 && norm <= 16.0;
    let power = |time: &f64| if is_whole { time.powi(norm as i32) } else { time.powf(norm) };
    times.iter().filter(|time| **time > 0.0).map(power).sum::<f64>().powf(1.0 / norm)
}

/// Time in which a ring of `stages` delivers `steps` stages of K one after the other: a stage is requested anew when it is free, and
/// arrives after `latency` times the card's latency.
pub(crate) fn ring_us(steps: f64, stages: f64, latency: f64, device: &DeviceInfo) -> f64 {
    steps * (latency * device.model.latency_us) / stages
}

/// Time in which L2 gives `bytes` to all multiprocessors, at this share of what the multiprocessors can take.
pub(crate) fn l2_us(bytes: f64, share: f64, device: &DeviceInfo) -> f64 {
    bytes / (share * device.model.l2_gbps_per_sm() * f64::from(device.sm_count) * 1e3)
}

/// The factor of loads by where lines of A and B start: at multiples of 64 bytes 1, at odd multiples of 32 and of 16 bytes `odd`; the least aligned line of
/// both counts. TMA asks L2 for more sectors of such lines than they have: `sm90_wave` takes 1.03, 1.09 and 1.55 times its estimate for whole lines, the
/// median of 50, 227 and 357 measurements (H100, 2026-11-28).
pub(crate) fn odd_lines(problem: &Problem, odd: [f64; 2]) -> f64 {
    let bytes = |operand: &Operand| {
        let line = operand.row_stride.max(operand.col_stride).unsigned_abs() * operand.format.bits() as u64 / 8;
        line.trailing_zeros()
    };
    [1.0, odd[0], odd[1]][6usize.saturating_sub(bytes(&problem.a).min(bytes(&problem.b)) as usize).min(2)]
}

/// Whether all lines of A and B start at multiples of 64 bytes.
pub(crate) fn has_whole_lines(problem: &Problem) -> bool {
    odd_lines(problem, [2.0; 2]) == 1.0
}

/// Time in which L2 gives `bytes` to one multiprocessor.
pub(crate) fn l2_us_of_one(bytes: f64, share: f64, device: &DeviceInfo) -> f64 {
    bytes / (share * device.model.l2_gbps_per_sm() * 1e3)
}

/// Time in which device memory moves `bytes`, at this share of its rate.
pub(crate) fn stream_us(bytes: f64, share: f64, device: &DeviceInfo) -> f64 {
    bytes / (share * device.model.memory_gbps * 1e3)
}

/// Time of the smallest traffic of the problem: every operand once.
pub(crate) fn memory_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    stream_us(problem.bytes(), 1.0, device)
}

/// The share of the blocks of the next launch that find room beside `blocks` blocks of this launch, where `slots` run at the same time.
/// Such blocks start while this launch runs (programmatic dependent launch).
pub(crate) fn room(blocks: f64, slots: f64) -> f64 {
    ((slots - blocks) / blocks.max(1.0)).clamp(0.0, 1.0)
}

/// f32 operations of all multiprocessors in a microsecond at the full clock.
pub(crate) fn f32_per_us(device: &DeviceInfo) -> f64 {
    device.model.f32_per_clock * device.model.clock_ghz * 1e3 * f64::from(device.sm_count)
}

/// f64 operations of all multiprocessors in a microsecond at the full clock.
pub(crate) fn f64_per_us(device: &DeviceInfo) -> f64 {
    device.model.f64_per_clock * device.model.clock_ghz * 1e3 * f64::from(device.sm_count)
}
