//! First products of a thread beside a capture in global mode that another thread has begun: the thread has not prepared its stream.

use crate::device::Gpu;
use crate::Test;
use candle::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle::{DType, Device, Tensor};
use candle_tilegemm::{Gemm, GemmExt};
use std::sync::Barrier;

pub fn tests() -> Vec<(String, Test)> {
    vec![("a_capture_survives_first_products_of_other_threads".into(), Box::new(a_capture_survives))]
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What a thread does beside the capture. The operands are made before.
type Step = (&'static str, Box<dyn Fn() -> candle::Result<Tensor> + Send>);

/// Steps on a device of its own, whose stream nothing was launched on.
fn steps() -> Result<Vec<Step>, String> {
    let device = Device::new_cuda_with_stream(0).map_err(text)?;
    let operands = |rows: usize, dtype| -> candle::Result<(Tensor, Tensor)> {
        let x = Tensor::randn(0f32, 1f32, (rows, 512), &device)?.to_dtype(dtype)?;
        Ok((x, Tensor::randn(0f32, 1f32, (384, 512), &device)?.to_dtype(dtype)?.t()?))
    };
    let (x, w) = operands(155, DType::F16).map_err(text)?;
    let (y, v) = operands(633, DType::BF16).map_err(text)?;
    let (z, u) = operands(1, DType::F32).map_err(text)?;
    device.synchronize().map_err(text)?;
    // candle allocates D. The synchronisation has given the pool's memory back, and global mode forbids the driver to get more: so the pool has some again.
    drop(Tensor::zeros(1 << 20, DType::F32, &device).map_err(text)?);
    let (x2, w2, y2, v2) = (x.clone(), w.clone(), y.clone(), v.clone());
    Ok(vec![
        ("155 rows in f16", Box::new(move || x.gemm(&w))),
        ("633 rows in bf16", Box::new(move || y.gemm(&v))),
        ("one row in f32", Box::new(move || Gemm::new().alpha(0.5).forward(&z, &u))),
        ("155 rows in f16 by matmul", Box::new(move || x2.matmul(&w2))),
        ("633 rows in bf16 by matmul", Box::new(move || y2.matmul(&v2))),
    ])
}

fn a_capture_survives(gpu: &Gpu) -> Result<(), String> {
    const FLAGS: CUgraphInstantiate_flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let own = gpu.device.cuda_stream();
    candle_tilegemm::prepare(&Device::Cuda(gpu.device.clone())).map_err(text)?;
    let count = 5;
    let [ready, begun, launched] = [(); 3].map(|()| Barrier::new(2));
    let found = std::thread::scope(|scope| -> Result<Vec<String>, String> {
        let other = scope.spawn(|| -> Result<Vec<String>, String> {
            let made = steps();
            let mut found = Vec::new();
            for i in 0..count {
                ready.wait();
                begun.wait();
                if let Some((name, step)) = made.as_ref().ok().and_then(|steps| steps.get(i)) {
                    if let Err(error) = step() {
                        found.push(format!("{name}: {error}"));
                    }
                }
                launched.wait();
            }
            made.map(|_| found)
        });
        let mut broken = Vec::new();
        for i in 0..count {
            ready.wait();
            let capture = own.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).map_err(text);
            begun.wait();
            launched.wait();
            let ended = capture.and_then(|()| own.end_capture(FLAGS).map_err(text));
            if let Err(error) = ended {
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
