//! From a [`Plan`] and device pointers to a running kernel. With `ffi`, `vendor` and `interpose`, the only unsafe code.

use crate::arch::{DeviceInfo, Rates};
use crate::config::Config;
use crate::dispatch::{Dispatcher, Plan};
use crate::error::{Error, Result};
use crate::ffi;
use crate::kernel::{Family, KernelDesc, Math, KERNELS};
use crate::problem::{Activation, BiasAxis, DType, Layout, Operand, Problem};
use crate::settings;
use crate::vendor;
use crate::workspace::cut::{Cut, Piece};
use crate::workspace::streams::Workspace;
use crate::workspace::Lack;
use once_cell::sync::OnceCell;
use std::ffi::{c_void, CStr};
use std::ptr::null_mut;

mod elementwise;
mod modules;
mod own;

pub use elementwise::finish;
#[cfg(feature = "candle")]
pub(crate) use elementwise::slope;

pub use crate::vendor::{VendorCall, VendorLibrary};

/// Device pointers of one product, to the first element of the first matrix of the batch.
#[derive(Debug, Clone, Copy)]
pub struct Pointers {
    /// m x k
    pub a: *const c_void,
    /// k x n
    pub b: *const c_void,
    /// m x n; only read when beta is not 0, and may be null when it is.
    pub c: *const c_void,
    /// One value per row or column; null without a bias.
    pub bias: *const c_void,
    /// m x n
    pub d: *mut c_void,
}

impl Pointers {
    /// Those of a piece of the product.
    fn of_piece(self, piece: &Piece) -> Self {
        let size = piece.problem.dtype.bytes() as i64;
        let at = |pointer: *const c_void, elements: i64| pointer.wrapping_byte_offset((elements * size) as isize);
        let offsets = piece.offsets();
        Self {
            a: at(self.a, offsets.a),
            b: at(self.b, offsets.b),
            c: at(self.c, offsets.c),
            bias: if self.bias.is_null() { self.bias } else { at(self.bias, offsets.bias) },
            d: at(self.d, offsets.d).cast_mut(),
        }
    }
}

/// Where to launch.
#[derive(Debug, Clone, Copy)]
pub struct Queue {
    /// A CUDA stream of the current device; null and the per-thread default stream included.
    pub stream: *mut c_void,
    /// A cuBLAS handle that is set to that stream and in host pointer mode, for plans that chose the vendor library; may be null for
    /// those that cannot ([`crate::dispatch::Policy::own`]). No other thread uses it meanwhile. Its math mode may change for the call,
    /// and is what it was afterwards.
    pub cublas: *mut c_void,
}

/// Launches a plan on the current device, or what runs in its place where the stream lacks the workspace that its kernel needs
/// ([`ready`]). Does not wait, and allocates nothing but that workspace, once.
///
/// # Errors
/// [`Error::Cuda`] when CUDA refuses the launch, [`Error::Refused`] when the kernel does: nothing has run then, or a part of a
/// product that is computed in pieces, which one in place never is. [`Error::Workspace`] when there is none and the plan has nothing
/// in its place.
///
/// # Safety
/// - The pointers are device memory of the current device that the problem's extents and strides stay inside, and that
///   stays allocated until the stream has passed the launch.
/// - They are aligned as the problem says.
/// - D overlaps none of the others, except C where both have the same layout. Where the problem says that C is D
///   ([`Epilogue::in_place`](crate::problem::Epilogue::in_place)), both pointers are the same.
/// - The stream and the handle in `queue` are what they say; the handle is in host pointer mode (`CUBLAS_POINTER_MODE_HOST`), as scale
///   factors lie on the host.
pub unsafe fn launch(plan: &Plan, pointers: Pointers, queue: Queue) -> Result<()> {
    if plan.canonical.problem.is_empty() {
        plan.count();
        return Ok(());
    }
    // SAFETY: the caller's stream is one of the current device.
    let (plan, workspace) = unsafe { resolve(plan, queue.stream)? };
    plan.count();
    let (a, b) = if plan.canonical.swapped { (pointers.b, pointers.a) } else { (pointers.a, pointers.b) };
    let pointers = Pointers { a, b, ..pointers };
    if plan.kernel.family == Family::Cublas {
        // SAFETY: the caller's promises are those of `run`.
        return unsafe { VendorCall::of(&plan.canonical.problem)?.run(pointers, queue.cublas) };
    }
    let problem = &plan.canonical.problem;
    let overlap = overlap()?;
    let args = |problem: &Problem, pointers| ffi::tg_gemm_args {
        config: config(plan.config),
        sm_count: plan.sm_count as i32,
        overlap: overlap.into(),
        stream: queue.stream,
        workspace: workspace.map_or(null_mut(), |workspace| workspace.memory.address as *mut c_void),
        workspace_bytes: workspace.map_or(0, |workspace| workspace.bytes),
        ..arguments(problem, pointers)
    };
    let Some(workspace) = workspace else {
        // SAFETY: the caller vouches for what the arguments point to.
        return unsafe { call(plan, &args(problem, pointers)) };
    };
    let cut = Cut::new(plan.kernel, problem, workspace.bytes).ok_or_else(|| {
        let lack = Lack::Small { need: plan.workspace.least, have: workspace.bytes };
        Error::Workspace { what: plan.kernel.name, lack }
    })?;
    let launch_all = || {
        cut.pieces(problem).try_for_each(|piece| {
            // SAFETY: as above, for a part of each operand.
            unsafe { call(plan, &args(&piece.problem, pointers.of_piece(&piece))) }
        })
    };
    // SAFETY: the caller's stream, and its workspace.
    unsafe { own::in_turn(workspace, queue.stream, launch_all) }
}

/// The plan that [`launch`] runs for `plan` on this stream: `plan` itself, or [`Plan::without_workspace`] where its kernel needs
/// a workspace which the stream has not and cannot get.
///
/// # Errors
/// As for [`launch`].
///
/// # Safety
/// `stream` is one of the current device.
pub unsafe fn ready(plan: &Plan, stream: *mut c_void) -> Result<&Plan> {
    // SAFETY: the caller's promise.
    Ok(unsafe { resolve(plan, stream)? }.0)
}

/// Allocates the workspace of a stream of the current device, unless it has one, makes the device's dispatcher and loads the
/// modules of all kernels that are built for the device: what first launches would do otherwise. After it, no launch on the stream
/// calls a function of CUDA that a capture of any mode, on this thread or another one, forbids. Without it, a product whose first
/// launch on a stream is captured into a CUDA graph runs without a workspace, and the first launch of a kernel invalidates a
/// capture that another thread has begun in global mode. With candle, [`prepare`](crate::prepare) does it.
///
/// Call it for each stream that is captured before its first product: CUDA may have given it the handle of a stream that was
/// destroyed, whose workspace such a capture would take for its own, with work in it that may still be under way.
///
/// Returns the workspace's size; 0 where `TILEGEMM_WORKSPACE=0` switches it off.
///
/// # Errors
/// Those of [`dispatcher`], [`Error::Cuda`] where a module cannot be loaded, and [`Error::Workspace`] with the reason why there can
/// be none.
///
/// # Safety
/// `stream` is one of the current device.
pub unsafe fn prepare(stream: *mut c_void) -> Result<u64> {
    let device = current_device()?;
    modules::load(device, dispatcher(device)?.device().capability)?;
    // SAFETY: the caller's promise.
    let lack = match unsafe { own::workspace(stream, true)? } {
        Ok(workspace) if workspace.is_shared() => Lack::ManyStreams,
        Ok(workspace) => return Ok(workspace.bytes),
        Err(Lack::Off) => return Ok(0),
        Err(lack) => lack,
    };
    Err(Error::Workspace { what: "the stream alone", lack })
}

/// What is to run, and its workspace if it needs one.
unsafe fn resolve(plan: &Plan, stream: *mut c_void) -> Result<(&Plan, Option<&'static Workspace>)> {
    let need = plan.workspace.least;
    if need == 0 {
        return Ok((plan, None));
    }
    // SAFETY: the caller's promise.
    let lack = match unsafe { own::workspace(stream, false)? } {
        Ok(workspace) if workspace.bytes >= need => return Ok((plan, Some(workspace))),
        Ok(workspace) => Lack::Small { need, have: workspace.bytes },
        Err(lack) => lack,
    };
    let kernel = plan.kernel.name;
    let Some(without) = plan.without_workspace() else { return Err(Error::Workspace { what: kernel, lack }) };
    if plan.tell() {
        tracing::warn!(target: "tilegemm::workspace", kernel, instead = without.kernel.name, %lack, "no workspace");
    }
    Ok((without, None))
}

/// Calls a kernel's launch function.
///
/// # Safety
/// The pointers of `args` are as [`launch`] has them.
unsafe fn call(plan: &Plan, args: &ffi::tg_gemm_args) -> Result<()> {
    let kernel = linked(plan.kernel)?;
    let function = kernel.0.launch.ok_or_else(|| mismatch(plan.kernel, "it has no launch function".into()))?;
    // SAFETY: `function` is a launch function of tilegemm.h, `args` lives until it returns, and the caller vouches for what
    // it points to.
    match unsafe { function(args) } {
        ffi::tg_status::TG_OK => Ok(()),
        ffi::tg_status::TG_UNSUPPORTED => {
            Err(Error::Refused { kernel: plan.kernel.name, problem: Box::new(plan.canonical.problem) })
        }
        _ => Err(Error::Cuda { kernel: plan.kernel.name, error: last_cuda_error() }),
    }
}

const MOST_DEVICES: usize = 64;

/// The dispatcher of a device, made when it is first asked for. A failure is not kept: the next call tries again.
///
/// # Errors
/// [`Error::NoDevice`] without a driver or a device of that ordinal, [`Error::Abi`] and [`Error::TableMismatch`] when the
/// linked kernels are not those of the table, [`Error::Tuning`] when the measured table that `TILEGEMM_TUNING` names is refused.
pub fn dispatcher(ordinal: usize) -> Result<&'static Dispatcher> {
    static DISPATCHERS: [OnceCell<Dispatcher>; MOST_DEVICES] = [const { OnceCell::new() }; MOST_DEVICES];
    let cell = DISPATCHERS.get(ordinal).ok_or_else(|| Error::NoDevice(format!("there is no device {ordinal}")))?;
    cell.get_or_try_init(|| {
        library()?;
        let dispatcher = Dispatcher::new(device_info(ordinal)?).with_user_tuning()?;
        crate::stats::register(ordinal);
        Ok(dispatcher)
    })
}

/// The newest CUDA version that the driver runs, as 1000 * major + 10 * minor.
///
/// # Errors
/// [`Error::NoDevice`] without a driver.
pub fn driver_version() -> Result<u32> {
    let mut version = 0;
    // SAFETY: `version` is a valid place to write to.
    check("cudaDriverGetVersion", unsafe { ffi::tg_driver_version(&mut version) })?;
    match version {
        0 => Err(Error::NoDevice("there is no NVIDIA driver".into())),
        version => Ok(version as u32),
    }
}

/// Ordinal of the calling thread's current device.
pub fn current_device() -> Result<usize> {
    let mut ordinal = 0;
    // SAFETY: `ordinal` is a valid place to write to.
    check("cudaGetDevice", unsafe { ffi::tg_current_device(&mut ordinal) })?;
    Ok(ordinal as usize)
}

/// Number of devices, or why there is none.
pub fn device_count() -> Result<usize> {
    // SAFETY: no arguments.
    match unsafe { ffi::tg_device_count() } {
        0 => Err(Error::NoDevice(last_cuda_error())),
        count => Ok(count as usize),
    }
}

/// What the CUDA runtime says of a device.
pub fn device_info(ordinal: usize) -> Result<DeviceInfo> {
    device_count()?;
    // SAFETY: an all-zero tg_device_info is valid.
    let mut info: ffi::tg_device_info = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is a valid place to write to.
    check("cudaGetDeviceProperties", unsafe { ffi::tg_device(ordinal as i32, &mut info) })?;
    // SAFETY: `name` is terminated: the library fills it with snprintf.
    let name = unsafe { CStr::from_ptr(info.name.as_ptr()) }.to_string_lossy().into_owned();
    let capability = info.compute_capability as u16;
    let sm_count = info.sm_count as u32;
    Ok(DeviceInfo {
        rates: Rates::of(&name, capability, sm_count),
        name,
        capability,
        sm_count,
        l2_bytes: info.l2_bytes as u64,
        memory_bytes: info.memory_bytes as u64,
    })
}

/// A descriptor of the linked library.
#[derive(Clone, Copy)]
struct Linked(&'static ffi::tg_kernel);

// SAFETY: a descriptor is constant data; its name is a string literal and its function may be called from any thread.
unsafe impl Send for Linked {}
// SAFETY: as above.
unsafe impl Sync for Linked {}

/// The linked kernels by their position in [`KERNELS`]; checked once against the table.
fn library() -> Result<&'static Vec<Option<Linked>>> {
    static LIBRARY: OnceCell<Vec<Option<Linked>>> = OnceCell::new();
    LIBRARY.get_or_try_init(|| {
        // SAFETY: no arguments.
        let have = unsafe { ffi::tg_abi_version() };
        let need = ffi::TG_ABI_VERSION as i32;
        if have != need {
            return Err(Error::Abi { have, need });
        }
        let mut table = vec![None; KERNELS.len()];
        for kernel in linked_kernels() {
            // SAFETY: names are string literals of the library.
            let name = unsafe { CStr::from_ptr(kernel.name) }.to_string_lossy();
            let index = KERNELS.iter().position(|desc| desc.name == name);
            let index = index.ok_or_else(|| Error::TableMismatch {
                kernel: name.into_owned(),
                what: "the table has no such row".into(),
            })?;
            check_against_table(kernel, &KERNELS[index])?;
            table[index] = Some(Linked(kernel));
        }
        Ok(table)
    })
}

/// Checks every linked kernel against its row of the table, as the first launch does.
///
/// # Errors
/// [`Error::Abi`] or [`Error::TableMismatch`].
pub fn verify_library() -> Result<usize> {
    Ok(library()?.iter().flatten().count())
}

/// The libcublas that plans for the vendor library call; it has the functions that they need.
///
/// # Errors
/// [`Error::Vendor`] with what is missing.
pub fn verify_vendor() -> Result<&'static VendorLibrary> {
    let library = &vendor::cublas()?.library;
    library.verify()?;
    Ok(library)
}

fn linked_kernels() -> impl Iterator<Item = &'static ffi::tg_kernel> {
    let mut count = 0;
    // SAFETY: `count` is a valid place to write to.
    let first = unsafe { ffi::tg_kernels(&mut count) };
    // SAFETY: the library gives `count` pointers to static descriptors.
    let kernels = unsafe { std::slice::from_raw_parts(first, count) };
    // SAFETY: as above; none is null.
    kernels.iter().map(|&kernel| unsafe { &*kernel })
}

fn linked(kernel: &'static KernelDesc) -> Result<Linked> {
    library()?[kernel.index()].ok_or_else(|| mismatch(kernel, "it is not linked in".into()))
}

fn mismatch(kernel: &KernelDesc, what: String) -> Error {
    Error::TableMismatch { kernel: kernel.name.into(), what }
}

fn check_against_table(linked: &ffi::tg_kernel, row: &KernelDesc) -> Result<()> {
    let fields = [
        ("dtype", linked.dtype.0 as i64, dtype(row.dtype).0 as i64),
        ("math", linked.math.0 as i64, math(row.math).0 as i64),
        ("layout", linked.layout.0 as i64, layout(row.layout).0 as i64),
        ("tile M", linked.tile[0].into(), row.tile[0].into()),
        ("tile N", linked.tile[1].into(), row.tile[1].into()),
        ("tile K", linked.tile[2].into(), row.tile[2].into()),
        ("cluster M", linked.cluster[0].into(), row.cluster[0].into()),
        ("cluster N", linked.cluster[1].into(), row.cluster[1].into()),
        ("align", linked.align.into(), row.align.into()),
    ];
    match fields.into_iter().find(|(_, linked, row)| linked != row) {
        Some((field, linked, table)) => Err(mismatch(row, format!("{field} is {linked}, the table says {table}"))),
        None => Ok(()),
    }
}

/// Whether kernels may start while the one before them still runs: `TILEGEMM_PDL=on|off`.
fn overlap() -> Result<bool> {
    static OVERLAP: OnceCell<bool> = OnceCell::new();
    OVERLAP.get_or_try_init(|| settings::switch("TILEGEMM_PDL", true)).copied()
}

/// The problem and its operands; where and how to launch is left open.
fn arguments(problem: &Problem, pointers: Pointers) -> ffi::tg_gemm_args {
    let Problem { m, n, k, batch, a, b, d, epilogue, .. } = *problem;
    let bias = match epilogue.bias {
        Some(BiasAxis::M) => vector(pointers.bias, 1, 0),
        Some(BiasAxis::N) => vector(pointers.bias, 0, 1),
        None => vector(null_mut(), 0, 0),
    };
    ffi::tg_gemm_args {
        m: m as i64,
        n: n as i64,
        k: k as i64,
        batch: batch.map(|size| size as i64),
        a: matrix(pointers.a, &a),
        b: matrix(pointers.b, &b),
        c: epilogue.c.map_or(vector(null_mut(), 0, 0), |c| matrix(pointers.c, &c)),
        d: matrix(pointers.d, &d),
        bias,
        alpha: epilogue.alpha(),
        beta: epilogue.beta(),
        activation: activation(epilogue.activation),
        config: config(Config::default()),
        sm_count: 0,
        overlap: 0,
        stream: null_mut(),
        workspace: null_mut(),
        workspace_bytes: 0,
    }
}

fn config(config: Config) -> ffi::tg_config {
    let [tile_m, tile_n] = config.tile.map(|x| x as i32);
    ffi::tg_config { tile_m, tile_n, split: config.split as i32 }
}

fn matrix(pointer: *const c_void, operand: &Operand) -> ffi::tg_matrix {
    ffi::tg_matrix {
        ptr: pointer.cast_mut(),
        row_stride: operand.row_stride,
        col_stride: operand.col_stride,
        batch_stride: operand.batch_stride,
    }
}

fn vector(pointer: *const c_void, row_stride: i64, col_stride: i64) -> ffi::tg_matrix {
    ffi::tg_matrix { ptr: pointer.cast_mut(), row_stride, col_stride, batch_stride: [0, 0] }
}

fn dtype(dtype: DType) -> ffi::tg_dtype {
    match dtype {
        DType::F16 => ffi::tg_dtype::TG_F16,
        DType::BF16 => ffi::tg_dtype::TG_BF16,
        DType::F32 => ffi::tg_dtype::TG_F32,
        DType::F64 => ffi::tg_dtype::TG_F64,
    }
}

fn math(math: Math) -> ffi::tg_math {
    match math {
        Math::Native => ffi::tg_math::TG_NATIVE,
        Math::Tf32 => ffi::tg_math::TG_TF32,
        Math::Bf16x6 => ffi::tg_math::TG_BF16X6,
    }
}

fn layout(layout: Layout) -> ffi::tg_layout {
    match layout {
        Layout::NN => ffi::tg_layout::TG_NN,
        Layout::NT => ffi::tg_layout::TG_NT,
        Layout::TN => ffi::tg_layout::TG_TN,
        Layout::TT => ffi::tg_layout::TG_TT,
        Layout::Any => ffi::tg_layout::TG_ANY,
    }
}

fn activation(activation: Activation) -> ffi::tg_activation {
    match activation {
        Activation::Identity => ffi::tg_activation::TG_IDENTITY,
        Activation::Relu => ffi::tg_activation::TG_RELU,
        Activation::GeluErf => ffi::tg_activation::TG_GELU_ERF,
        Activation::GeluTanh => ffi::tg_activation::TG_GELU_TANH,
        Activation::Silu => ffi::tg_activation::TG_SILU,
    }
}

fn check(call: &'static str, status: ffi::tg_status) -> Result<()> {
    match status {
        ffi::tg_status::TG_OK => Ok(()),
        _ => Err(Error::Cuda { kernel: call, error: last_cuda_error() }),
    }
}

fn last_cuda_error() -> String {
    // SAFETY: a terminated string that lives until the next call on this thread.
    unsafe { CStr::from_ptr(ffi::tg_last_cuda_error()) }.to_string_lossy().into_owned()
}
