//! The op on a GPU: storage and layouts to pointers, and the launch.

pub(super) mod gated;
#[cfg(feature = "experts")]
pub(super) mod grouped;
pub(super) mod into;
#[cfg(feature = "layers")]
pub(super) mod layers;
#[cfg(feature = "nccl")]
pub(super) mod nccl;
mod places;
pub(super) mod quantized;

use super::lowering::{format_of, product_shape, readable, GemmOp, Third};
use super::tensors::Rows;
use crate::dispatch::{Dispatcher, Policy};
use crate::error::Error;
use crate::launch::{self, Pointers, Queue};
use crate::layer::GateFunction;
use crate::problem::{power_of_two_in, Activation, Format, Gate, Problem};
use ::candle::backend::BackendStorage;
use ::candle::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr};
use ::candle::cuda_backend::{CudaDType, WrapErr};
use ::candle::{CudaDevice, CudaStorage, DType, DeviceLocation, Layout, Result, Storage};
use half::{bf16, f16};
use std::ffi::c_void;

impl From<Error> for ::candle::Error {
    fn from(error: Error) -> Self {
        ::candle::Error::wrap(error)
    }
}

fn ordinal(device: &CudaDevice) -> usize {
    use ::candle::backend::BackendDevice;
    match device.location() {
        DeviceLocation::Cuda { gpu_id } => gpu_id,
        _ => 0,
    }
}

/// Allocates the workspace of the device's stream, and returns the workspace's size in bytes.
pub(super) fn prepare(device: &CudaDevice) -> Result<u64> {
    let stream = device.cuda_stream();
    stream.context().bind_to_thread().w()?;
    // SAFETY: the stream is the device's own, and the device is the thread's current one.
    Ok(unsafe { launch::prepare(stream.cu_stream().cast())? })
}

/// The bytes that the device can allocate: those of the system, and those that the device's memory pool keeps for the next allocation.
pub(super) fn free_bytes(device: &CudaDevice) -> Result<usize> {
    use ::candle::cuda_backend::cudarc::driver::result::{device as of, mem_get_info, mem_pool};
    use ::candle::cuda_backend::cudarc::driver::sys::CUmemPool_attribute as Attribute;
    device.cuda_stream().context().bind_to_thread().w()?;
    let (free, _) = mem_get_info().w()?;
    let (mut reserved, mut used) = (0u64, 0u64);
    let pool = of::get(ordinal(device) as i32).and_then(|ordinal| {
        // SAFETY: the attributes are numbers of 64 bits, and the pool is the device's own.
        unsafe {
            let pool = of::get_default_mem_pool(ordinal)?;
            mem_pool::get_attribute(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, (&raw mut reserved).cast())?;
            mem_pool::get_attribute(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT, (&raw mut used).cast())
        }
    });
    Ok(free + if pool.is_ok() { reserved.saturating_sub(used) as usize } else { 0 })
}

/// The multiprocessors of a device.
#[cfg(feature = "layers")]
pub(super) fn multiprocessors(device: &CudaDevice) -> Result<u32> {
    Ok(launch::dispatcher(ordinal(device))?.device().sm_count)
}

/// Whether there are kernels for products of 8 bits by 8 bits with factors, but for the reference.
#[cfg(all(feature = "narrow", feature = "layers"))]
pub(super) fn has_products_of_bytes(device: &CudaDevice) -> Result<bool> {
    Ok(launch::dispatcher(ordinal(device))?.device().capability / 10 == 9)
}

/// Where products of a device run: candle's stream on this thread, which the call makes current, and the dispatcher with its policy.
struct Launcher {
    queue: Queue,
    dispatcher: &'static Dispatcher,
    policy: Policy,
}

impl Launcher {
    fn on(device: &CudaDevice, stream: &CudaStream) -> Result<Self> {
        let cublas = device.cublas_handle();
        let queue = Queue::new(stream.cu_stream().cast(), (*cublas.handle()).cast());
        stream.context().bind_to_thread().w()?;
        #[cfg(feature = "interpose")]
        crate::trace::start_if_asked();
        Ok(Self { queue, dispatcher: launch::dispatcher(ordinal(device))?, policy: launch::policy()? })
    }

    /// The same for this op, which may ask for rows that do not depend on one another.
    fn of(device: &CudaDevice, op: &GemmOp) -> Result<Self> {
        let launcher = Self::on(device, &device.cuda_stream())?;
        let invariant = launcher.policy.batch_invariant || op.batch_invariant;
        Ok(Self { policy: launcher.policy.with_batch_invariance(invariant), ..launcher })
    }

    /// # Safety
    /// As for [`launch::launch`].
    unsafe fn launch(&self, problem: &Problem, pointers: Pointers) -> Result<()> {
        // SAFETY: the caller's promises; stream and handle are the device's own.
        Ok(self
            .dispatcher
            .with_plan(problem, self.policy, |plan| unsafe { launch::launch(plan, pointers, self.queue) })??)
    }
}

type Input<'a> = (&'a CudaStorage, &'a Layout);

/// Computes `op`; `third` is its bias or residual.
pub(super) fn forward(op: &GemmOp, operands: [Input; 2], third: Option<Input>) -> Result<CudaStorage> {
    let format = format_of(operands[0].0.dtype())?;
    let out = op.out.map_or(Ok(format), format_of)?;
    match (format, out) {
        (Format::F16, Format::F32) => forward_as::<f16, f32>(op, format, operands, third),
        (Format::BF16, Format::F32) => forward_as::<bf16, f32>(op, format, operands, third),
        (Format::F16, _) => forward_as::<f16, f16>(op, format, operands, third),
        (Format::BF16, _) => forward_as::<bf16, bf16>(op, format, operands, third),
        (Format::F32, _) => forward_as::<f32, f32>(op, format, operands, third),
        _ => forward_as::<f64, f64>(op, format, operands, third),
    }
}

/// `T`: the operands, `Out`: bias, residual and result.
fn forward_as<T: CudaDType + DeviceRepr, Out: CudaDType + DeviceRepr>(
    op: &GemmOp,
    format: Format,
    operands: [Input; 2],
    third: Option<Input>,
) -> Result<CudaStorage> {
    let [lhs, rhs] = readable(operands)?;
    let (lhs, rhs) = (lhs.get(), rhs.get());
    let device = lhs.0.device().clone();
    let stream = device.cuda_stream();
    // SAFETY: the kernel writes every element before anything reads it.
    let mut out: CudaSlice<Out> = unsafe { device.alloc(product_shape(lhs.1.dims(), rhs.1.dims())?.elem_count())? };
    let beside = op.residual.as_ref().map(|residual| residual.storage_and_layout());
    let beside = match &beside {
        Some((storage, layout)) => match &**storage {
            Storage::Cuda(storage) => Some((storage, *layout)),
            _ => ::candle::bail!("gemm: the residual is on another device than the operands"),
        },
        None => None,
    };
    let (bias, residual) = if op.third == Some(Third::Bias) { (third, beside) } else { (None, third) };
    {
        // Until the launch is made, the guards order this stream behind all other users of the memory.
        let (a, _a_guard) = typed::<T>(lhs)?.device_ptr(&stream);
        let (b, _b_guard) = typed::<T>(rhs)?.device_ptr(&stream);
        let bias_slice = bias.map(contiguous::<Out>).transpose()?;
        let residual_slice = residual.map(contiguous::<Out>).transpose()?;
        let bias_ptr = bias_slice.map(|slice| slice.device_ptr(&stream));
        let residual_ptr = residual_slice.map(|slice| slice.device_ptr(&stream));
        let (d, _d_guard) = out.device_ptr_mut(&stream);

        fn element<T>(base: u64, layout: &Layout) -> u64 {
            base + (layout.start_offset() * size_of::<T>()) as u64
        }
        let (a, b) = (element::<T>(a, lhs.1), element::<T>(b, rhs.1));
        let bias = bias_ptr.as_ref().zip(bias).map_or(0, |((base, _), (_, layout))| element::<Out>(*base, layout));
        let c = residual_ptr.as_ref().zip(residual).map_or(0, |((base, _), (_, layout))| element::<Out>(*base, layout));

        let align = [a, b, c, d].map(power_of_two_in);
        let problem = op.problem(format, lhs.1, rhs.1, Some(align))?;
        let pointers = Pointers { c: c as _, bias: bias as _, ..Pointers::new(a as _, b as _, d as _) };
        let launcher = Launcher::of(&device, op)?;
        // SAFETY: candle's layouts stay inside their storage, the guards above keep the storage alive, and D is freshly allocated.
        unsafe { launcher.launch_with_epilogue(&problem, pointers, false)? };
    }
    Ok(CudaStorage::wrap_cuda_slice(out, device))
}

/// Gates contiguous rows, in any type, by elementwise kernels.
pub(super) fn gate(device: &CudaDevice, x: Rows, gate: Gate, function: GateFunction, out: Rows) -> Result<()> {
    let format = format_of(x.tensor.dtype())?;
    let activation = function.activation().map_or((Activation::Relu, true), |activation| (activation, false));
    let tensors = [places::Use::Read(Some(x.tensor)), places::Use::Write(Some(out.tensor))];
    places::with(device, tensors, |[x_at, out_at], stream| {
        // SAFETY: `with` holds both tensors, whose rows are dense.
        unsafe { launch::gate(format, [x.rows, x.columns], gate, activation, x_at, out_at, stream) }
    })
}

/// The derivative of `activation` at each number of a contiguous `x` in f32 or f64.
pub(super) fn slope(activation: Activation, x: Input) -> Result<CudaStorage> {
    // SAFETY: as `each_number` promises.
    let launch = |format, count, x, d, stream| unsafe { launch::slope(activation, format, count, x, d, stream) };
    match format_of(x.0.dtype())? {
        Format::F32 => each_number::<f32, f32>(x, |count, x, d, stream| launch(Format::F32, count, x, d, stream)),
        _ => each_number::<f64, f64>(x, |count, x, d, stream| launch(Format::F64, count, x, d, stream)),
    }
}

/// `activation` of each number of a contiguous `x` in f32 or f64, in `out`.
pub(super) fn activated(activation: Activation, out: DType, x: Input) -> Result<CudaStorage> {
    let formats = [format_of(x.0.dtype())?, format_of(out)?];
    // SAFETY: as `each_number` promises.
    let launch = |count, x, d, stream| unsafe { launch::activate(activation, formats, count, x, d, stream) };
    match formats[1] {
        Format::F16 => each_number::<f32, f16>(x, launch),
        Format::BF16 => each_number::<f32, bf16>(x, launch),
        Format::F32 => each_number::<f32, f32>(x, launch),
        _ => each_number::<f64, f64>(x, launch),
    }
}

/// What `launch` makes of each number of a contiguous `x`. Its arguments are the count of numbers, memory of the device with as many for `x` and for the
/// result, and the device's stream.
fn each_number<T: CudaDType + DeviceRepr, Out: CudaDType + DeviceRepr>(
    x: Input,
    launch: impl FnOnce(usize, *const c_void, *mut c_void, *mut c_void) -> crate::error::Result<()>,
) -> Result<CudaStorage> {
    let device = x.0.device().clone();
    let stream = device.cuda_stream();
    let count = x.1.shape().elem_count();
    // SAFETY: the kernel writes every element before anything reads it.
    let mut out: CudaSlice<Out> = unsafe { device.alloc(count)? };
    {
        // The guards keep both alive until the launch is made.
        let (base, _x_guard) = contiguous::<T>(x)?.device_ptr(&stream);
        let (d, _d_guard) = out.device_ptr_mut(&stream);
        let x = base + (x.1.start_offset() * size_of::<T>()) as u64;
        stream.context().bind_to_thread().w()?;
        launch(count, x as _, d as _, stream.cu_stream().cast())?;
    }
    Ok(CudaStorage::wrap_cuda_slice(out, device))
}

fn typed<'a, T: CudaDType>((storage, _): Input<'a>) -> Result<&'a CudaSlice<T>> {
    storage.as_cuda_slice::<T>()
}

fn contiguous<'a, T: CudaDType>(input: Input<'a>) -> Result<&'a CudaSlice<T>> {
    if !input.1.is_contiguous() {
        ::candle::bail!("gemm: an input that must be contiguous is not; call `.contiguous()?` on bias and residual");
    }
    typed(input)
}
