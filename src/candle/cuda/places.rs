//! The addresses of tensors that a launch reads and writes.

use crate::candle::tensors::key;
use ::candle::cuda_backend::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use ::candle::cuda_backend::{CudaStorageSlice, WrapErr};
use ::candle::{bail, CpuStorage, CudaDevice, CudaStorage, InplaceOp1, Layout, Result, Storage, Tensor};
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;

/// A tensor of a launch; none: a null pointer.
#[derive(Clone, Copy)]
pub(super) enum Use<'a> {
    Read(Option<&'a Tensor>),
    Write(Option<&'a Tensor>),
}

impl<'a> Use<'a> {
    fn tensor(self) -> Option<&'a Tensor> {
        match self {
            Self::Read(tensor) | Self::Write(tensor) => tensor,
        }
    }
}

/// A storage among those of a launch.
#[derive(Clone, Copy)]
struct Held<'a> {
    key: usize,
    tensor: &'a Tensor,
    writes: bool,
    base: u64,
}

/// Calls `launch` with the addresses of the tensors' first numbers and the device's stream. Until it returns, the stream runs behind all other users of the
/// memory. Tensors may share storage.
pub(super) fn with<const N: usize, E>(
    device: &CudaDevice,
    tensors: [Use; N],
    launch: impl FnOnce([*mut c_void; N], *mut c_void) -> std::result::Result<(), E>,
) -> Result<()>
where
    ::candle::Error: From<E>,
{
    let stream = device.cuda_stream();
    let keys = tensors.map(|of| of.tensor().map(key));
    let mut list: [Option<Held>; N] = [None; N];
    for (of, key) in tensors.into_iter().zip(keys) {
        let (Some(tensor), Some(key)) = (of.tensor(), key) else { continue };
        let writes = matches!(of, Use::Write(_));
        match list.iter_mut().find(|held| held.is_none_or(|held| held.key == key)) {
            Some(Some(held)) if writes && !held.writes => (held.writes, held.tensor) = (true, tensor),
            Some(place) if place.is_none() => *place = Some(Held { key, tensor, writes, base: 0 }),
            _ => {}
        }
    }
    // In one order on all threads, so that none waits for another that waits for it.
    list.sort_unstable_by_key(|held| held.map_or(usize::MAX, |held| held.key));
    let mut launch = Some(launch);
    hold(&mut list, 0, &stream, &mut |list| {
        let addresses = std::array::from_fn(|i| {
            let held = list.iter().flatten().find(|held| Some(held.key) == keys[i]);
            held.zip(tensors[i].tensor()).map_or(std::ptr::null_mut(), |(held, tensor)| {
                let offset = tensor.layout().start_offset() * tensor.dtype().size_in_bytes();
                (held.base + offset as u64) as *mut c_void
            })
        });
        stream.context().bind_to_thread().w()?;
        launch.take().map_or(Ok(()), |launch| launch(addresses, stream.cu_stream().cast()))?;
        Ok(())
    })
}

type Body<'b> = &'b mut dyn FnMut(&[Option<Held>]) -> Result<()>;

/// Locks the storages from place `at` on, one within the other.
fn hold(list: &mut [Option<Held>], at: usize, stream: &Arc<CudaStream>, body: Body) -> Result<()> {
    let Some(held) = list.get(at).copied().flatten() else { return body(list) };
    let mut go_on = |base: u64| {
        list[at] = Some(Held { base, ..held });
        hold(list, at + 1, stream, body)
    };
    if held.writes {
        change(held.tensor, |storage| {
            let (base, _guard) = pointer_mut(storage, stream)?;
            go_on(base)
        })
    } else {
        let (storage, _) = held.tensor.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else { bail!("a tensor of a launch on a GPU is not on a GPU") };
        let (base, _guard) = pointer(storage, stream)?;
        go_on(base)
    }
}

/// Changes the storage of a tensor on a GPU in place.
fn change(tensor: &Tensor, with: impl FnOnce(&mut CudaStorage) -> Result<()>) -> Result<()> {
    struct Change<F>(Cell<Option<F>>);
    impl<F: FnOnce(&mut CudaStorage) -> Result<()>> InplaceOp1 for Change<F> {
        fn name(&self) -> &'static str {
            "layer"
        }

        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
            bail!("a tensor of a launch on a GPU is not on a GPU")
        }

        fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
            self.0.take().map_or(Ok(()), |with| with(storage))
        }
    }
    tensor.inplace_op1(&Change(Cell::new(Some(with))))
}

/// The address of a storage, of the types that products and layers have.
macro_rules! address {
    ($slice:expr, $function:ident, $stream:expr) => {
        Ok(match $slice {
            CudaStorageSlice::F16(slice) => slice.$function($stream),
            CudaStorageSlice::BF16(slice) => slice.$function($stream),
            CudaStorageSlice::F32(slice) => slice.$function($stream),
            CudaStorageSlice::F64(slice) => slice.$function($stream),
            CudaStorageSlice::F8E4M3(slice) => slice.$function($stream),
            CudaStorageSlice::I32(slice) => slice.$function($stream),
            CudaStorageSlice::U32(slice) => slice.$function($stream),
            CudaStorageSlice::U8(slice) => slice.$function($stream),
            _ => bail!("a tensor of a launch has a type that no kernel has"),
        })
    };
}

fn pointer<'a>(storage: &'a CudaStorage, stream: &'a Arc<CudaStream>) -> Result<(u64, SyncOnDrop<'a>)> {
    address!(&storage.slice, device_ptr, stream)
}

fn pointer_mut<'a>(storage: &'a mut CudaStorage, stream: &'a Arc<CudaStream>) -> Result<(u64, SyncOnDrop<'a>)> {
    address!(&mut storage.slice, device_ptr_mut, stream)
}
