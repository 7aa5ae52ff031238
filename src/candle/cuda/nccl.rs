//! Ranks that are GPUs, which NCCL joins.

use super::places::{with, Use};
use ::candle::cuda_backend::cudarc::nccl::{result, sys};
use ::candle::{bail, CudaDevice, DType, Error, Result, Tensor};
use std::ffi::c_char;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the ranks of one group have in common: one of them makes it, and the others get its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Id(sys::ncclUniqueId);

impl Id {
    /// The id of a new group. The process that makes it has to live until all ranks have joined.
    ///
    /// # Errors
    /// NCCL's errors.
    pub fn new() -> Result<Self> {
        Ok(Self(result::get_uniqueid().map_err(failed)?))
    }

    /// The bytes, for other processes.
    pub fn to_bytes(self) -> [u8; 128] {
        self.0.internal.map(|byte| byte as u8)
    }

    /// The id with these bytes.
    pub fn from_bytes(bytes: [u8; 128]) -> Self {
        Self(sys::ncclUniqueId { internal: bytes.map(|byte| byte as c_char) })
    }
}

/// A rank.
#[derive(Debug)]
pub(in crate::candle) struct Cards {
    pub rank: usize,
    pub size: usize,
    /// The number of its GPU.
    gpu: usize,
    /// Null once it was aborted.
    communicator: AtomicPtr<sys::ncclComm>,
    /// NCCL takes a communicator's calls of any thread, one at a time; but for an abort, which ends one that waits.
    calls: Mutex<()>,
}

impl Cards {
    pub fn join(device: &CudaDevice, rank: usize, size: usize, Id(id): Id) -> Result<Self> {
        let stream = device.cuda_stream();
        stream.context().bind_to_thread().map_err(Error::wrap)?;
        let mut communicator = ptr::null_mut();
        // SAFETY: the device is the thread's; the communicator is written.
        unsafe { result::comm_init_rank(&mut communicator, size as i32, id, rank as i32) }.map_err(failed)?;
        let gpu = stream.context().ordinal();
        Ok(Self { rank, size, gpu, communicator: AtomicPtr::new(communicator), calls: Mutex::default() })
    }

    /// The communicator for a call with tensors on a device, until which others wait.
    fn on(&self, device: &CudaDevice) -> Result<(sys::ncclComm_t, MutexGuard<'_, ()>)> {
        let gpu = device.cuda_stream().context().ordinal();
        if gpu != self.gpu {
            bail!("Group: the tensor is on GPU {gpu}; expected GPU {}, that of rank {}", self.gpu, self.rank);
        }
        let call = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((self.communicator()?, call))
    }

    fn communicator(&self) -> Result<sys::ncclComm_t> {
        let communicator = self.communicator.load(Ordering::Acquire);
        if communicator.is_null() {
            bail!("rank {}: the group was aborted", self.rank);
        }
        Ok(communicator)
    }

    pub fn check(&self) -> Result<()> {
        self.communicator().map(drop)
    }

    pub fn abort(&self) {
        let communicator = self.communicator.swap(ptr::null_mut(), Ordering::AcqRel);
        if !communicator.is_null() {
            // SAFETY: NCCL ends what other threads wait for in it. An error leaves memory behind, and nothing can be done about it.
            let _ = unsafe { result::comm_abort(communicator) };
        }
    }

    pub fn all_reduce(&self, device: &CudaDevice, x: &Tensor) -> Result<()> {
        let (count, format, sum) = (x.elem_count(), format(x.dtype()), sys::ncclRedOp_t::ncclSum);
        let (communicator, _call) = self.on(device)?;
        with(device, [Use::Write(Some(x))], |[x], stream| {
            // SAFETY: the tensor has so many numbers, and its storage is held.
            unsafe { result::all_reduce(x, x, count, format, sum, communicator, stream.cast()) }.map_err(failed)?;
            Ok::<(), Error>(())
        })
    }

    pub fn all_gather(&self, device: &CudaDevice, part: &Tensor, all: &Tensor) -> Result<()> {
        let (count, format) = (part.elem_count(), format(part.dtype()));
        let (communicator, _call) = self.on(device)?;
        with(device, [Use::Read(Some(part)), Use::Write(Some(all))], |[part, all], stream| {
            // SAFETY: the result has as many numbers for each rank as the part has, and their storage is held.
            unsafe { result::all_gather(part, all, count, format, communicator, stream.cast()) }.map_err(failed)?;
            Ok::<(), Error>(())
        })
    }
}

impl Drop for Cards {
    fn drop(&mut self) {
        let communicator = *self.communicator.get_mut();
        if !communicator.is_null() {
            // SAFETY: nobody else has it. An error leaves memory behind, and nothing can be done about it.
            let _ = unsafe { result::comm_destroy(communicator) };
        }
    }
}

fn format(dtype: DType) -> sys::ncclDataType_t {
    match dtype {
        DType::F16 => sys::ncclDataType_t::ncclFloat16,
        DType::BF16 => sys::ncclDataType_t::ncclBfloat16,
        _ => sys::ncclDataType_t::ncclFloat32,
    }
}

fn failed(error: result::NcclError) -> Error {
    Error::msg(format!("NCCL: {:?}; NCCL_DEBUG=WARN says more", error.0))
}
