//! Which stream has which workspace.

use super::{Lack, MOST_STREAMS};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::thread::ThreadId;

/// A stream: ordinal of its device, and CUDA's number for it. No two streams of a process ever have the same, whereas a handle
/// is used again once its stream is destroyed, and that of the per-thread stream, which candle takes, means another one on
/// each thread.
pub(crate) type Stream = (usize, u64);

/// The handle of the per-thread default stream.
const PER_THREAD: usize = 2;

/// Ordinal of the device, handle, and the thread where the handle means another stream on each.
type Handle = (usize, usize, Option<ThreadId>);

/// The numbers of the streams that have a workspace, by handle: what is known of a stream while it is captured.
#[derive(Debug, Default)]
pub(crate) struct Numbers(Mutex<HashMap<Handle, u64>>);

impl Numbers {
    pub fn get(&self, device: usize, handle: usize) -> Option<u64> {
        self.map().get(&Self::key(device, handle)).copied()
    }

    pub fn set(&self, device: usize, handle: usize, number: u64) {
        self.map().insert(Self::key(device, handle), number);
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
    /// Where several streams share it, what each of them waits for and then records; 0 of one that belongs to a stream.
    pub event: usize,
}

/// What a stream has.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub memory: Memory,
    pub bytes: u64,
    launching: Mutex<()>,
}

impl Workspace {
    /// Held while the kernels of one product are put into the stream: those of another thread between them would overwrite
    /// what they pass on.
    pub fn launching(&self) -> MutexGuard<'_, ()> {
        self.launching.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether several streams use it.
    pub fn is_shared(&self) -> bool {
        self.memory.event != 0
    }
}

/// What the streams of a process have.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<HashMap<Stream, Result<&'static Workspace, Lack>>>);

impl Streams {
    /// What `stream` has, or the `bytes` that `allocate` gives it, or those that it shares with other late ones (`true`). Where
    /// that failed once it is not tried for each product again, but for `again`.
    pub fn workspace(
        &self,
        stream: Stream,
        bytes: u64,
        again: bool,
        is_capturing: bool,
        allocate: impl FnOnce(bool) -> Result<Memory, String>,
    ) -> Result<&'static Workspace, Lack> {
        let mut streams = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let device = stream.0;
        let has_own =
            |((owner, number), had): &(&Stream, &Result<_, _>)| *owner == device && *number != LATE && had.is_ok();
        let is_late = !streams.contains_key(&stream) && streams.iter().filter(has_own).count() >= MOST_STREAMS;
        let stream = if is_late { (device, LATE) } else { stream };
        match streams.get(&stream) {
            Some(Ok(workspace)) => return Ok(workspace),
            Some(Err(lack)) if !again => return Err(lack.clone()),
            _ if bytes == 0 => return Err(Lack::Off),
            _ if is_capturing => return Err(Lack::Capturing),
            _ => {}
        }
        let made = allocate(is_late).map_err(Lack::Failed);
        let made = made.map(|memory| &*Box::leak(Box::new(Workspace { memory, bytes, launching: Mutex::new(()) })));
        streams.insert(stream, made.clone());
        made
    }
}
