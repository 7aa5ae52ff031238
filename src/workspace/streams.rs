//! Which stream has which workspace.

use super::{WorkspaceError, MOST_STREAMS};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::ThreadId;

/// A stream: ordinal of its device, and CUDA's number for it. No two streams of a process ever have the same, whereas a handle
/// is used again once its stream is destroyed, and that of the per-thread stream, which candle takes, means another one on
/// each thread.
pub(crate) type Stream = (usize, u64);

/// The handle of the per-thread default stream. Up to here handles are CUDA's own: another stream that they mean is one of another
/// thread or context, and the one before is not gone.
pub(crate) const PER_THREAD: usize = 2;

/// Ordinal of the device, handle, and the thread where the handle means another stream on each.
type Handle = (usize, usize, Option<ThreadId>);

/// The numbers of the streams that have a workspace, by handle: what is known of a stream while it is captured.
#[derive(Debug, Default)]
pub(crate) struct Numbers(Mutex<HashMap<Handle, u64>>);

impl Numbers {
    pub fn get(&self, device: usize, handle: usize) -> Option<u64> {
        self.map().get(&Self::key(device, handle)).copied()
    }

    /// Keeps the number of a stream. Returns that of the stream which had the handle before, and is gone.
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

/// In place of the number of a stream: all of a device that came too late for a workspace of their own.
const LATE: u64 = u64::MAX;

/// Device memory, never freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub address: usize,
    /// What a stream records after its use, for the next stream to wait for.
    pub event: usize,
}

/// What a stream has.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub memory: Memory,
    pub bytes: u64,
    is_shared: bool,
    launching: Mutex<()>,
    /// Whether the event says when the last use ends.
    is_recorded: AtomicBool,
    /// Whether a graph has its address, and keeps it.
    is_captured: AtomicBool,
}

impl Workspace {
    fn new(memory: Memory, bytes: u64, is_shared: bool) -> Self {
        // Nobody has used it.
        let (is_recorded, is_captured) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { memory, bytes, is_shared, launching: Mutex::new(()), is_recorded, is_captured }
    }

    /// Held while the kernels of one product are put into the stream: those of another thread between them would overwrite
    /// what they pass on.
    pub fn launching(&self) -> MutexGuard<'_, ()> {
        self.launching.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether several streams use it at a time.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Whether the event has been recorded after the latest use.
    pub fn set_recorded(&self, is_recorded: bool) {
        self.is_recorded.store(is_recorded, Ordering::Relaxed);
    }

    /// A graph captures its address.
    pub fn set_captured(&self) {
        self.is_captured.store(true, Ordering::Relaxed);
    }

    /// Whether a graph has its address.
    pub fn is_captured(&self) -> bool {
        self.is_captured.load(Ordering::Relaxed)
    }

    fn can_be_handed_on(&self) -> bool {
        !self.is_captured() && self.is_recorded.load(Ordering::Relaxed)
    }
}

/// From this number of workspaces of a device on, streams record the end of each use: about a microsecond, which the many programs
/// with a stream or two need not spend.
pub(super) const TIGHT: usize = MOST_STREAMS / 2;

/// How [`Streams::workspace`] gets memory.
pub(crate) trait Supply {
    /// New memory.
    fn allocate(&mut self) -> Result<Memory, String>;
    /// Has the stream that asks wait for the latest use of memory whose stream is gone.
    fn take_over(&mut self, memory: Memory) -> Result<(), String>;
}

/// What the streams of a process have.
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
    /// How many streams of a device have one of their own.
    fn own(&self, device: usize) -> usize {
        let has_own =
            |((owner, number), had): &(&Stream, &Result<_, _>)| *owner == device && *number != LATE && had.is_ok();
        self.by_stream.iter().filter(has_own).count()
    }
}

impl Streams {
    /// What `stream` has, or what a stream that is gone has left, or new memory of `bytes`, or what it shares with other late ones.
    /// Where that failed once it is not tried for each product again, but for `again`.
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

    /// Whether uses are to be recorded, so that workspaces can be handed on.
    pub fn is_tight(&self) -> bool {
        self.is_tight.load(Ordering::Relaxed)
    }

    /// A stream is gone, though its last work may still be under way. Another one can have its workspace, unless a graph has the
    /// address, or nothing says when that work ends.
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
