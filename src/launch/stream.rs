//! Streams, events and memory. All calls are driver calls, which leave the CUDA runtime's last error unchanged.

use super::device::{failed, init};
use crate::error::Result;
use crate::workspace::streams::Memory;
use cudarc::driver::result::{ctx, device, event, malloc_sync, primary_ctx, stream, DriverError};
#[cfg(feature = "interpose-mistralrs")]
use cudarc::driver::result::{free_async, malloc_async};
use cudarc::driver::sys::{
    self, CUaccessPolicyWindow, CUevent, CUevent_flags, CUevent_wait_flags, CUlaunchAttributeID, CUstreamAttrValue,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};
use std::ffi::c_void;

const WINDOW: CUlaunchAttributeID = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;

/// Whether a stream is being captured into a graph. The answer is also true where the driver cannot tell, as for the
/// default stream while another stream is captured. A thread without a context has a context afterwards.
///
/// # Safety
/// `stream` is a stream of the current device.
pub(super) unsafe fn is_capturing(stream: *mut c_void) -> bool {
    // SAFETY: the caller's stream.
    let status = make_context().and_then(|()| unsafe { stream::is_capturing(stream.cast()) });
    status != Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// CUDA's number of a stream. Unlike a handle, a number is never reused in the process. A stream that is being captured
/// has no number, and a request for the number ends the capture.
///
/// # Safety
/// `stream` is a stream of the current device; the thread has a context.
pub(super) unsafe fn id(stream: *mut c_void) -> Result<u64> {
    let mut id = 0;
    // SAFETY: the caller's stream, and a valid place to write to.
    unsafe { sys::cuStreamGetId(stream.cast(), &mut id) }.result().map_err(failed("cuStreamGetId"))?;
    Ok(id)
}

/// Gives a stream a mark: the address of an access policy window of no bytes, which has no effect. The mark can be read
/// while the stream is captured, and ends with the stream. A new stream has no window. A stream for which the program
/// has set a window of its own gets no mark.
///
/// # Safety
/// As for [`id`].
pub(super) unsafe fn set_mark(stream: *mut c_void, mark: u64) -> Result<()> {
    // SAFETY: the caller's stream.
    let window = unsafe { window(stream) }.map_err(failed("cuStreamGetAttribute"))?;
    if window.num_bytes != 0 {
        return Ok(());
    }
    // SAFETY: a union is valid with any bytes, and this variant with zeros.
    let mut value: CUstreamAttrValue = unsafe { std::mem::zeroed() };
    value.accessPolicyWindow.base_ptr = mark as *mut c_void;
    // SAFETY: the caller's stream, and a value of this attribute.
    unsafe { sys::cuStreamSetAttribute(stream.cast(), WINDOW, &value) }.result().map_err(failed("cuStreamSetAttribute"))
}

/// Whether a stream has this mark, or a window of the program's own in the mark's place.
///
/// # Safety
/// As for [`id`].
pub(super) unsafe fn may_have_mark(stream: *mut c_void, mark: u64) -> bool {
    // SAFETY: the caller's stream.
    unsafe { window(stream) }.is_ok_and(|window| window.num_bytes != 0 || window.base_ptr as u64 == mark)
}

/// The access policy window of a stream. The driver gives the window also while the stream is captured.
unsafe fn window(stream: *mut c_void) -> std::result::Result<CUaccessPolicyWindow, DriverError> {
    // SAFETY: as in `set_mark`.
    let mut value: CUstreamAttrValue = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's stream, and a valid place to write to.
    unsafe { sys::cuStreamGetAttribute(stream.cast(), WINDOW, &mut value) }.result()?;
    // SAFETY: the driver has written this variant.
    Ok(unsafe { value.accessPolicyWindow })
}

/// Device memory of the current device and an event, both never freed. The allocation ends no capture on any stream or
/// thread. The memory is uninitialised.
pub(super) fn allocate(bytes: u64) -> std::result::Result<Memory, DriverError> {
    make_context()?;
    relaxed(|| {
        let event = event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        // SAFETY: an address; no code here reads the memory.
        let address = unsafe { malloc_sync(bytes as usize)? };
        Ok(Memory { address: address as usize, event: event as usize })
    })?
}

/// Makes a stream wait for an event, if the event has ever been recorded.
///
/// # Safety
/// `stream` is a stream of the current device; `event` is the event of a [`Memory`].
pub(super) unsafe fn wait(stream: *mut c_void, event: usize) -> std::result::Result<(), DriverError> {
    // SAFETY: the event is never destroyed; the caller's stream.
    unsafe { stream::wait_event(stream.cast(), event as CUevent, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
}

/// Records an event in a stream.
///
/// # Safety
/// As for [`wait`].
pub(super) unsafe fn record(stream: *mut c_void, event: usize) -> std::result::Result<(), DriverError> {
    // SAFETY: as in `wait`.
    unsafe { event::record(event as CUevent, stream.cast()) }
}

/// Sets every byte of `bytes` bytes of device memory.
///
/// # Safety
/// `stream` is a stream of the current device, and the memory at `address` has so many bytes.
#[cfg(any(feature = "interpose-kernels", feature = "interpose-mistralrs"))]
pub(crate) unsafe fn fill(stream: *mut c_void, address: *mut c_void, byte: u8, bytes: usize) -> Result<()> {
    make_context().map_err(failed("cuCtxSetCurrent"))?;
    // SAFETY: the caller's stream and memory.
    unsafe { sys::cuMemsetD8Async(address as u64, byte, bytes, stream.cast()) }
        .result()
        .map_err(failed("cuMemsetD8Async"))
}

/// Device memory of one call, in the order of its stream: what the stream is given after the end of this value may have the memory. It may be captured.
#[cfg(feature = "interpose-mistralrs")]
pub(crate) struct Scratch {
    address: sys::CUdeviceptr,
    stream: sys::CUstream,
}

#[cfg(feature = "interpose-mistralrs")]
impl Scratch {
    /// # Safety
    /// `stream` is a stream of the current device, and lives as long as the value.
    pub unsafe fn new(stream: *mut c_void, bytes: usize) -> Result<Self> {
        make_context().map_err(failed("cuCtxSetCurrent"))?;
        // SAFETY: the caller's stream.
        let address = unsafe { malloc_async(stream.cast(), bytes) }.map_err(failed("cuMemAllocAsync"))?;
        Ok(Self { address, stream: stream.cast() })
    }

    pub fn address(&self) -> *mut c_void {
        self.address as *mut c_void
    }
}

#[cfg(feature = "interpose-mistralrs")]
impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the memory and the stream of `new`. Where the driver refuses, the memory stays.
        let _ = unsafe { free_async(self.address, self.stream) };
    }
}

/// Gives the thread the context that a call of the CUDA runtime would give: the context of the thread's current device,
/// or of device 0 for a thread without a context.
pub(super) fn make_context() -> std::result::Result<(), DriverError> {
    init()?;
    if ctx::get_current()?.is_some() {
        return Ok(());
    }
    relaxed(|| {
        let device = device::get(0)?;
        // SAFETY: the driver has just given this device; the process keeps its context, as the CUDA runtime does.
        unsafe { ctx::set_current(primary_ctx::retain(device)?) }
    })?
}

/// Makes a call that would otherwise invalidate a capture begun by another thread in global mode.
pub(super) fn relaxed<T>(call: impl FnOnce() -> T) -> std::result::Result<T, DriverError> {
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: `mode` is a valid place to read from and write to.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result()?;
    let result = call();
    // SAFETY: as above.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    Ok(result)
}
