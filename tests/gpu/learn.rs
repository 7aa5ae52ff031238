//! Programs that learn. Each is a process of its own, with a cache of its own: what a process learns changes its later plans.

use crate::device::Gpu;
use crate::Test;
use candle::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle::{DType, Device, Tensor};
use candle_tilegemm::dispatch::{Policy, Reason};
use candle_tilegemm::{launch, Format, GemmExt, Layout, Problem};

const CHILD: &str = "TILEGEMM_TEST_CHILD";

pub fn tests() -> Vec<(String, Test)> {
    vec![
        (
            "learned_products_are_right_and_stay".into(),
            Box::new(|gpu| alone("learned_products_are_right_and_stay", gpu, products)),
        ),
        ("learned_before_a_capture".into(), Box::new(|gpu| alone("learned_before_a_capture", gpu, before_a_capture))),
        ("learned_by_two_threads".into(), Box::new(|gpu| alone("learned_by_two_threads", gpu, two_threads))),
    ]
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Runs `test` in a child of this program.
fn alone(name: &str, gpu: &Gpu, test: fn(&Device) -> Result<(), String>) -> Result<(), String> {
    if std::env::var_os(CHILD).is_some() {
        return test(&Device::Cuda(gpu.device.clone()));
    }
    let cache = std::env::temp_dir().join(format!("tilegemm-{name}-{}", std::process::id()));
    let mut child = std::process::Command::new(std::env::current_exe().map_err(text)?);
    child.args(["--exact", name]).env(CHILD, "1").env("TILEGEMM_LEARN", "on").env("XDG_CACHE_HOME", &cache);
    let child = child.env_remove("TILEGEMM_TUNING").env_remove("TILEGEMM_TEST_TIMES").output().map_err(text)?;
    let written = std::fs::read_dir(cache.join("candle-tilegemm")).map_or(0, Iterator::count);
    let _ = std::fs::remove_dir_all(&cache);
    match child.status.success() {
        true if written == 1 => Ok(()),
        true => Err("the process has left no file of what it learned".into()),
        false => Err(String::from_utf8_lossy(&child.stdout).into_owned()),
    }
}

/// Rows by columns by K in bf16: kernels, splits and cuBLAS are near to each other.
const SHAPES: [[usize; 3]; 4] = [[128, 4096, 1224], [41, 13056, 920], [571, 3584, 8192], [7, 4096, 4096]];

/// Calls of a step of a program.
const CALLS: usize = 20;

/// A product with its result in f32, and one that takes a millisecond.
struct Product {
    shape: [usize; 3],
    a: Tensor,
    b: Tensor,
    expected: Tensor,
    long: Tensor,
}

impl Product {
    fn new(shape: [usize; 3], device: &Device) -> candle::Result<Self> {
        let [m, n, k] = shape;
        let a = Tensor::randn(0f32, 1.0, (m, k), device)?.to_dtype(DType::BF16)?;
        let b = Tensor::randn(0f32, 1.0, (n, k), device)?.to_dtype(DType::BF16)?;
        let expected = a.to_dtype(DType::F32)?.matmul(&b.to_dtype(DType::F32)?.t()?)?;
        let long = Tensor::zeros((8192, 8192), DType::BF16, device)?;
        Ok(Self { shape, a, b, expected, long })
    }

    /// The largest error of the last of a step's calls, in units of the root of K. The GPU is busy until all are in the stream.
    fn error(&self) -> candle::Result<f32> {
        self.long.matmul(&self.long)?;
        let calls = (0..CALLS).map(|_| self.a.gemm(&self.b.t()?)).collect::<candle::Result<Vec<Tensor>>>()?;
        let d = calls[CALLS - 1].to_dtype(DType::F32)?;
        let most = (d - &self.expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
        Ok(most / (self.shape[2] as f32).sqrt())
    }

    fn check(&self) -> Result<(), String> {
        match self.error().map_err(text)? {
            error if error < 0.05 => Ok(()), // half a unit of a number of 4 to 8 roots of K
            error => Err(format!("{:?}: an error of {error}", self.shape)),
        }
    }

    fn problem(&self) -> Problem {
        let [m, n, k] = self.shape;
        Problem::dense(m, n, k, 1, Layout::NT, Format::BF16)
    }

    /// Whether a plan that is made now is made with what was learned.
    fn is_learned(&self) -> Result<bool, String> {
        let plan = || launch::dispatcher(0)?.plan(&self.problem(), Policy::default()).map(|plan| plan.reason);
        // This thread may still have the plan that it had.
        let reason = std::thread::scope(|scope| scope.spawn(plan).join()).map_err(|_| "a thread panicked")?;
        Ok(reason.map_err(text)? == Reason::Learned)
    }
}

fn products(device: &Device) -> Result<(), String> {
    for shape in SHAPES {
        let product = Product::new(shape, device).map_err(text)?;
        let mut calls = 0;
        while !product.is_learned()? {
            product.check()?;
            calls += CALLS;
            if calls > 2000 {
                return Err(format!("{shape:?} is not learned after {calls} calls"));
            }
        }
        product.check()?;
        println!("{shape:?}: {calls} calls");
    }
    launch::save_learned().map_err(text)
}

fn before_a_capture(device: &Device) -> Result<(), String> {
    let product = Product::new(SHAPES[0], device).map_err(text)?;
    let Device::Cuda(cuda) = device else { return Err("no device".into()) };
    candle_tilegemm::prepare(device).map_err(text)?;
    let stream = cuda.cuda_stream();
    // In a capture nothing is learned.
    let capture = || -> Result<_, String> {
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).map_err(text)?;
        let d = product.b.t().and_then(|b| product.a.gemm(&b)).map_err(text)?;
        const FLAGS: CUgraphInstantiate_flags =
            CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(FLAGS).map_err(text)?.ok_or("no graph")?;
        Ok((graph, d))
    };
    for _ in 0..100 {
        let (graph, _d) = capture()?;
        graph.launch().map_err(text)?;
    }
    if product.is_learned()? {
        return Err("it was learned in captures".into());
    }
    // Each call finds an idle GPU.
    let step = || -> candle::Result<()> {
        for _ in 0..CALLS {
            product.a.gemm(&product.b.t()?)?;
            device.synchronize()?;
        }
        Ok(())
    };
    let steps = launch::prepare_learned(step).map_err(text)?;
    if !product.is_learned()? {
        return Err(format!("it is not learned after {steps} steps"));
    }
    let (graph, d) = capture()?;
    graph.launch().map_err(text)?;
    let error = d.to_dtype(DType::F32).and_then(|d| (d - &product.expected)?.abs()?.max_all()?.to_scalar::<f32>());
    match error.map_err(text)? / (SHAPES[0][2] as f32).sqrt() {
        error if error < 0.05 => launch::save_learned().map_err(text),
        error => Err(format!("the graph has an error of {error}")),
    }
}

fn two_threads(device: &Device) -> Result<(), String> {
    let product = Product::new(SHAPES[1], device).map_err(text)?;
    let run = || -> Result<(), String> {
        // A stream of its own.
        let device = Device::new_cuda_with_stream(0).map_err(text)?;
        let own = Product::new(SHAPES[1], &device).map_err(text)?;
        (0..60).try_for_each(|_| own.check())
    };
    std::thread::scope(|scope| -> Result<(), String> {
        let threads = [scope.spawn(run), scope.spawn(run)];
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;
    match product.is_learned()? {
        true => launch::save_learned().map_err(text),
        false => Err("it is not learned".into()),
    }
}
