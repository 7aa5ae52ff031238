//! Launches as a graph: the bits of the launches one by one, and no allocation.

use crate::device::most_used;
use candle::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle::{bail, Device, Error, Result};

/// A graph of `run`, captured in each mode after `reset` and launched twice, leaves the `state` of two calls; and a call allocates nothing.
pub fn as_launched(
    device: &Device,
    what: &str,
    reset: impl Fn() -> Result<()>,
    run: impl Fn() -> Result<()>,
    state: impl Fn() -> Result<Vec<f64>>,
) -> Result<()> {
    const FLAGS: CUgraphInstantiate_flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let Device::Cuda(cuda) = device else { bail!("a graph is for a GPU") };
    let stream = cuda.cuda_stream();
    reset()?;
    device.synchronize()?;
    most_used()?;
    let before = most_used()?;
    run()?;
    run()?;
    device.synchronize()?;
    if most_used()? != before {
        bail!("{what}: the launches allocate");
    }
    let expected = state()?;
    for mode in [
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ] {
        reset()?;
        device.synchronize()?;
        stream.begin_capture(mode).map_err(Error::wrap)?;
        let launched = run();
        let graph = stream.end_capture(FLAGS).map_err(Error::wrap);
        launched?;
        let Some(graph) = graph? else { bail!("{what}: nothing was captured") };
        graph.launch().map_err(Error::wrap)?;
        graph.launch().map_err(Error::wrap)?;
        device.synchronize()?;
        let got = state()?;
        let other = got.iter().zip(&expected).filter(|(x, y)| x != y).count();
        if got.len() != expected.len() || other > 0 {
            bail!("{what}, {mode:?}: {other} of {} numbers differ", got.len());
        }
    }
    Ok(())
}
