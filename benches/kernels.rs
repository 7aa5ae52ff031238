//! Time of every kernel of the build on some shapes, beside cuBLAS called as candle calls it.
//!
//! One process, the same tensors for all, N(0, 1) data, operands rotated over copies of three times the L2 cache, CUDA-graph
//! replay, arms taken in turns, median. `kernels [--json FILE] [--only SUBSTRING] [--rounds N]`
//!
//! Near its peak an H100 is limited by power: a pause after each sample keeps the card near the same temperature for all.

use anyhow::{ensure, Context, Result};
use candle::cuda_backend::cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle::cuda_backend::cudarc::driver::{CudaGraph, CudaSlice, DevicePtr, DeviceRepr};
use candle::cuda_backend::CudaDType;
use candle::CudaDevice;
use candle_tilegemm::dispatch::{Dispatcher, Plan, Policy};
use candle_tilegemm::kernel::{Family, KERNELS};
use candle_tilegemm::launch::{self, Pointers, Queue};
use candle_tilegemm::{cost, DType, Layout, Problem};
use clap::Parser;
use half::{bf16, f16};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

#[derive(Parser)]
struct Args {
    /// Also write the results to this file.
    #[arg(long)]
    json: Option<std::path::PathBuf>,
    /// Only kernels whose name contains this; cuBLAS always runs.
    #[arg(long, default_value = "")]
    only: String,
    /// Samples of each kernel and shape.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Prefill, ragged, decode and f32; from the public suite.
const SHAPES: [(usize, usize, usize, usize, Layout, DType); 16] = [
    (4096, 4096, 4096, 1, Layout::NT, DType::BF16),
    (4096, 4096, 4096, 1, Layout::NN, DType::BF16),
    (8192, 8192, 8192, 1, Layout::NT, DType::BF16),
    (2048, 28672, 4096, 1, Layout::NT, DType::BF16),
    (2048, 4096, 14336, 1, Layout::NT, DType::BF16),
    (777, 6144, 4096, 1, Layout::NT, DType::BF16),
    (256, 4096, 14336, 1, Layout::NT, DType::BF16),
    (128, 4096, 4096, 1, Layout::NT, DType::BF16),
    (16, 6144, 4096, 1, Layout::NT, DType::BF16),
    (1, 4096, 4096, 1, Layout::NT, DType::BF16),
    (4096, 4096, 4096, 1, Layout::NT, DType::F16),
    (512, 512, 64, 384, Layout::NT, DType::F16),
    (4096, 4096, 4096, 1, Layout::NT, DType::F32),
    (2048, 1536, 384, 1, Layout::NT, DType::F32),
    (16, 4096, 4096, 1, Layout::NT, DType::F32),
    (2048, 2048, 128, 32, Layout::NT, DType::F32),
];

#[derive(Serialize)]
struct Record {
    gpu: String,
    rounds: usize,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    m: usize,
    n: usize,
    k: usize,
    batch: usize,
    layout: Layout,
    dtype: DType,
    roof_us: f64,
    chosen: &'static str,
    arms: Vec<Arm>,
}

#[derive(Serialize)]
struct Arm {
    kernel: &'static str,
    us: f64,
    us_p10: f64,
    us_p90: f64,
    estimate_us: f64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let info = match launch::device_info(0) {
        Ok(info) => info,
        Err(error) => {
            eprintln!("skipped: {error}");
            std::process::exit(if std::env::var("TILEGEMM_REQUIRE_GPU").is_ok_and(|v| v == "1") { 1 } else { 0 });
        }
    };
    let device = CudaDevice::new_with_stream(0)?;
    // Events of candle's allocator would end up in the captured graphs.
    // SAFETY: one stream only.
    unsafe { device.disable_event_tracking() };
    let dispatcher = Dispatcher::new(info.clone());
    let mut rows = Vec::new();
    for (m, n, k, batch, layout, dtype) in SHAPES {
        let problem = Problem::dense(m, n, k, batch, layout, dtype);
        let bench = Bench { device: &device, dispatcher: &dispatcher, problem, args: &args };
        let arms = match dtype {
            DType::F16 => bench.run::<f16>()?,
            DType::BF16 => bench.run::<bf16>()?,
            DType::F32 => bench.run::<f32>()?,
            DType::F64 => bench.run::<f64>()?,
        };
        let roof_us = cost::roofline_us(&problem, &info);
        let chosen = dispatcher.plan(&problem, Policy::default())?.kernel.name;
        print_row(&problem, roof_us, chosen, &arms);
        rows.push(Row { m, n, k, batch, layout, dtype, roof_us, chosen, arms });
    }
    if let Some(path) = &args.json {
        let record = Record { gpu: info.name, rounds: args.rounds, rows };
        std::fs::write(path, serde_json::to_string_pretty(&record)?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

struct Bench<'a> {
    device: &'a CudaDevice,
    dispatcher: &'a Dispatcher,
    problem: Problem,
    args: &'a Args,
}

/// One kernel, captured as a graph of several launches over all copies of the operands.
struct Captured {
    plan: Arc<Plan>,
    graph: CudaGraph,
    launches: usize,
    samples_us: Vec<f64>,
}

impl Bench<'_> {
    fn run<T: CudaDType + DeviceRepr + candle::WithDType>(&self) -> Result<Vec<Arm>> {
        let elements = |rows: usize, cols: usize| rows * cols * self.problem.batch_count();
        let Problem { m, n, k, .. } = self.problem;
        let bytes = (elements(m, k) + elements(k, n)) * self.problem.dtype.bytes();
        let copies = (3 * self.dispatcher.device().l2_bytes as usize / bytes + 1).clamp(2, 64);
        let normal = |count: usize| -> Result<CudaSlice<T>> {
            let dtype = T::DTYPE;
            let values = candle::Tensor::randn(0f32, 1f32, count, &candle::Device::Cuda(self.device.clone()))?
                .to_dtype(dtype)?;
            let (storage, _) = values.storage_and_layout();
            let candle::Storage::Cuda(storage) = &*storage else { unreachable!("made on the device") };
            Ok(storage.as_cuda_slice::<T>()?.try_clone()?)
        };
        let buffers = |count: usize| (0..copies).map(|_| normal(count)).collect::<Result<Vec<_>>>();
        let (a, b, d) = (buffers(elements(m, k))?, buffers(elements(k, n))?, buffers(elements(m, n))?);
        let stream = self.device.cuda_stream();
        let address = |slice: &CudaSlice<T>| slice.device_ptr(&stream).0;
        let pointers: Vec<Pointers> = (0..copies)
            .map(|i| Pointers {
                a: address(&a[i]) as _,
                b: address(&b[i]) as _,
                c: std::ptr::null(),
                bias: std::ptr::null(),
                d: address(&d[i]) as _,
            })
            .collect();

        let mut arms = Vec::new();
        for kernel in KERNELS {
            let wanted = kernel.family == Family::Cublas || kernel.name.contains(&self.args.only);
            if kernel.family == Family::Reference || !wanted {
                continue;
            }
            if let Ok(plan) = self.dispatcher.plan(&self.problem, Policy::force(kernel.name)?) {
                arms.push(self.capture(plan, &pointers)?);
            }
        }
        for _ in 0..self.args.rounds {
            for arm in &mut arms {
                arm.samples_us.push(self.sample(arm)?);
            }
        }
        let mut arms: Vec<Arm> = arms.into_iter().map(Captured::finish).collect();
        arms.sort_by(|x, y| x.us.total_cmp(&y.us));
        Ok(arms)
    }

    fn capture(&self, plan: Arc<Plan>, pointers: &[Pointers]) -> Result<Captured> {
        let stream = self.device.cuda_stream();
        let handle = self.device.cublas_handle();
        let queue = Queue { stream: stream.cu_stream().cast(), cublas: (*handle.handle()).cast() };
        // Long enough to be timed, short enough not to heat the card.
        let launches = ((400.0 / plan.estimate_us) as usize).clamp(2, 100);
        let launch_all = || -> Result<()> {
            for i in 0..launches {
                // SAFETY: the buffers have the problem's sizes and outlive the graph.
                unsafe { launch::launch(&plan, pointers[i % pointers.len()], queue)? };
            }
            Ok(())
        };
        launch_all()?; // loads the module, which a capture may not do
        stream.synchronize()?;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let launched = launch_all();
        let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?;
        launched?;
        let graph = graph.context("nothing was captured")?;
        Ok(Captured { plan, graph, launches, samples_us: Vec::new() })
    }

    fn sample(&self, arm: &Captured) -> Result<f64> {
        let stream = self.device.cuda_stream();
        arm.graph.launch()?; // warm clocks, and the same state before every arm
        let start = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        arm.graph.launch()?;
        let end = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        stream.synchronize()?;
        let ms = f64::from(start.elapsed_ms(&end)?);
        ensure!(ms > 0.0, "{} took no time", arm.plan.kernel.name);
        std::thread::sleep(Duration::from_secs_f64((2.0 * ms / 1e3).min(0.05)));
        Ok(ms * 1e3 / arm.launches as f64)
    }
}

impl Captured {
    fn finish(mut self) -> Arm {
        self.samples_us.sort_by(f64::total_cmp);
        let at = |share: f64| self.samples_us[((self.samples_us.len() - 1) as f64 * share).round() as usize];
        let (kernel, estimate_us) = (self.plan.kernel.name, self.plan.estimate_us);
        Arm { kernel, us: at(0.5), us_p10: at(0.1), us_p90: at(0.9), estimate_us }
    }
}

fn print_row(problem: &Problem, roof_us: f64, chosen: &str, arms: &[Arm]) {
    println!("\n{problem}   roofline {roof_us:.1} us");
    let cublas = arms.iter().find(|arm| arm.kernel.starts_with("cublas")).map(|arm| arm.us);
    for arm in arms {
        let tflops = problem.flops() / arm.us / 1e6;
        let ratio = cublas.map_or("-".into(), |us| format!("{:.3}", us / arm.us));
        let mark = if arm.kernel == chosen { "->" } else { "  " };
        println!(
            "{mark} {:<52} {:>9.1} us {tflops:>7.1} TFLOP/s  cuBLAS/this {ratio:>6}  estimated {:>8.1}  p10-p90 {:.1}-{:.1}",
            arm.kernel, arm.us, arm.estimate_us, arm.us_p10, arm.us_p90
        );
    }
}
