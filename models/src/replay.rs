//! Launches of the same work again and again: one by one at first, then as a CUDA graph.
//!
//! A graph has the addresses of the memory that its kernels read and write, and the stream's workspace. It is launched on the thread that captured it: candle's
//! stream means another one on each thread.

#[cfg(feature = "cuda")]
use candle::cuda_backend::{cudarc::driver, WrapErr};
#[cfg(feature = "cuda")]
use candle::{bail, CudaDevice};
use candle::{Device, Result};
#[cfg(feature = "cuda")]
use std::thread::ThreadId;

/// The way in which work is launched.
#[derive(Debug)]
pub(crate) enum Replay {
    /// One kernel after the other.
    Eager,
    /// So, too, once: the first launch on a thread loads kernels and allocates the stream's workspace, which no capture can.
    #[cfg(feature = "cuda")]
    First,
    /// The next launch is captured.
    #[cfg(feature = "cuda")]
    Next,
    #[cfg(feature = "cuda")]
    Captured(Graph),
}

impl Replay {
    /// `captures`: whether work on a GPU becomes a graph.
    pub fn new(captures: bool, device: &Device) -> Self {
        #[cfg(feature = "cuda")]
        if captures && device.is_cuda() {
            return Self::First;
        }
        let _ = (captures, device);
        Self::Eager
    }

    pub fn is_captured(&self) -> bool {
        #[cfg(feature = "cuda")]
        if matches!(self, Self::Captured(_)) {
            return true;
        }
        false
    }

    /// Launches the work, which is the same in all calls. A capture that fails is told on stderr, once in a process, and the work is not captured again.
    pub fn launch(&mut self, device: &Device, work: impl Fn() -> Result<()>) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = device {
            return self.launch_on(device, work);
        }
        let _ = device;
        work()
    }

    #[cfg(feature = "cuda")]
    fn launch_on(&mut self, device: &CudaDevice, work: impl Fn() -> Result<()>) -> Result<()> {
        match self {
            Self::Eager => return work(),
            Self::Captured(graph) if graph.thread == std::thread::current().id() => return graph.launch(),
            Self::First | Self::Captured(_) => {
                *self = Self::Next;
                return work();
            }
            Self::Next => {}
        }
        match Graph::capture(device, &work) {
            Ok(graph) => {
                graph.launch()?;
                *self = Self::Captured(graph);
                Ok(())
            }
            Err(error) => {
                tell(&error);
                *self = Self::Eager;
                work()
            }
        }
    }
}

#[cfg(feature = "cuda")]
fn tell(error: &candle::Error) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        eprintln!("candle-tilegemm-models: no CUDA graph of a step: {error}; steps go on without, and slower (TILEGEMM_GRAPHS=off does not try)");
    });
}

/// An executable graph, and the thread whose stream it was captured on.
#[cfg(feature = "cuda")]
pub(crate) struct Graph {
    graph: driver::CudaGraph,
    thread: ThreadId,
}

// SAFETY: CUDA's graphs may be used on any thread, by one thread at a time. A shared reference gives nobody a launch: that takes `&mut Replay`.
#[cfg(feature = "cuda")]
unsafe impl Send for Graph {}
#[cfg(feature = "cuda")]
unsafe impl Sync for Graph {}

#[cfg(feature = "cuda")]
impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Graph").field("thread", &self.thread).finish_non_exhaustive()
    }
}

#[cfg(feature = "cuda")]
impl Graph {
    /// The graph of what `work` launches on the device's stream. Nothing runs.
    fn capture(device: &CudaDevice, work: impl Fn() -> Result<()>) -> Result<Self> {
        use driver::sys::CUgraphInstantiate_flags as Flags;
        use driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THREAD_LOCAL;
        let stream = device.cuda_stream();
        let captured = {
            let _untracked = Untracked::new(stream.context());
            stream.begin_capture(THREAD_LOCAL).w()?;
            let worked = work();
            // Tensors that live in the work alone are nodes of the graph, which frees those that are left when it is launched again.
            let graph = stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            worked.and_then(|()| graph.w())
        };
        if captured.is_err() {
            // What failed in a drop is told at the next call; it belongs to this error.
            let _ = stream.context().check_err();
        }
        match captured? {
            Some(graph) => Ok(Self { graph, thread: std::thread::current().id() }),
            None => bail!("nothing was captured"),
        }
    }

    fn launch(&self) -> Result<()> {
        self.graph.launch().w()
    }
}

/// While it lives, tensors neither record events nor wait for them: no event from outside may be in a graph.
#[cfg(feature = "cuda")]
struct Untracked<'a>(Option<&'a driver::CudaContext>);

#[cfg(feature = "cuda")]
impl<'a> Untracked<'a> {
    fn new(context: &'a driver::CudaContext) -> Self {
        let tracks = context.is_managing_stream_synchronization();
        if tracks {
            // SAFETY: what is captured reads and writes tensors on candle's stream alone, in the order of the launches.
            unsafe { context.disable_event_tracking() };
        }
        Self(tracks.then_some(context))
    }
}

#[cfg(feature = "cuda")]
impl Drop for Untracked<'_> {
    fn drop(&mut self) {
        if let Some(context) = self.0 {
            // SAFETY: tensors that were made in between have gone, or are used on candle's stream alone.
            unsafe { context.enable_event_tracking() };
        }
    }
}
