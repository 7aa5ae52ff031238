//! Events around calls, and whether the stream was busy before them.

use crate::launch::device::{current_device, MOST_DEVICES};
use crate::launch::stream;
use cudarc::driver::result::{event, stream::launch_host_function};
use cudarc::driver::sys::{self, cudaError_enum, CUevent, CUevent_flags};
use std::ffi::c_void;
use std::sync::Mutex;
use std::time::Duration;

/// How long a stream is kept busy: longer than the host needs for a call.
const BUSY: Duration = Duration::from_micros(100);

/// Pairs of events that are free, by device.
static EVENTS: [Mutex<Vec<[usize; 2]>>; MOST_DEVICES] = [const { Mutex::new(Vec::new()) }; MOST_DEVICES];

fn free() -> Option<&'static Mutex<Vec<[usize; 2]>>> {
    EVENTS.get(current_device().ok()?)
}

/// Two events of the current device, the first recorded in the stream.
pub fn take(stream: *mut c_void) -> Option<[usize; 2]> {
    let known = free()?.lock().ok()?.pop();
    let new = || {
        let create = || event::create(CUevent_flags::CU_EVENT_DEFAULT).map(|event| event as usize);
        stream::relaxed(|| Some([create().ok()?, create().ok()?])).ok()?
    };
    let events = known.or_else(new)?;
    record(events[0], stream).then_some(events)
}

pub fn give_back(events: [usize; 2]) {
    if let Some(mut free) = free().and_then(|free| free.lock().ok()) {
        free.push(events);
    }
}

pub fn record(event: usize, stream: *mut c_void) -> bool {
    // SAFETY: an event of `take`, which is never destroyed; the stream is the caller's, of the same device.
    unsafe { stream::record(stream, event) }.is_ok()
}

/// Microseconds between two events; `None` where the second has not happened yet.
pub fn elapsed([start, end]: [usize; 2]) -> Option<f64> {
    // SAFETY: events of `take`, both recorded.
    let elapsed = || unsafe { event::elapsed(start as CUevent, end as CUevent) };
    let ms = stream::relaxed(elapsed).ok()?.ok()?;
    Some(f64::from(ms) * 1e3)
}

/// Whether an event has happened, of an event of [`take`].
pub fn has_happened(event: usize) -> bool {
    // SAFETY: an event that is never destroyed.
    let query = || unsafe { event::query(event as CUevent) };
    stream::relaxed(query).is_ok_and(|happened| happened.is_ok())
}

/// Keeps a stream that has nothing to do busy for a moment.
///
/// # Safety
/// `stream` is a stream of the current device that is not being captured.
pub unsafe fn occupy(stream: *mut c_void) {
    unsafe extern "C" fn pass(_: *mut c_void) {
        std::thread::sleep(BUSY);
    }
    // SAFETY: the caller's stream; `pass` reads nothing.
    let occupy = || unsafe {
        if sys::cuStreamQuery(stream.cast()) == cudaError_enum::CUDA_SUCCESS {
            let _ = launch_host_function(stream.cast(), pass, std::ptr::null_mut());
        }
    };
    let _ = stream::relaxed(occupy);
}
