//! What a step tells the host, on its way there while the next step runs.

#[cfg(feature = "cuda")]
use candle::cuda_backend::cudarc::driver::{CudaEvent, PinnedHostSlice};
#[cfg(feature = "cuda")]
use candle::cuda_backend::WrapErr;
#[cfg(feature = "cuda")]
use candle::{bail, Storage};
use candle::{Device, Result, Tensor};

/// The way of a list in u32 to the host. At most two letters are on their way.
#[derive(Debug)]
pub(crate) enum Mail {
    /// The list is on the host.
    Host,
    /// Pinned memory, which the stream copies to. A page goes when what was launched for it has ended.
    #[cfg(feature = "cuda")]
    Pinned { pages: Box<[Page; 2]>, turn: usize },
}

/// A list that was sent.
#[derive(Debug)]
pub(crate) enum Letter {
    Here(Vec<u32>),
    #[cfg(feature = "cuda")]
    Page(usize),
}

impl Mail {
    /// For lists of so many numbers.
    pub fn new(count: usize, device: &Device) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = device {
            let pages = Box::new([Page::new(count, device)?, Page::new(count, device)?]);
            return Ok(Self::Pinned { pages, turn: 0 });
        }
        let _ = (count, device);
        Ok(Self::Host)
    }

    /// Sends the list as what was launched before leaves it.
    pub fn send(&mut self, list: &Tensor) -> Result<Letter> {
        match self {
            Self::Host => Ok(Letter::Here(list.to_vec1()?)),
            #[cfg(feature = "cuda")]
            Self::Pinned { pages, turn } => {
                *turn = 1 - *turn;
                pages[*turn].fill(list)?;
                Ok(Letter::Page(*turn))
            }
        }
    }

    /// Waits for a letter.
    pub fn read(&self, letter: Letter) -> Result<Vec<u32>> {
        match (self, letter) {
            (_, Letter::Here(list)) => Ok(list),
            #[cfg(feature = "cuda")]
            (Self::Pinned { pages, .. }, Letter::Page(page)) => pages[page].read(),
            #[cfg(feature = "cuda")]
            (Self::Host, Letter::Page(_)) => bail!("a letter of another mail"),
        }
    }
}

/// Pinned memory, and an event behind the last copy to it. The event of the slice itself is not recorded where candle's device has one stream.
#[cfg(feature = "cuda")]
pub(crate) struct Page {
    list: PinnedHostSlice<u32>,
    copied: CudaEvent,
}

#[cfg(feature = "cuda")]
impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Page({})", self.list.len())
    }
}

#[cfg(feature = "cuda")]
impl Page {
    fn new(count: usize, device: &candle::CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        // SAFETY: the host reads what a copy has written. Memory that the host reads is not write-combined: no flag.
        let list = unsafe { stream.context().alloc_pinned_with_flags(count, 0) }.w()?;
        Ok(Self { list, copied: stream.record_event(None).w()? })
    }

    fn fill(&mut self, list: &Tensor) -> Result<()> {
        let (storage, layout) = list.storage_and_layout();
        let (Storage::Cuda(storage), Some((first, end))) = (&*storage, layout.contiguous_offsets()) else {
            bail!("a list that is not contiguous on a GPU")
        };
        let list = storage.as_cuda_slice::<u32>()?.slice(first..end);
        let stream = storage.device.cuda_stream();
        stream.memcpy_dtoh(&list, &mut self.list).w()?;
        self.copied.record(&stream).w()
    }

    fn read(&self) -> Result<Vec<u32>> {
        self.copied.synchronize().w()?;
        Ok(self.list.as_slice().w()?.to_vec())
    }
}

#[cfg(feature = "cuda")]
impl Drop for Page {
    fn drop(&mut self) {
        // The copy writes to memory that goes now. An error is an earlier launch's, which its caller gets.
        let _ = self.copied.synchronize();
    }
}
