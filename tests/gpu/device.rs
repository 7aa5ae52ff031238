//! The GPU under test: memory with guard bands, and launches of named kernels.

use candle::backend::BackendDevice;
use candle::cuda_backend::cudarc::driver::result::{device, mem_pool};
use candle::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUmemPool_attribute, CUstreamCaptureMode};
use candle::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr, DriverError};
use candle::CudaDevice;
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Plan, Planned, Policy};
use candle_tilegemm::kernel::Role;
use candle_tilegemm::launch::{self, Pointers, Queue};
use candle_tilegemm::{Format, Problem};
use half::{bf16, f16};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Clone)]
pub struct Gpu {
    pub device: CudaDevice,
    pub info: DeviceInfo,
}

/// An element type of the kernels.
pub trait Element:
    candle::cuda_backend::CudaDType + candle::cuda_backend::cudarc::driver::DeviceRepr + candle::WithDType
{
    const KERNEL_DTYPE: Format;
    /// Half the distance from 1 to the next value.
    const UNIT_ROUNDOFF: f64;

    /// The number. candle's `to_f64` of fp8 calls itself without end (candle-core 0.11.1).
    fn number(self) -> f64 {
        self.to_f64()
    }
}

impl Element for float8::F8E4M3 {
    const KERNEL_DTYPE: Format = Format::F8E4M3;
    const UNIT_ROUNDOFF: f64 = 1.0 / 16.0;

    fn number(self) -> f64 {
        float8::F8E4M3::to_f64(&self)
    }
}

impl Element for f16 {
    const KERNEL_DTYPE: Format = Format::F16;
    const UNIT_ROUNDOFF: f64 = 1.0 / 2048.0;
}

impl Element for bf16 {
    const KERNEL_DTYPE: Format = Format::BF16;
    const UNIT_ROUNDOFF: f64 = 1.0 / 256.0;
}

impl Element for f32 {
    const KERNEL_DTYPE: Format = Format::F32;
    const UNIT_ROUNDOFF: f64 = 1.0 / 16_777_216.0;
}

impl Element for f64 {
    const KERNEL_DTYPE: Format = Format::F64;
    const UNIT_ROUNDOFF: f64 = 1.0 / 9_007_199_254_740_992.0;
}

/// Calls a function with the element types of a kernel: those of A and B, and of D.
macro_rules! by_types {
    ($types:expr, $call:ident($($argument:expr),*)) => {{
        use candle_tilegemm::Format::{BF16, F16, F32, F64, F8E4M3};
        match ($types.a, $types.d) {
            (F16, F16) => $call::<half::f16, half::f16>($($argument),*),
            (F16, F32) => $call::<half::f16, f32>($($argument),*),
            (BF16, BF16) => $call::<half::bf16, half::bf16>($($argument),*),
            (BF16, F32) => $call::<half::bf16, f32>($($argument),*),
            (F8E4M3, BF16) => $call::<float8::F8E4M3, half::bf16>($($argument),*),
            (F8E4M3, F16) => $call::<float8::F8E4M3, half::f16>($($argument),*),
            (F8E4M3, F32) => $call::<float8::F8E4M3, f32>($($argument),*),
            (F32, F32) => $call::<f32, f32>($($argument),*),
            (F64, F64) => $call::<f64, f64>($($argument),*),
            _ => panic!("there is no test of {}", $types),
        }
    }};
}
pub(crate) use by_types;

/// Which kernel runs a product.
#[derive(Debug, Clone, Copy)]
pub enum Choice<'a> {
    /// The kernel of this name, with a configuration after `@` or without.
    Named(&'a str),
    /// The dispatcher's choice.
    By(Policy),
}

impl<'a> From<&'a str> for Choice<'a> {
    fn from(name: &'a str) -> Self {
        Self::Named(name)
    }
}

impl From<Policy> for Choice<'_> {
    fn from(policy: Policy) -> Self {
        Self::By(policy)
    }
}

/// Host copies of the operands of one product. `d` is the memory before the launch: guard bands and NaN, or C.
#[derive(Clone)]
pub struct Operands<T, Out = T> {
    pub a: Vec<T>,
    pub b: Vec<T>,
    pub c: Vec<Out>,
    pub bias: Vec<Out>,
    pub d: Vec<Out>,
    /// Elements before the first of each of A, B, C and D; what makes their addresses unaligned.
    pub offsets: [usize; 4],
}

impl Gpu {
    /// The device of this ordinal, with a cuBLAS handle that no other has.
    pub fn open(ordinal: usize) -> Result<Self, String> {
        let info = launch::device_info(ordinal).map_err(|e| e.to_string())?;
        let device = CudaDevice::new(ordinal).map_err(|e| e.to_string())?;
        keep_memory(ordinal).map_err(|e| e.to_string())?;
        Ok(Self { device, info })
    }

    /// The plan of a product, and where this thread launches the plan.
    pub fn plan<'a>(&self, choice: impl Into<Choice<'a>>, problem: &Problem) -> Result<(Arc<Planned>, Queue), String> {
        let policy = match choice.into() {
            Choice::Named(name) => Policy::force(name).map_err(|e| e.to_string())?,
            Choice::By(policy) => policy,
        };
        let plan = Dispatcher::new(self.info.clone()).plan(problem, policy).map_err(|e| e.to_string())?;
        Ok((plan, self.queue()?))
    }

    /// Where this thread launches, with the device as the thread's current device.
    pub fn queue(&self) -> Result<Queue, String> {
        let stream = self.device.cuda_stream();
        stream.context().bind_to_thread().map_err(|e| e.to_string())?;
        let handle = self.device.cublas_handle();
        Ok(Queue::new(stream.cu_stream().cast(), (*handle.handle()).cast()))
    }

    /// Held from the launch to the result where the plan runs cuBLAS: tests run products of several threads at once, and a handle has one workspace.
    pub fn alone(&self, plan: &Plan) -> Option<MutexGuard<'static, ()>> {
        static CUBLAS: Mutex<()> = Mutex::new(());
        // A test that panicked has left nothing behind.
        (plan.kernel.role == Role::Vendor).then(|| CUBLAS.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// D after the plan's kernels have run on the operands.
    pub fn run<'a, T: Element, Out: Element>(
        &self,
        choice: impl Into<Choice<'a>>,
        problem: &Problem,
        operands: &Operands<T, Out>,
    ) -> Result<Vec<Out>, String> {
        let (plan, queue) = self.plan(choice, problem)?;
        let _alone = self.alone(&plan);
        // SAFETY: `with_operands` has buffers that hold what the problem spans.
        self.with_operands(problem.epilogue.in_place, operands, |pointers, _| unsafe { launch(&plan, pointers, queue) })
    }

    /// The same from a CUDA graph, after a launch without one whose result is overwritten.
    pub fn run_captured<T: Element>(
        &self,
        kernel: &str,
        problem: &Problem,
        operands: &Operands<T>,
    ) -> Result<Vec<T>, String> {
        let (plan, queue) = self.plan(kernel, problem)?;
        let _alone = self.alone(&plan);
        self.with_operands(problem.epilogue.in_place, operands, |pointers, d| {
            // SAFETY: as in `run`.
            let launch = || unsafe { launch(&plan, pointers, queue) };
            launch()?;
            let stream = self.device.cuda_stream();
            let text = |e: DriverError| e.to_string();
            stream.memcpy_htod(&operands.d, d).map_err(text)?;
            stream.synchronize().map_err(text)?;
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(text)?;
            let launched = launch();
            let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            launched?;
            graph.map_err(text)?.ok_or("nothing was captured")?.launch().map_err(text)
        })
    }

    /// D after `work` has put launches into the device's stream, which get pointers to copies of the operands. In place, C is D.
    pub fn with_operands<T: Element, Out: Element>(
        &self,
        in_place: bool,
        operands: &Operands<T, Out>,
        work: impl FnOnce(Pointers, &mut CudaSlice<Out>) -> Result<(), String>,
    ) -> Result<Vec<Out>, String> {
        let text = |e: candle::Error| e.to_string();
        let upload = |values: &Vec<T>| self.device.clone_htod(values).map_err(text);
        let upload_out = |values: &Vec<Out>| self.device.clone_htod(values).map_err(text);
        let (a, b, c) = (upload(&operands.a)?, upload(&operands.b)?, upload_out(&operands.c)?);
        let (bias, mut d) = (upload_out(&operands.bias)?, upload_out(&operands.d)?);
        let stream = self.device.cuda_stream();
        let at = |slice: &CudaSlice<T>, offset: usize| slice.device_ptr(&stream).0 + (offset * size_of::<T>()) as u64;
        let at_out =
            |slice: &CudaSlice<Out>, offset: usize| slice.device_ptr(&stream).0 + (offset * size_of::<Out>()) as u64;
        let [a_offset, b_offset, c_offset, d_offset] = operands.offsets;
        let c = if in_place { at_out(&d, d_offset) } else { at_out(&c, c_offset) };
        let pointers = Pointers::new(at(&a, a_offset) as _, at(&b, b_offset) as _, at_out(&d, d_offset) as _);
        let pointers = pointers.with_c(c as _).with_bias(at_out(&bias, 0) as _);
        // The buffers live until the copy below has waited for the stream.
        work(pointers, &mut d)?;
        self.device.clone_dtoh(&d).map_err(text)
    }
}

/// Tests allocate and wait all the time: the device's pool keeps what was freed, which it returns to the system at each wait otherwise.
fn keep_memory(ordinal: usize) -> Result<(), DriverError> {
    let mut most = u64::MAX;
    // SAFETY: the attribute is a number of 64 bits, and the pool is the device's own.
    unsafe {
        let pool = device::get_default_mem_pool(device::get(ordinal as i32)?)?;
        let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        mem_pool::set_attribute(pool, threshold, (&raw mut most).cast())
    }
}

/// # Safety
/// As for [`launch::launch`].
unsafe fn launch(plan: &Planned, pointers: Pointers, queue: Queue) -> Result<(), String> {
    // SAFETY: the caller's promise.
    unsafe { launch::launch(plan, pointers, queue) }.map_err(|e| e.to_string())
}

/// The most bytes of the pool that were in use at once since the last call.
pub fn most_used() -> candle::Result<u64> {
    use candle::cuda_backend::cudarc::driver::result::{device as of, mem_pool};
    use candle::cuda_backend::cudarc::driver::sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH as HIGH;
    let (mut bytes, mut none) = (0u64, 0u64);
    let found = of::get(0).and_then(|device| {
        // SAFETY: the attribute is a number of 64 bits, and the pool is the device's own.
        unsafe {
            let pool = of::get_default_mem_pool(device)?;
            mem_pool::get_attribute(pool, HIGH, (&raw mut bytes).cast())?;
            mem_pool::set_attribute(pool, HIGH, (&raw mut none).cast())
        }
    });
    found.map(|()| bytes).map_err(candle::Error::wrap)
}
