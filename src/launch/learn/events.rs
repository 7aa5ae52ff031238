//! Events around calls, and whether the stream was busy before them.

use crate::dispatch::Event;
use crate::launch::device::{current_device, MOST_DEVICES};
use crate::launch::stream;
use cudarc::driver::result::{event, stream::launch_host_function};
use cudarc::driver::sys::{self, cudaError_enum, CUevent, CUevent_flags};
use std::ffi::c_void;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Events that are free, by device.
static EVENTS: [Mutex<Vec<usize>>; MOST_DEVICES] = [const { Mutex::new(Vec::new()) }; MOST_DEVICES];

fn free() -> Option<&'static Mutex<Vec<usize>>> {
    EVENTS.get(current_device().ok()?)
}

/// An event of the current device that is recorded in the stream. It is never destroyed, but given back to be used again.
pub fn record(stream: *mut c_void) -> Option<Arc<Event>> {
    let known = free()?.lock().ok()?.pop();
    let create = || event::create(CUevent_flags::CU_EVENT_DEFAULT).map(|event| event as usize);
    let event = known.or_else(|| stream::relaxed(create).ok()?.ok())?;
    // SAFETY: an event that is never destroyed; the stream is the caller's, of the same device.
    unsafe { stream::record(stream, event) }.ok().map(|()| Arc::new(Event(event)))
}

/// Gives an event back that nothing else has.
pub fn give_back(event: Arc<Event>) {
    let Some(Event(event)) = Arc::into_inner(event) else { return };
    if let Some(mut free) = free().and_then(|free| free.lock().ok()) {
        free.push(event);
    }
}

/// Microseconds between two events; `None` where the second has not happened yet.
pub fn elapsed([start, end]: &[Arc<Event>; 2]) -> Option<f64> {
    // SAFETY: events of `record`.
    let elapsed = || unsafe { event::elapsed(start.0 as CUevent, end.0 as CUevent) };
    let ms = stream::relaxed(elapsed).ok()?.ok()?;
    Some(f64::from(ms) * 1e3)
}

pub fn has_happened(event: &Event) -> bool {
    // SAFETY: an event that is never destroyed.
    let query = || unsafe { event::query(event.0 as CUevent) };
    stream::relaxed(query).is_ok_and(|happened| happened.is_ok())
}

/// Keeps a stream that has nothing to do busy for so long.
///
/// # Safety
/// `stream` is a stream of the current device that is not being captured.
pub unsafe fn occupy(stream: *mut c_void, time: Duration) {
    unsafe extern "C" fn pass(microseconds: *mut c_void) {
        std::thread::sleep(Duration::from_micros(microseconds as u64));
    }
    let microseconds = time.as_micros() as usize as *mut c_void;
    // SAFETY: the caller's stream; the argument of `pass` is a number.
    let occupy = || unsafe {
        if sys::cuStreamQuery(stream.cast()) == cudaError_enum::CUDA_SUCCESS {
            let _ = launch_host_function(stream.cast(), pass, microseconds);
        }
    };
    let _ = stream::relaxed(occupy);
}
