//! Timing of kernels: replays of a CUDA graph, in turns with other kernels, with a pause after each.
//!
//! Near its peak an H100 is limited by power: the clock depends on the load of the last milliseconds. So every sample
//! is the second of two replays, which gives the sample a predecessor of the same kind. A pause follows each sample, as
//! a multiple of the sample's length, and keeps the card below its power limit. Warm-up runs with the same pauses, so
//! that samples begin in the steady state.

use super::samples::Samples;
use crate::Result;
use candle::cuda_backend::cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle::cuda_backend::cudarc::driver::CudaGraph;
use candle::CudaDevice;
use candle_tilegemm::launch::Queue;
use std::time::{Duration, Instant};

/// The target length of a replay: long enough to be timed, short enough not to heat the card.
const SAMPLE_US: f64 = 400.0;
/// Longest pause.
const MOST_PAUSE: Duration = Duration::from_millis(50);

/// Times kernels on one stream.
pub struct Timer {
    device: CudaDevice,
    /// Pause after a sample, as a multiple of its length.
    pub pause: f64,
}

/// Several launches, captured as a graph, or made one after the other where no graph can hold them.
pub struct Captured {
    work: Work,
    launches: usize,
}

enum Work {
    Graph(CudaGraph),
    /// A call, for any copy of the operands.
    Calls(Box<dyn Fn(usize) -> Result>),
}

impl Timer {
    /// `device` must have a stream of its own (`CudaDevice::new_with_stream`) and no event tracking.
    pub fn new(device: CudaDevice, pause: f64) -> Self {
        Self { device, pause }
    }

    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// The stream and handle of launches.
    pub fn queue(&self) -> Queue {
        let stream = self.device.cuda_stream();
        let handle = self.device.cublas_handle();
        Queue::new(stream.cu_stream().cast(), (*handle.handle()).cast())
    }

    pub fn synchronize(&self) -> Result {
        Ok(self.device.cuda_stream().synchronize()?)
    }

    /// Captures launches of `launch(0)`, `launch(1)`, ... The argument counts up and selects the operands' copy. The
    /// number of launches makes a replay about as long as a sample should be, and is a multiple of `copies`.
    pub fn capture(&self, copies: usize, launch: impl Fn(usize) -> Result) -> Result<Captured> {
        let once = self.capture_exactly(copies, &launch)?; // the first launch loads the module, which a capture may not do
        once.replay(self)?;
        let estimate = once.replay(self)?;
        match rounds(estimate, copies) {
            1 => Ok(once),
            rounds => self.capture_exactly(rounds * copies, &launch),
        }
    }

    /// Calls of `call(0)`, `call(1)`, ... in a row, as many as [`Timer::capture`] would capture. The calls wait for the GPU, so that their
    /// time contains the host's work.
    pub fn calls(&self, copies: usize, call: impl Fn(usize) -> Result + 'static) -> Result<Captured> {
        let mut calls = Captured { work: Work::Calls(Box::new(call)), launches: copies };
        calls.replay(self)?;
        let estimate = calls.replay(self)?;
        calls.launches = rounds(estimate, copies) * copies;
        Ok(calls)
    }

    fn capture_exactly(&self, launches: usize, launch: impl Fn(usize) -> Result) -> Result<Captured> {
        let stream = self.device.cuda_stream();
        launch(0)?;
        stream.synchronize()?;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let launched = (0..launches).try_for_each(&launch);
        let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        launched?;
        let graph = graph?.ok_or("nothing was captured")?;
        Ok(Captured { work: Work::Graph(graph), launches })
    }

    /// One sample of an arm, with its pause.
    pub fn sample(&self, arm: &Captured) -> Result<f64> {
        arm.launch()?; // a predecessor of the same kind for every arm
        let us = arm.replay(self)?;
        let length = us * arm.launches as f64 / 1e6;
        std::thread::sleep(Duration::from_secs_f64(length * self.pause).min(MOST_PAUSE));
        Ok(us)
    }

    /// Samples of all arms in turns: `rounds` of each after `warm_up`.
    pub fn interleave(&self, arms: &[&Captured], warm_up: Duration, rounds: usize) -> Result<Vec<Samples>> {
        let start = Instant::now();
        while start.elapsed() < warm_up {
            for arm in arms {
                self.sample(arm)?;
            }
        }
        let mut samples = vec![Samples::default(); arms.len()];
        for _ in 0..rounds {
            for (arm, samples) in arms.iter().zip(&mut samples) {
                samples.push(self.sample(arm)?);
            }
        }
        Ok(samples)
    }
}

/// The number of rounds over all copies that take about as long as a sample should.
fn rounds(us: f64, copies: usize) -> usize {
    (SAMPLE_US / (us * copies as f64)).round().clamp(1.0, 400.0) as usize
}

impl Captured {
    /// Whether the launches are calls, whose time contains the host's work.
    pub fn is_eager(&self) -> bool {
        matches!(self.work, Work::Calls(_))
    }

    /// Launches all.
    fn launch(&self) -> Result {
        match &self.work {
            Work::Graph(graph) => Ok(graph.launch()?),
            Work::Calls(call) => (0..self.launches).try_for_each(call),
        }
    }

    /// Launches all and waits for the end: microseconds of one launch.
    pub fn replay(&self, timer: &Timer) -> Result<f64> {
        let stream = timer.device.cuda_stream();
        let start = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        self.launch()?;
        let end = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        stream.synchronize()?;
        let us = f64::from(start.elapsed_ms(&end)?) * 1e3 / self.launches as f64;
        if us > 0.0 {
            Ok(us)
        } else {
            Err("a replay took no time".into())
        }
    }

    /// Microseconds in kernels of one launch, the median of three replays.
    pub fn time_in_kernels(&self, timer: &Timer) -> Result<f64> {
        let mut samples = Samples::default();
        for _ in 0..3 {
            let us = super::cupti::time_in_kernels(|| self.replay(timer).map(drop))?;
            samples.push(us / self.launches as f64);
        }
        Ok(samples.median())
    }

    /// Launches replays for at least `time` without waiting for the end.
    pub fn launch_for(&self, timer: &Timer, time: Duration) -> Result {
        let us = self.replay(timer)? * self.launches as f64;
        for _ in 0..(time.as_secs_f64() * 1e6 / us).ceil() as usize {
            self.launch()?;
        }
        Ok(())
    }
}
