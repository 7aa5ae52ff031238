//! A model that can be timed, and its timed runs.

use super::super::footprint::Case;
use candle::{Device, Tensor};
use candle_tilegemm::interpose::{self, Stats};
use std::time::Instant;

/// A loaded model.
pub trait Workload {
    /// Longest sequence, decoded tokens included.
    fn positions(&self) -> usize;
    fn decodes(&self) -> bool;
    /// Peak device memory of a run, besides the weights.
    fn bytes_to_run(&self, case: &Case) -> f64;
    /// Prefill and decode. With `keep`, the run returns the outputs of every step, on the CPU.
    fn run(&self, case: &Case, keep: bool) -> candle::Result<Run>;
    /// The outputs that `run` keeps, computed in f64; `None` for a model without an f64 reference.
    fn reference(&self, case: &Case) -> candle::Result<Option<Vec<Tensor>>>;
}

pub struct Run {
    /// Times of prefill and of all decode steps.
    pub phases: [Timed; 2],
    pub outputs: Vec<Tensor>,
}

#[derive(Default)]
pub struct Timed {
    pub seconds: f64,
    pub gemms: Stats,
}

/// Times `work` from an idle device to an idle device.
pub fn timed<T>(device: &Device, work: impl FnOnce() -> candle::Result<T>) -> candle::Result<(T, Timed)> {
    device.synchronize()?;
    let before = interpose::stats();
    let start = Instant::now();
    let result = work()?;
    device.synchronize()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok((result, Timed { seconds, gemms: interpose::stats().since(&before) }))
}
