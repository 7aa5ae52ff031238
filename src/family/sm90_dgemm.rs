//! `csrc/sm90_dgemm`: f64 on tensor cores, TMA.

use crate::config::Config;
use crate::cost::{memory_us, overlapped, roofline_us};
use crate::kernel::{Case, ElementCost, Family, KernelDesc};

/// The launch, with the first tile's loads, microseconds.
const LAUNCH_US: f64 = 5.0;
/// Multiply-adds at the full clock, relative to the rate that a library sustains.
const PEAK: f64 = 66.8 / 64.0;
/// Fraction of the peak that tiles of 128 and of 64 rows reach, and the epilogues' time in steps of K. Fitted to eight
/// products of the shipped kernels: at most 2.1 % off.
const TILES: [(f64, f64); 2] = [(0.965, 68.0), (0.965, 44.0)];

pub(crate) struct Sm90Dgemm;

impl Family for Sm90Dgemm {
    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let [rows, columns, depth] = case.kernel.tile.map(|x| x as usize);
        let (speed, edge) = TILES[usize::from(rows == 64)];
        let sms = device.sm_count as usize;
        let tiles = problem.m.div_ceil(rows) * problem.n.div_ceil(columns) * problem.batch_count();
        let k = problem.k.next_multiple_of(depth) as f64 + edge;
        let peak = device.rates.f64_tflops * PEAK * 1e6 / sms as f64;
        let arithmetic = 2.0 * (tiles.div_ceil(sms) * rows * columns) as f64 * k / (peak * speed);
        let us = LAUNCH_US + overlapped(&[arithmetic, memory_us(problem, device)]);
        us.max(roofline_us(problem, device))
    }

    fn element_cost(&self, _: &KernelDesc) -> ElementCost {
        ElementCost { instruction: 0.009, bias: 0.35, residual: 0.0, unaligned: 0.84 }
    }
}
