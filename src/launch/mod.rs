//! From a [plan](Planned) and device pointers to a running kernel. Unsafe code is confined to this module, `ffi` and
//! `interpose`.

use crate::dispatch::Planned;
#[cfg(feature = "candle")]
use crate::dispatch::{shares, Plan, MOST_BESIDE};
use crate::error::{Error, Result};
use crate::ffi;
use crate::kernel::{KernelDesc, Role};
use crate::problem::{Operand, Problem};
use crate::workspace::partition::Partition;
use crate::workspace::streams::Workspace;
use crate::workspace::WorkspaceError;
use arguments::{arguments, config};
use device::last_cuda_error;
use library::{linked, mismatch};
use std::ffi::c_void;
use std::ptr::null_mut;

mod arguments;
pub(crate) mod cublas;
mod device;
mod dispatchers;
mod elementwise;
#[cfg(all(feature = "experts", any(feature = "candle", feature = "interpose-mistralrs")))]
#[cfg_attr(not(feature = "candle"), allow(dead_code))] // the layers' kernels
pub(crate) mod experts;
#[cfg(feature = "layers")]
pub(crate) mod layers;
mod learn;
mod library;
mod modules;
pub(crate) mod observer;
mod own;
mod packed;
mod pointers;
mod stream;

#[doc(hidden)]
pub use cublas::VendorCall;
pub use cublas::VendorLibrary;
#[doc(hidden)]
pub use device::current_device;
pub use device::device_info;
pub use device::{device_count, driver_version};
pub use dispatchers::dispatcher;
pub(crate) use dispatchers::dispatchers;
#[cfg(any(feature = "candle", feature = "interpose"))]
pub(crate) use dispatchers::policy;
#[cfg(feature = "interpose-mistralrs")]
pub(crate) use elementwise::copy;
pub use elementwise::finish;
#[cfg(feature = "candle")]
pub(crate) use elementwise::{activate, gate, slope};
#[cfg(feature = "interpose")]
pub(crate) use learn::contest;
pub use learn::{prepare_learned, save_learned};
pub use library::verify_library;
pub use pointers::{GroupPointers, Pointers, Queue};
#[cfg(any(feature = "interpose-kernels", feature = "interpose-mistralrs"))]
pub(crate) use stream::fill;
#[cfg(feature = "interpose-mistralrs")]
pub(crate) use stream::Scratch;

/// Launches a plan on the current device. Where the stream lacks the workspace that the plan's kernel needs, the plan's
/// replacement runs ([`Planned::without_workspace`]). The launch does not wait, and allocates nothing but that workspace, once.
///
/// ```no_run
/// use candle_tilegemm::dispatch::Policy;
/// use candle_tilegemm::launch::{self, Pointers, Queue};
/// use candle_tilegemm::{Format, Layout, Problem};
/// use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};
///
/// let stream = CudaContext::new(0)?.default_stream();
/// let (a, b) = (stream.alloc_zeros::<f32>(64 * 128)?, stream.alloc_zeros::<f32>(32 * 128)?);
/// let mut d = stream.alloc_zeros::<f32>(64 * 32)?;
///
/// let problem = Problem::dense(64, 32, 128, 1, Layout::NT, Format::F32);
/// let plan = launch::dispatcher(0)?.plan(&problem, Policy::own())?;
/// {
///     let ((a, _reads_a), (b, _reads_b)) = (a.device_ptr(&stream), b.device_ptr(&stream));
///     let (d, _writes_d) = d.device_ptr_mut(&stream);
///     let queue = Queue::new(stream.cu_stream().cast(), std::ptr::null_mut()); // no plan of `Policy::own` needs a handle of cuBLAS
///     // SAFETY: the operands have the sizes of the problem, and live until the stream has passed; CUDA aligns allocations to 256 bytes.
///     unsafe { launch::launch(&plan, Pointers::new(a as _, b as _, d as _), queue)? };
/// }
/// let d: Vec<f32> = stream.clone_dtoh(&d)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::MemoryFull`] when device memory has no room for the kernel, and no other kernel is loaded that runs the
/// problem. [`Error::Cuda`] when CUDA refuses the launch, and [`Error::Refused`] when the kernel refuses the launch: then
/// nothing has run, or some pieces of a product that is computed in pieces have run (an in-place product is never
/// computed in pieces). [`Error::Workspace`] when there is no workspace and the plan has no replacement.
///
/// # Safety
/// - The pointers are device memory of the current device. The problem's extents and strides stay inside the memory,
///   and the memory stays allocated until the stream has passed the launch.
/// - The pointers are aligned as the problem says.
/// - D overlaps none of the other operands, except C where both have the same layout. Where the problem says that C is
///   D ([`Epilogue::in_place`](crate::problem::Epilogue::in_place)), both pointers are the same.
/// - The stream and the handle in `queue` are as [`Queue`] documents; the handle is in host pointer mode
///   (`CUBLAS_POINTER_MODE_HOST`), because scale factors lie on the host.
pub unsafe fn launch(plan: &Planned, pointers: Pointers, queue: Queue) -> Result<()> {
    let plan = plan.settled();
    // SAFETY: the caller's promises.
    let run = |plan: &Planned| unsafe { launch_in(plan, pointers, queue, Place::default()).map(drop) };
    let Some(contest) = learn::contest(plan)? else { return run(plan) };
    // SAFETY: the caller's stream.
    let is_itself = |plan: &Planned| unsafe { resolve(plan, queue.stream).map(|(ready, _)| std::ptr::eq(ready, plan)) };
    let is_possible = |plan: &Planned| Ok(is_itself(plan)? && modules::ready(plan).is_ok());
    // SAFETY: the caller's queue.
    unsafe { learn::in_turn(plan, contest, queue, run, is_possible) }
}

/// Launches products of the same A. Where all kernels may, they run side by side. Of the errors of [`launch`], one may come when some products have run.
///
/// # Safety
/// As for [`launch`], for each product, and none reads what another writes.
#[cfg(feature = "candle")]
pub(crate) unsafe fn launch_beside(products: &[(&Planned, Pointers)], queue: Queue) -> Result<()> {
    let Some((first, _)) = products.first() else { return Ok(()) };
    let mut plans: [&Plan; MOST_BESIDE] = [first; MOST_BESIDE];
    plans.iter_mut().zip(products).for_each(|(plan, (planned, _))| *plan = planned);
    let shares = match dispatchers::overlap()? {
        true => plans.get(..products.len()).and_then(shares),
        false => None,
    };
    let Some(shares) = shares else {
        // SAFETY: the caller's promises.
        return products.iter().try_for_each(|(plan, pointers)| unsafe { launch(plan, *pointers, queue) });
    };
    // A kernel starts when all blocks of the one before have: the fewest blocks first.
    let mut order: Vec<usize> = (0..products.len()).collect();
    order.sort_by_key(|&i| shares[i]);
    let mut place = Place::default();
    for i in order {
        let (plan, pointers) = products[i];
        place.multiprocessors = Some(shares[i]);
        // SAFETY: the caller's promises; the kernel before is that of another of these plans, which may have a kernel beside it.
        place.is_beside = unsafe { launch_in(plan, pointers, queue, place)? };
    }
    Ok(())
}

/// Where a product runs beside others of the same A.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Those that the kernel may fill; none: all.
    multiprocessors: Option<u32>,
    /// Whether the kernel before it in the stream is one that this one may run beside.
    is_beside: bool,
}

/// [`tg_gemm_args::overlap`](ffi::tg_gemm_args) of a kernel beside the one before; csrc/gguf_gemv/device.hpp has the same number.
const BESIDE: i32 = 2;

/// Whether the plan's own kernel was launched, in this place.
///
/// # Safety
/// As for [`launch`].
unsafe fn launch_in(plan: &Planned, pointers: Pointers, queue: Queue, place: Place) -> Result<bool> {
    if plan.canonical.problem.is_empty() {
        begin(plan, plan);
        return Ok(false);
    }
    // SAFETY: the caller's stream is one of the current device.
    let (ready, workspace) = unsafe { resolve(plan, queue.stream)? };
    if let Err(lack) = modules::ready(ready) {
        // SAFETY: the caller's promises.
        return unsafe { launch_loaded(plan, lack, pointers, queue).map(|()| false) };
    }
    let is_own = std::ptr::eq(plan, ready);
    begin(plan, ready);
    let plan = ready;
    let pointers = if plan.canonical.swapped { pointers.transposed() } else { pointers };
    if plan.kernel.role == Role::Vendor && plan.packing.is_none() {
        // SAFETY: `run` needs the promises that the caller made.
        return unsafe { VendorCall::of(&plan.canonical.problem)?.run(pointers, queue.cublas).map(|()| false) };
    }
    let problem = &plan.canonical.problem;
    // Kernels overlap from Hopper on.
    let overlap = dispatchers::overlap()? && plan.kernel.arch.capability >= 90;
    let args = |problem: &Problem, pointers| ffi::tg_gemm_args {
        config: config(plan.config),
        sm_count: place.multiprocessors.unwrap_or(plan.sm_count) as i32,
        overlap: if overlap && place.is_beside { BESIDE } else { overlap.into() },
        stream: queue.stream,
        workspace: workspace.map_or(null_mut(), |workspace| workspace.memory.address as *mut c_void),
        workspace_bytes: workspace.map_or(0, |workspace| workspace.bytes),
        ..arguments(problem, pointers)
    };
    let Some(workspace) = workspace else {
        // SAFETY: the caller vouches for the memory behind the arguments.
        return unsafe { call(plan, &args(problem, pointers)).map(|()| is_own) };
    };
    let footprint = match plan.packing {
        Some(packing) => packing.footprint(problem),
        None => plan.kernel.footprint(problem),
    };
    let partition = Partition::new(footprint, problem, workspace.bytes).ok_or_else(|| {
        let lack = WorkspaceError::Small { need: plan.workspace.least, have: workspace.bytes };
        Error::Workspace { what: plan.kernel.name, lack: lack.into() }
    })?;
    let launch_all = || {
        partition.pieces(problem).try_for_each(|piece| {
            let pointers = pointers.of_piece(&piece);
            // SAFETY: as above, for a part of each operand.
            let multiply = |problem: &Problem, pointers| unsafe {
                match plan.kernel.role {
                    Role::Vendor => VendorCall::of(problem)?.run(pointers, queue.cublas),
                    _ => call(plan, &args(problem, pointers)),
                }
            };
            match plan.packing {
                // SAFETY: as above, and the workspace is the stream's.
                Some(packing) => unsafe {
                    let (workspace, sms) = (workspace.memory.address, plan.sm_count);
                    packed::launch(packing, &piece.problem, pointers, workspace, sms, queue, multiply)
                },
                None => multiply(&piece.problem, pointers),
            }
        })
    };
    // SAFETY: the caller's stream, and its workspace.
    unsafe { own::in_turn(workspace, queue.stream, launch_all).map(|()| is_own) }
}

/// Launches, in place of `plan`, whose kernel cannot be loaded for the reason `lack`, the fastest kernel that is loaded already. The next
/// launch of `plan` tries to load its kernel again.
///
/// # Safety
/// As for [`launch`].
unsafe fn launch_loaded(plan: &Planned, lack: Error, pointers: Pointers, queue: Queue) -> Result<()> {
    let device = current_device()?;
    let Some(other) = dispatcher(device)?.plan_among(plan, &|kernel| modules::is_loaded(device, kernel)) else {
        return Err(lack);
    };
    if plan.tell() {
        let (kernel, instead) = (plan.kernel.name, other.kernel.name);
        tracing::warn!(target: "tilegemm::modules", kernel, instead, %lack, "not loaded");
    }
    other.set_ready();
    // SAFETY: the caller's promises.
    unsafe { launch(&other, pointers, queue) }
}

/// Reports and counts a launch of `ready` for `plan`.
pub(crate) fn begin(plan: &Planned, ready: &Planned) {
    observer::report(plan, ready);
    ready.count();
}

/// The plan that [`launch`] runs for `plan` on this stream: `plan` itself, or [`Planned::without_workspace`] where the
/// plan's kernel needs a workspace that the stream does not have and cannot get.
///
/// # Errors
/// As for [`launch`].
///
/// # Safety
/// `stream` is one of the current device.
#[doc(hidden)]
pub unsafe fn ready(plan: &Planned, stream: *mut c_void) -> Result<&Planned> {
    // SAFETY: the caller's promise.
    Ok(unsafe { resolve(plan, stream)? }.0)
}

/// Prepares a stream of the current device for launches. The function allocates the stream's workspace unless the
/// stream has a workspace, makes the device's dispatcher, and loads the modules of all kernels that are built for the
/// device. First launches do this work otherwise. After `prepare`, no launch on the stream calls a CUDA function that a
/// capture of any mode, on this thread or another thread, forbids. Without `prepare`, a product whose first launch on a
/// stream is captured into a CUDA graph runs without a workspace. With candle, [`prepare`](crate::prepare) calls this
/// function.
///
/// Call `prepare` for each stream that is captured before the stream's first product. CUDA may have given the stream
/// the handle of a destroyed stream. A capture tells the two streams apart by a mark (an access policy window of no
/// bytes) that the first use of a stream leaves. Where the program has set an access policy window for such a stream,
/// the two streams look alike, and the capture takes the workspace of the destroyed stream, where work may still be
/// under way.
///
/// Returns the workspace's size; 0 where `TILEGEMM_WORKSPACE=0` switches the workspace off.
///
/// ```no_run
/// use candle_tilegemm::launch;
/// use cudarc::driver::CudaContext;
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// // SAFETY: the stream is one of the current device.
/// let bytes = unsafe { launch::prepare(stream.cu_stream().cast())? };
/// println!("a workspace of {} MiB; the stream can be captured", bytes >> 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of [`dispatcher`], [`Error::MemoryFull`] and [`Error::Cuda`] where a module cannot be loaded, and
/// [`Error::Workspace`] with the reason why there can be no workspace. A later call tries again.
///
/// # Safety
/// `stream` is one of the current device.
pub unsafe fn prepare(stream: *mut c_void) -> Result<u64> {
    let device = current_device()?;
    modules::load_all(device, dispatcher(device)?.device().capability)?;
    // SAFETY: the caller's promise.
    let lack = match unsafe { own::workspace(stream, true)? } {
        Ok(workspace) if workspace.is_shared() => WorkspaceError::ManyStreams,
        Ok(workspace) => return Ok(workspace.bytes),
        Err(WorkspaceError::Off) => return Ok(0),
        Err(lack) => lack,
    };
    Err(Error::Workspace { what: "the stream alone", lack: lack.into() })
}

/// The plan to run, and its workspace if the plan needs one.
unsafe fn resolve(plan: &Planned, stream: *mut c_void) -> Result<(&Planned, Option<&'static Workspace>)> {
    let need = plan.workspace.least;
    if need == 0 {
        return Ok((plan, None));
    }
    // SAFETY: the caller's promise.
    let lack = match unsafe { own::workspace(stream, false)? } {
        Ok(workspace) if workspace.bytes >= need => return Ok((plan, Some(workspace))),
        Ok(workspace) => WorkspaceError::Small { need, have: workspace.bytes },
        Err(lack) => lack,
    };
    let kernel = plan.kernel.name;
    let Some(without) = plan.without_workspace() else {
        return Err(Error::Workspace { what: kernel, lack: lack.into() });
    };
    if plan.tell() {
        tracing::warn!(target: "tilegemm::workspace", kernel, instead = without.kernel.name, %lack, "no workspace");
    }
    Ok((without, None))
}

/// Calls a kernel's launch function.
///
/// # Safety
/// The pointers of `args` satisfy the safety section of [`launch`].
unsafe fn call(plan: &Planned, args: &ffi::tg_gemm_args) -> Result<()> {
    let kernel = linked(plan.kernel)?;
    let function = kernel.0.launch.ok_or_else(|| mismatch(plan.kernel, "it has no launch function".into()))?;
    // SAFETY: `function` is a launch function of tilegemm.h, `args` lives until the function returns, and the caller
    // vouches for the memory behind `args`.
    match unsafe { function(args) } {
        ffi::tg_status::TG_OK => Ok(()),
        ffi::tg_status::TG_UNSUPPORTED => {
            Err(Error::Refused { kernel: plan.kernel.name, problem: plan.canonical.problem.to_string() })
        }
        _ => Err(Error::Cuda { kernel: plan.kernel.name, error: last_cuda_error() }),
    }
}

/// The most dynamic shared memory of a thread block, in bytes, with which the launch function of `kernel` would run the canonical `problem` in
/// the configuration with these numbers, in the order of `tg_config`, with any workspace; `None` where the function refuses. The function makes
/// the checks of a launch, launches nothing and needs no device.
///
/// # Errors
/// [`Error::Abi`] and [`Error::TableMismatch`], as a launch has them; [`Error::Cuda`] when the launch function calls CUDA.
#[doc(hidden)]
pub fn rehearse(
    kernel: &'static KernelDesc,
    problem: &Problem,
    config: [i32; 8],
    sm_count: u32,
) -> Result<Option<u32>> {
    let function = linked(kernel)?.0.can_implement.ok_or_else(|| mismatch(kernel, "it has no can_implement".into()))?;
    let [tile_m, tile_n, cluster_m, cluster_n, split, stages, warps, swap_ab] = config;
    // Addresses of no memory. No address is aligned better than the problem says.
    let address = |operand: &Operand| (1_usize << 44) + operand.pointer_align as usize;
    let [a, b, d] = [&problem.a, &problem.b, &problem.d].map(|operand| address(operand) as *mut c_void);
    let c = problem.epilogue.c.map_or(null_mut(), |c| address(&c) as *mut c_void);
    let bias = problem.epilogue.bias.map_or(null_mut(), |_| d);
    let mut pointers = Pointers::new(a, b, d).with_c(c).with_bias(bias);
    (pointers.scales, pointers.zeros) = ([d.cast_const(); 3], [d.cast_const(); 3]);
    pointers.groups = GroupPointers { bounds: d.cast_const(), pairs: d.cast_const(), scales: d.cast_const() };
    let args = ffi::tg_gemm_args {
        config: ffi::tg_config { tile_m, tile_n, cluster_m, cluster_n, split, stages, warps, swap_ab },
        sm_count: sm_count as i32,
        workspace: (1_usize << 45) as *mut c_void,
        workspace_bytes: u64::MAX / 2,
        ..arguments(problem, pointers)
    };
    // SAFETY: the function of tilegemm.h reads no memory behind the pointers of `args`.
    match unsafe { function(&args) } {
        // SAFETY: the function of library.h returns a number of this thread.
        ffi::tg_status::TG_OK => Ok(Some(unsafe { ffi::tg_rehearsed_shared_bytes() } as u32)),
        ffi::tg_status::TG_UNSUPPORTED => Ok(None),
        _ => Err(Error::Cuda { kernel: kernel.name, error: last_cuda_error() }),
    }
}

/// The libcublas that plans for the vendor library call, with the functions that these plans need.
///
/// # Errors
/// [`Error::Vendor`] names the missing library or function.
pub fn verify_vendor() -> Result<&'static VendorLibrary> {
    let library = &cublas::api::cublas()?.library;
    library.verify()?;
    Ok(library)
}
