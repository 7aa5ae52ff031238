//! First products of a thread beside a capture in global mode that another thread has begun: the thread has not prepared its stream.

use crate::device::Gpu;
use crate::Test;
use candle::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle::cuda_backend::cudarc::driver::DevicePtr;
use candle::{CudaDevice, Device};
use candle_tilegemm::dispatch::Policy;
use candle_tilegemm::launch::{self, Pointers};
use candle_tilegemm::{Format, Layout, Problem};
use std::sync::Barrier;

pub fn tests() -> Vec<(String, Test)> {
    vec![("a_capture_survives_first_products_of_other_threads".into(), Box::new(a_capture_survives))]
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What a thread does beside the capture.
type Step = (String, Box<dyn Fn() -> Result<(), String> + Send>);

const STEPS: usize = 6;

/// Products on a stream of its own, which nothing was launched on: by our kernels, and by cuBLAS. Their operands exist: candle's allocations are not ours.
fn steps(info: &Gpu) -> Result<Vec<Step>, String> {
    use candle::backend::BackendDevice;
    let own = Gpu { device: CudaDevice::new_with_stream(0).map_err(text)?, info: info.info.clone() };
    let stream = own.device.cuda_stream();
    let zeros = || stream.alloc_zeros::<f32>(1 << 20).map_err(text);
    let (a, b, d) = (zeros()?, zeros()?, zeros()?);
    own.device.synchronize().map_err(text)?;
    let buffers = std::sync::Arc::new((a, b, d));
    let mut steps: Vec<Step> = Vec::new();
    for (m, format) in [(155, Format::F16), (633, Format::BF16), (1, Format::F32)] {
        let problem = Problem::dense(m, 384, 512, 1, Layout::NT, format);
        let cublas = format!("cublas_{format}_nt");
        for (what, plan) in
            [("chosen", own.plan(Policy::default(), &problem)?), ("cuBLAS", own.plan(cublas.as_str(), &problem)?)]
        {
            let (buffers, stream) = (buffers.clone(), stream.clone());
            // The queue has raw pointers, which this thread alone uses.
            let (plan, handle) = (plan.0, own.device.cublas_handle());
            let launch = move || {
                let queue = launch::Queue::new(stream.cu_stream().cast(), (*handle.handle()).cast());
                let [a, b, d] = [&buffers.0, &buffers.1, &buffers.2].map(|slice| slice.device_ptr(&stream).0);
                // SAFETY: the buffers hold what the problem spans, and live until the thread has waited for the stream.
                unsafe { launch::launch(&plan, Pointers::new(a as _, b as _, d as _), queue) }.map_err(text)
            };
            steps.push((format!("{m} rows in {format}, {what}"), Box::new(launch)));
        }
    }
    Ok(steps)
}

fn a_capture_survives(gpu: &Gpu) -> Result<(), String> {
    const FLAGS: CUgraphInstantiate_flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let own = gpu.device.cuda_stream();
    candle_tilegemm::prepare(&Device::Cuda(gpu.device.clone())).map_err(text)?;
    let [ready, begun, launched, ended] = [(); 4].map(|()| Barrier::new(2));
    let found = std::thread::scope(|scope| -> Result<Vec<String>, String> {
        let other = scope.spawn(|| -> Result<Vec<String>, String> {
            let made = steps(gpu);
            let mut found = Vec::new();
            for i in 0..STEPS {
                ready.wait();
                begun.wait();
                if let Some((name, step)) = made.as_ref().ok().and_then(|steps| steps.get(i)) {
                    if let Err(error) = step() {
                        found.push(format!("{name}: {error}"));
                    }
                }
                launched.wait();
                // What the thread drops, such as its cuBLAS handle, would break the capture.
                ended.wait();
            }
            let count = made?.len();
            match count {
                STEPS => Ok(found),
                _ => Err(format!("{count} steps")),
            }
        });
        let mut broken = Vec::new();
        for i in 0..STEPS {
            ready.wait();
            let capture = own.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).map_err(text);
            begun.wait();
            launched.wait();
            let graph = capture.and_then(|()| own.end_capture(FLAGS).map_err(text));
            ended.wait();
            if let Err(error) = graph {
                broken.push(format!("step {i} breaks the capture: {error}"));
            }
        }
        let found = other.join().map_err(|_| "the other thread panicked")??;
        Ok(found.into_iter().chain(broken).collect())
    })?;
    match found.is_empty() {
        true => Ok(()),
        false => Err(found.join("\n")),
    }
}
