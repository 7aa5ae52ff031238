//! Launches of a program that learns: calls of a contested product run its kernels in turns, between two events on the caller's stream. The events are read when
//! they have happened; nothing waits for them.

use super::device::{current_device, MOST_DEVICES};
use super::dispatchers::{dispatcher, dispatchers};
use super::pointers::Queue;
use super::stream;
use crate::dispatch::{learning, Contest, Dispatcher, Planned};
use crate::error::{Error, Result};
use crate::kernel::Role;
use crate::stderr::tell;
use cudarc::driver::result::event;
use cudarc::driver::sys::{CUevent, CUevent_flags};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Calls of a product whose times are not known yet; further ones run the best so far.
const MOST_PENDING: usize = 16;
/// The file is written when nothing was learned for so long.
const PAUSE: Duration = Duration::from_secs(2);

/// Calls of products that were being learned.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// The contest of a plan, while the process learns and the plan's is not settled.
pub(crate) fn contest(plan: &Planned) -> Result<Option<&Contest<Planned>>> {
    if !learning()? {
        return Ok(None);
    }
    Ok(plan.contest(|| dispatcher(current_device().ok()?).ok()?.contest(plan)))
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
    let Some(mut state) = contest.state.try_lock().ok().filter(|_| !unsafe { stream::is_capturing(queue.stream) })
    else {
        return launch_best();
    };
    while let Some((turn, events)) = state.pending.pop_front() {
        match elapsed(events) {
            Some(us) => {
                state.turns.took(turn, us);
                give_back(events);
            }
            None => {
                state.pending.push_front((turn, events));
                break;
            }
        }
    }
    contest.note(&state.turns);
    if let Some(verdict) = state.turns.verdict() {
        state.pending.drain(..).for_each(|(_, events)| give_back(events));
        drop(state);
        dispatcher(current_device()?)?.settle(plan, contest, verdict);
        write_soon();
        return launch_best();
    }
    let turn = if state.pending.len() < MOST_PENDING { state.turns.next(queue.stream as usize) } else { None };
    let Some(turn) = turn else { return launch_best() };
    let runs = contest.plan(plan, turn.kernel);
    let events = (has_handle(runs) && is_possible(runs)?).then(|| take(queue.stream)).flatten();
    let Some(events) = events else {
        state.turns.failed(turn.kernel);
        return launch(plan);
    };
    let launched = launch(runs);
    match launched.is_ok() && record(events[1], queue.stream) {
        true => state.pending.push_back((turn, events)),
        false => {
            give_back(events);
            state.turns.failed(turn.kernel);
        }
    }
    // A rival that is refused has computed nothing.
    match launched {
        Err(_) if turn.kernel > 0 => launch(plan),
        launched => launched,
    }
}

/// Pairs of events that are free, by device.
static EVENTS: [Mutex<Vec<[usize; 2]>>; MOST_DEVICES] = [const { Mutex::new(Vec::new()) }; MOST_DEVICES];

fn free() -> Option<&'static Mutex<Vec<[usize; 2]>>> {
    EVENTS.get(current_device().ok()?)
}

/// Two events of the current device, the first recorded in the stream.
fn take(stream: *mut c_void) -> Option<[usize; 2]> {
    let known = free()?.lock().ok()?.pop();
    let new = || {
        let create = || event::create(CUevent_flags::CU_EVENT_DEFAULT).map(|event| event as usize);
        stream::relaxed(|| Some([create().ok()?, create().ok()?])).ok()?
    };
    let events = known.or_else(new)?;
    record(events[0], stream).then_some(events)
}

fn give_back(events: [usize; 2]) {
    if let Some(mut free) = free().and_then(|free| free.lock().ok()) {
        free.push(events);
    }
}

fn record(event: usize, stream: *mut c_void) -> bool {
    // SAFETY: an event of `take`, which is never destroyed; the stream is the caller's, of the same device.
    unsafe { stream::record(stream, event) }.is_ok()
}

/// Microseconds between two events; `None` where the second has not happened yet.
fn elapsed([start, end]: [usize; 2]) -> Option<f64> {
    // SAFETY: events of `take`, both recorded.
    let elapsed = || unsafe { event::elapsed(start as CUevent, end as CUevent) };
    let ms = stream::relaxed(elapsed).ok()?.ok()?;
    Some(f64::from(ms) * 1e3)
}

/// Writes what was learned, off this thread, when nothing more comes for a while, and when the process ends.
fn write_soon() {
    static WRITER: OnceLock<Option<Sender<()>>> = OnceLock::new();
    let writer = WRITER.get_or_init(|| {
        // SAFETY: a function without arguments, as C's `atexit` asks for.
        unsafe { atexit(at_exit) };
        let (sender, receiver) = mpsc::channel();
        let write = move || {
            while receiver.recv().is_ok() {
                while receiver.recv_timeout(PAUSE).is_ok() {}
                save_all();
            }
        };
        std::thread::Builder::new().name("tilegemm-learn".into()).spawn(write).ok().map(|_| sender)
    });
    if let Some(writer) = writer {
        let _ = writer.send(());
    }
}

extern "C" {
    fn atexit(function: extern "C" fn()) -> std::ffi::c_int;
}

extern "C" fn at_exit() {
    save_all();
}

fn save_all() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    for (_, dispatcher) in dispatchers() {
        if let Err(error) = dispatcher.save_learned() {
            if !TOLD.swap(true, Ordering::Relaxed) {
                tell(&format!("what this program learns is not written: {error}"));
            }
        }
    }
}

/// Writes what this process has learned so far to the files of its GPU models. It is written now and then, and when the process ends, in any case.
///
/// # Errors
/// Those of the file system. What was learned is kept, and written later.
pub fn save_learned() -> std::io::Result<()> {
    dispatchers().try_for_each(|(_, dispatcher): (usize, &Dispatcher)| dispatcher.save_learned())
}

/// Runs `step` until the products that it launches are learned, at most 200 times; returns how often. For programs that launch from CUDA graphs alone: nothing is
/// learned in a capture, so they learn here, before it. Learning is on meanwhile. `step` should wait for its results, as a program does that uses them.
///
/// # Errors
/// Those of `step`, and [`Error::BadSetting`](crate::Error::BadSetting) for `TILEGEMM_LEARN`.
pub fn prepare_learned<E: From<Error>>(
    mut step: impl FnMut() -> std::result::Result<(), E>,
) -> std::result::Result<usize, E> {
    const MOST_STEPS: usize = 200;
    let was_on = learning()?;
    crate::dispatch::set_learning(true);
    let mut steps = 0;
    let result = loop {
        let before = CALLS.load(Ordering::Relaxed);
        let result = step();
        steps += 1;
        if result.is_err() || steps == MOST_STEPS || CALLS.load(Ordering::Relaxed) == before {
            break result;
        }
    };
    crate::dispatch::set_learning(was_on);
    result.map(|()| steps)
}
