//! Launches of a program that learns: calls of a contested product run its kernels in turns, between events on the caller's stream. The events are read when
//! they have happened; nothing waits for them.

mod aside;
mod between;
mod events;
mod samples;

pub use aside::save_learned;

use super::device::current_device;
use super::dispatchers::dispatcher;
use super::pointers::Queue;
use super::stream;
use crate::dispatch::{learning, Contest, Planned};
use crate::error::{Error, Result};
use crate::kernel::Role;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Calls of products that were being learned.
static CALLS: AtomicU64 = AtomicU64::new(0);
/// Whether the calls are those of [`prepare_learned`].
static IS_PREPARING: AtomicBool = AtomicBool::new(false);

/// The contest of a plan, while the process learns and the plan's is not settled. Another thread makes it: until then calls run as planned.
pub(crate) fn contest(plan: &Planned) -> Result<Option<&Contest<Planned>>> {
    if !learning()? {
        return Ok(None);
    }
    between::note(plan);
    if plan.is_settled() {
        return Ok(None);
    }
    match plan.contest() {
        Some(contest) => Ok(contest),
        None => {
            CALLS.fetch_add(1, Ordering::Relaxed);
            aside::prepare(plan);
            Ok(None)
        }
    }
}

/// Has `launch` launch a plan of this contest in the queue: the next in turn, or the best so far. `is_possible`: whether a plan runs there itself, and no other in its place.
///
/// # Safety
/// The queue is one of the current device.
pub(super) unsafe fn in_turn(
    plan: &Planned,
    contest: &Contest<Planned>,
    queue: Queue,
    launch: impl Fn(&Planned) -> Result<()>,
    is_possible: impl Fn(&Planned) -> Result<bool>,
) -> Result<()> {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // A call of cuBLASLt has no handle of cuBLAS.
    let has_handle = |plan: &Planned| plan.kernel.role != Role::Vendor || !queue.cublas.is_null();
    let launch_best = || launch(Some(contest.best(plan)).filter(|best| has_handle(best)).unwrap_or(plan));
    // Another thread is in turn, or a graph would keep an event.
    // SAFETY: the caller's stream.
    let lock = contest.state.try_lock().ok().filter(|_| !unsafe { stream::is_capturing(queue.stream) });
    let Some(mut state) = lock else { return launch_best() };
    samples::read(&mut state);
    contest.note(&state.turns);
    let address = std::ptr::from_ref(contest) as usize;
    if let Some(verdict) = state.turns.verdict() {
        samples::end(&mut state);
        drop(state);
        between::release(address);
        dispatcher(current_device()?)?.settle(plan, contest, verdict);
        aside::write_soon();
        return launch_best();
    }
    let is_preparing = IS_PREPARING.load(Ordering::Relaxed);
    if is_preparing {
        state.turns.wake();
    }
    let Some(call) = samples::next(&mut state, address, queue.stream, is_preparing) else { return launch_best() };
    let kernel = call.kernel();
    let runs = contest.plan(plan, kernel);
    if !(has_handle(runs) && is_possible(runs)?) {
        state.is_warm[kernel] = true;
        state.turns.failed(kernel);
        return launch(plan);
    }
    // SAFETY: the caller's stream, which is not being captured.
    let (is_timed, launched) =
        unsafe { samples::launch(&mut state, call, queue.stream, is_preparing, || launch(runs)) };
    if !is_timed {
        state.turns.failed(kernel);
    }
    // A rival that is refused has computed nothing.
    match launched {
        Err(_) if kernel > 0 => launch(plan),
        launched => launched,
    }
}

/// Runs `step` until the products that it launches are learned, at most 200 times; returns how often. For programs that launch from CUDA graphs alone: nothing is
/// learned in a capture, so they learn here, before it. Learning is on meanwhile, and a stream that is idle is kept busy for a moment before a kernel is timed: what
/// counts is the GPU's time, which is all that a graph leaves. `step` should wait for its results, as a program does that uses them.
///
/// ```no_run
/// use candle_tilegemm::dispatch::Policy;
/// use candle_tilegemm::launch::{self, Pointers, Queue};
/// use candle_tilegemm::{Format, Layout, Problem};
/// use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let (a, b) = (stream.alloc_zeros::<f32>(64 * 128)?, stream.alloc_zeros::<f32>(32 * 128)?);
/// let mut d = stream.alloc_zeros::<f32>(64 * 32)?;
///
/// let problem = Problem::dense(64, 32, 128, 1, Layout::NT, Format::F32);
/// let plan = launch::dispatcher(0)?.plan(&problem, Policy::own())?;
/// let mut step = || -> Result<(), Box<dyn std::error::Error>> {
///     let ((a, _reads_a), (b, _reads_b)) = (a.device_ptr(&stream), b.device_ptr(&stream));
///     let (d, _writes_d) = d.device_ptr_mut(&stream);
///     let queue = Queue::new(stream.cu_stream().cast(), std::ptr::null_mut());
///     // SAFETY: as for `launch::launch`.
///     unsafe { launch::launch(&plan, Pointers::new(a as _, b as _, d as _), queue)? };
///     Ok(stream.synchronize()?)
/// };
/// launch::prepare_learned(&mut step)?;
/// // From here on a capture of `step` has the kernel that won.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of `step`, and [`Error::BadSetting`](crate::Error::BadSetting) for `TILEGEMM_LEARN`.
pub fn prepare_learned<E: From<Error>>(
    mut step: impl FnMut() -> std::result::Result<(), E>,
) -> std::result::Result<usize, E> {
    const MOST_STEPS: usize = 200;
    let was_on = learning()?;
    crate::dispatch::set_learning(true);
    IS_PREPARING.store(true, Ordering::Relaxed);
    let mut steps = 0;
    let result = loop {
        let before = CALLS.load(Ordering::Relaxed);
        let result = step();
        steps += 1;
        if result.is_err() || steps == MOST_STEPS || CALLS.load(Ordering::Relaxed) == before {
            break result;
        }
    };
    IS_PREPARING.store(false, Ordering::Relaxed);
    crate::dispatch::set_learning(was_on);
    result.map(|()| steps)
}
