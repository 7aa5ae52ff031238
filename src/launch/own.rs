//! The workspace of a stream. Each thread that uses the stream finds the workspace again without a lock.

use super::device::{current_device, failed, text};
use super::stream;
use crate::error::Result;
use crate::workspace::streams::{Memory, Numbers, Stream, Streams, Supply, Workspace, PER_THREAD};
use crate::workspace::{self, WorkspaceError, MOST_STREAMS};
use once_cell::sync::Lazy;
use std::cell::RefCell;
use std::ffi::c_void;

static STREAMS: Lazy<Streams> = Lazy::new(Streams::default);
static NUMBERS: Lazy<Numbers> = Lazy::new(Numbers::default);

thread_local! {
    static USED: RefCell<Used> = const { RefCell::new(Used { last: Vec::new(), per_thread: Vec::new() }) };
}

/// The streams and workspaces that a thread has used.
struct Used {
    /// The last workspaces. A stream keeps its workspace.
    last: Vec<(Stream, &'static Workspace)>,
    /// The thread's own streams, one for each device and context. These streams end with the thread.
    per_thread: Vec<Stream>,
}

impl Used {
    fn workspace_of(&self, stream: Stream) -> Option<&'static Workspace> {
        self.last.iter().find(|(used, _)| *used == stream).map(|(_, workspace)| *workspace)
    }

    fn keep(&mut self, stream: Stream, workspace: &'static Workspace) {
        self.last.truncate(MOST_STREAMS);
        self.last.insert(0, (stream, workspace));
    }

    fn ends_with(&mut self, stream: Stream) {
        if !self.per_thread.contains(&stream) {
            self.per_thread.push(stream);
        }
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        for stream in &self.per_thread {
            NUMBERS.forget_per_thread(stream.0);
            STREAMS.retire(*stream);
        }
    }
}

/// Memory for one stream.
struct OnStream {
    stream: *mut c_void,
    bytes: u64,
}

impl Supply for OnStream {
    fn allocate(&mut self) -> std::result::Result<Memory, String> {
        stream::allocate(self.bytes).map_err(text)
    }

    fn take_over(&mut self, memory: Memory) -> std::result::Result<(), String> {
        // SAFETY: the stream is a stream of the current device, by the contract of `workspace`.
        unsafe { stream::wait(self.stream, memory.event) }.map_err(text)
    }
}

/// The workspace that a product on a stream of the current device can use now. The workspace is allocated if there is
/// none yet and allocation is possible.
///
/// # Safety
/// `stream` is one of the current device.
pub(super) unsafe fn workspace(
    stream: *mut c_void,
    again: bool,
) -> Result<std::result::Result<&'static Workspace, WorkspaceError>> {
    let bytes = workspace::bytes()?;
    if bytes == 0 {
        return Ok(Err(WorkspaceError::Off));
    }
    // SAFETY: the caller's stream.
    let is_capturing = unsafe { stream::is_capturing(stream) };
    let device = current_device()?;
    // CUDA does not give the number of a stream that is being captured, and a request for the number ends the capture.
    // The handle may be the handle of a destroyed stream: the mark tells the two apart.
    let number = if is_capturing {
        // SAFETY: the caller's stream.
        NUMBERS.get(device, stream as usize).filter(|&known| unsafe { stream::may_have_mark(stream, known) })
    } else {
        // SAFETY: the caller's stream; `is_capturing` gave the thread a context.
        Some(unsafe { stream::id(stream)? })
    };
    let Some(number) = number else { return Ok(Err(WorkspaceError::Capturing)) };
    let key = (device, number);
    let used = USED.with_borrow(|used| used.workspace_of(key));
    // A workspace for this stream alone may be free by now.
    let used = used.filter(|workspace| !(again && workspace.is_shared()));
    let found = match used {
        Some(workspace) => Ok(workspace),
        None => first_use(key, stream, bytes, again, is_capturing),
    };
    Ok(match found {
        // The graph would have to wait for work outside the graph.
        Ok(workspace) if workspace.is_shared() && is_capturing => Err(WorkspaceError::ManyStreams),
        Ok(workspace) => {
            if is_capturing {
                workspace.set_captured();
            }
            Ok(workspace)
        }
        lack => lack,
    })
}

/// The workspace of a stream that is not among the thread's last streams.
fn first_use(
    key: Stream,
    stream: *mut c_void,
    bytes: u64,
    again: bool,
    is_capturing: bool,
) -> std::result::Result<&'static Workspace, WorkspaceError> {
    let (device, number) = key;
    let handle = stream as usize;
    if !is_capturing {
        if let Some(gone) = NUMBERS.set(device, handle, number) {
            STREAMS.retire((device, gone));
        }
        // SAFETY: the caller's stream.
        unsafe { stream::set_mark(stream, number) }.map_err(|e| WorkspaceError::Failed(e.to_string()))?;
        if handle == PER_THREAD {
            USED.with_borrow_mut(|used| used.ends_with(key));
        }
    }
    let workspace = STREAMS.workspace(key, bytes, again, is_capturing, &mut OnStream { stream, bytes })?;
    USED.with_borrow_mut(|used| used.keep(key, workspace));
    Ok(workspace)
}

/// Puts the kernels of one product into a stream. No kernels of another thread come between these kernels. Where the
/// workspace is shared, the kernels run after the kernels of other streams.
///
/// # Safety
/// `stream` is a stream of the current device, and `workspace` is the stream's own workspace or the workspace that the
/// stream shares.
pub(super) unsafe fn in_turn(
    workspace: &Workspace,
    stream: *mut c_void,
    launch: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let _launching = workspace.launching();
    let event = workspace.memory.event;
    if workspace.is_shared() {
        // SAFETY: the event of a workspace; the stream is as the caller promises.
        unsafe { stream::wait(stream, event) }.map_err(failed("cuStreamWaitEvent"))?;
    }
    // A graph's workspace is never handed on, and work outside a graph cannot wait for an event recorded in the graph.
    let is_recorded = workspace.is_shared() || (STREAMS.is_tight() && !workspace.is_captured());
    workspace.set_recorded(false);
    let launched = launch();
    if is_recorded {
        // The event is recorded after a failure too: some kernels may run.
        // SAFETY: as above.
        unsafe { stream::record(stream, event) }.map_err(failed("cuEventRecord"))?;
        workspace.set_recorded(true);
    }
    launched
}
