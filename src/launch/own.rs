//! The workspace of a stream: found again without a lock by each thread that uses the stream.

use super::{check, current_device, last_cuda_error};
use crate::error::Result;
use crate::ffi;
use crate::workspace::streams::{Memory, Numbers, Stream, Streams, Workspace};
use crate::workspace::{self, Lack, MOST_STREAMS};
use once_cell::sync::Lazy;
use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::null_mut;

thread_local! {
    /// Those that this thread has used last; what a stream has it keeps.
    static USED: RefCell<Vec<(Stream, &'static Workspace)>> = const { RefCell::new(Vec::new()) };
}

/// The workspace that a product on a stream of the current device can use now, allocated if there is none yet and that is possible.
///
/// # Safety
/// `stream` is one of the current device.
pub(super) unsafe fn workspace(
    stream: *mut c_void,
    again: bool,
) -> Result<std::result::Result<&'static Workspace, Lack>> {
    static STREAMS: Lazy<Streams> = Lazy::new(Streams::default);
    static NUMBERS: Lazy<Numbers> = Lazy::new(Numbers::default);
    let bytes = workspace::bytes()?;
    if bytes == 0 {
        return Ok(Err(Lack::Off));
    }
    // SAFETY: the caller's stream.
    let is_capturing = unsafe { ffi::tg_stream_is_capturing(stream) } != 0;
    let device = current_device()?;
    // CUDA does not tell the number of a stream that is being captured, and asking for it ends the capture.
    let number = if is_capturing {
        NUMBERS.get(device, stream as usize)
    } else {
        let mut number = 0;
        // SAFETY: the caller's stream, and a valid place to write to.
        check("cudaStreamGetId", unsafe { ffi::tg_stream_id(stream, &mut number) })?;
        Some(number)
    };
    let Some(number) = number else { return Ok(Err(Lack::Capturing)) };
    let key = (device, number);
    let used = USED.with_borrow(|used| used.iter().find(|(stream, _)| *stream == key).map(|(_, workspace)| *workspace));
    let found = match used {
        Some(workspace) => Ok(workspace),
        None => STREAMS.workspace(key, bytes, again, is_capturing, |shared| allocate(bytes, shared)),
    };
    Ok(match found {
        // A graph would have to wait for what is no part of it.
        Ok(workspace) if workspace.is_shared() && is_capturing => Err(Lack::ManyStreams),
        Ok(workspace) if used.is_none() => {
            NUMBERS.set(device, stream as usize, number);
            USED.with_borrow_mut(|used| {
                used.truncate(MOST_STREAMS);
                used.insert(0, (key, workspace));
            });
            Ok(workspace)
        }
        found => found,
    })
}

fn allocate(bytes: u64, shared: bool) -> std::result::Result<Memory, String> {
    let (mut pointer, mut event) = (null_mut(), null_mut());
    // SAFETY: valid places to write to.
    let made = unsafe {
        match ffi::tg_allocate(bytes, &mut pointer) {
            ffi::tg_status::TG_OK if shared => ffi::tg_event(&mut event),
            status => status,
        }
    };
    match made {
        ffi::tg_status::TG_OK => Ok(Memory { address: pointer as usize, event: event as usize }),
        _ => Err(last_cuda_error()),
    }
}

/// Puts the kernels of one product into a stream: nobody else's between them, and where the workspace is shared, after those
/// of other streams.
///
/// # Safety
/// `stream` is one of the current device, and `workspace` its own or the one that it shares.
pub(super) unsafe fn in_turn(
    workspace: &Workspace,
    stream: *mut c_void,
    launch: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let _launching = workspace.launching();
    if !workspace.is_shared() {
        return launch();
    }
    let event = workspace.memory.event as *mut c_void;
    // SAFETY: the event is never destroyed; the stream is as the caller promises.
    check("cudaStreamWaitEvent", unsafe { ffi::tg_wait(stream, event) })?;
    let launched = launch();
    // Also after a failure: some kernels may run.
    // SAFETY: as above.
    check("cudaEventRecord", unsafe { ffi::tg_record(stream, event) })?;
    launched
}
