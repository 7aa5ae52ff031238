//! The assignment of workspaces to streams.

use super::{WorkspaceError, MOST_STREAMS};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::ThreadId;

/// A stream: the ordinal of its device, and CUDA's number for the stream, which is unique in the process. A handle is not unique. CUDA
/// gives the handle of a destroyed stream to a new stream, and the handle of the per-thread stream, which candle uses, means a
/// different stream on each thread.
pub(crate) type Stream = (usize, u64);

/// The handle of the per-thread default stream. Handles up to this one are CUDA's own. Where such a handle means a new stream, the new
/// stream belongs to another thread or context, and the previous stream still exists.
pub(crate) const PER_THREAD: usize = 2;

/// Ordinal of the device, handle, and the thread for a handle that means a different stream on each thread.
type Handle = (usize, usize, Option<ThreadId>);

/// The numbers of the streams that have a workspace, by handle. While a stream is captured, only its handle is known.
#[derive(Debug, Default)]
pub(crate) struct Numbers(Mutex<HashMap<Handle, u64>>);

impl Numbers {
    pub fn get(&self, device: usize, handle: usize) -> Option<u64> {
        self.map().get(&Self::key(device, handle)).copied()
    }

    /// Keeps the number of a stream. Returns the number of the destroyed stream that had the handle before.
    pub fn set(&self, device: usize, handle: usize, number: u64) -> Option<u64> {
        let before = self.map().insert(Self::key(device, handle), number);
        before.filter(|before| *before != number && handle > PER_THREAD)
    }

    /// Forgets the per-thread default stream of this thread, which ends.
    pub fn forget_per_thread(&self, device: usize) {
        self.map().remove(&Self::key(device, PER_THREAD));
    }

    fn key(device: usize, handle: usize) -> Handle {
        (device, handle, (handle == PER_THREAD).then(|| std::thread::current().id()))
    }

    fn map(&self) -> MutexGuard<'_, HashMap<Handle, u64>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// In place of a stream's number: all streams of a device beyond the first [`MOST_STREAMS`], which share a workspace.
const LATE: u64 = u64::MAX;

/// Device memory, never freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub address: usize,
    /// The event that a stream records after each use, and that the next stream waits for.
    pub event: usize,
}

/// A workspace of a stream, or of several.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub memory: Memory,
    pub bytes: u64,
    is_shared: bool,
    launching: Mutex<()>,
    /// Whether the event was recorded after the last use.
    is_recorded: AtomicBool,
    /// Whether a graph has the workspace's address.
    is_captured: AtomicBool,
}

impl Workspace {
    fn new(memory: Memory, bytes: u64, is_shared: bool) -> Self {
        // The memory is unused, so there is no use to wait for.
        let (is_recorded, is_captured) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { memory, bytes, is_shared, launching: Mutex::new(()), is_recorded, is_captured }
    }

    /// The lock that a thread holds while it launches the kernels of one product: kernels of another thread between them would
    /// overwrite the data that these kernels pass on.
    pub fn launching(&self) -> MutexGuard<'_, ()> {
        self.launching.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether several streams use the workspace at the same time.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Sets whether the event has been recorded after the latest use.
    pub fn set_recorded(&self, is_recorded: bool) {
        self.is_recorded.store(is_recorded, Ordering::Relaxed);
    }

    /// Notes that a graph has captured the workspace's address.
    pub fn set_captured(&self) {
        self.is_captured.store(true, Ordering::Relaxed);
    }

    /// Whether a graph has the workspace's address.
    pub fn is_captured(&self) -> bool {
        self.is_captured.load(Ordering::Relaxed)
    }

    fn can_be_handed_on(&self) -> bool {
        !self.is_captured() && self.is_recorded.load(Ordering::Relaxed)
    }
}

/// From this number of workspaces of a device on, streams record an event after each use. Recording takes about a microsecond, which
/// programs with a stream or two are spared.
pub(super) const TIGHT: usize = MOST_STREAMS / 2;

/// How [`Streams::workspace`] gets memory.
pub(crate) trait Supply {
    /// New memory.
    fn allocate(&mut self) -> Result<Memory, String>;
    /// Makes the requesting stream wait for the latest use of `memory`, whose stream is gone.
    fn take_over(&mut self, memory: Memory) -> Result<(), String>;
}

/// The workspaces of a process.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    had: Mutex<Had>,
    is_tight: AtomicBool,
}

#[derive(Debug, Default)]
struct Had {
    by_stream: HashMap<Stream, Result<&'static Workspace, WorkspaceError>>,
    /// Workspaces of streams that are gone, by device.
    left: Vec<(usize, &'static Workspace)>,
}

impl Had {
    /// The number of streams of a device with a workspace of their own.
    fn own(&self, device: usize) -> usize {
        let has_own =
            |((owner, number), had): &(&Stream, &Result<_, _>)| *owner == device && *number != LATE && had.is_ok();
        self.by_stream.iter().filter(has_own).count()
    }
}

impl Streams {
    /// The workspace of `stream`: its own, else the workspace of a stream that is gone, else new memory of `bytes`, else the workspace
    /// that the streams beyond the first [`MOST_STREAMS`] share. After a failure, the function tries again only where `again` is true.
    pub fn workspace(
        &self,
        stream: Stream,
        bytes: u64,
        again: bool,
        is_capturing: bool,
        supply: &mut impl Supply,
    ) -> Result<&'static Workspace, WorkspaceError> {
        let mut had = self.had();
        let device = stream.0;
        let left = had.left.iter().position(|(owner, _)| *owner == device);
        let is_late = left.is_none() && !had.by_stream.contains_key(&stream) && had.own(device) >= MOST_STREAMS;
        let stream = if is_late { (device, LATE) } else { stream };
        match had.by_stream.get(&stream) {
            Some(Ok(workspace)) => return Ok(workspace),
            Some(Err(lack)) if !again => return Err(lack.clone()),
            _ if bytes == 0 => return Err(WorkspaceError::Off),
            _ if is_capturing => return Err(WorkspaceError::Capturing),
            _ => {}
        }
        let made = match left {
            Some(left) => {
                let workspace = had.left[left].1;
                supply.take_over(workspace.memory).map_err(WorkspaceError::Failed)?;
                had.left.swap_remove(left);
                Ok(workspace)
            }
            None => {
                let made = supply.allocate().map_err(WorkspaceError::Failed);
                made.map(|memory| &*Box::leak(Box::new(Workspace::new(memory, bytes, is_late))))
            }
        };
        had.by_stream.insert(stream, made.clone());
        if had.own(device) >= TIGHT {
            self.is_tight.store(true, Ordering::Relaxed);
        }
        made
    }

    /// Whether streams have to record their uses, so that workspaces can be handed on.
    pub fn is_tight(&self) -> bool {
        self.is_tight.load(Ordering::Relaxed)
    }

    /// Takes the workspace of a stream that is gone; the stream's last work may still be under way. Another stream can have the
    /// workspace, unless a graph has the address, or no event was recorded after the last use.
    pub fn retire(&self, stream: Stream) {
        let mut had = self.had();
        let workspace = match had.by_stream.get(&stream) {
            Some(Ok(workspace)) if workspace.can_be_handed_on() => Some(*workspace),
            Some(Err(_)) => None,
            _ => return,
        };
        had.by_stream.remove(&stream);
        had.left.extend(workspace.map(|workspace| (stream.0, workspace)));
    }

    fn had(&self) -> MutexGuard<'_, Had> {
        self.had.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
