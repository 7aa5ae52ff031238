//! The CUDA modules that hold the kernels. A launch of a kernel whose module is not loaded would load it: that invalidates a capture in
//! global mode of any thread, and where device memory is full, the kernel fails from then on, also when there is memory again. So
//! modules are loaded here, before the first launch, and where memory is full no load is tried.

use super::device::{check, current_device, failed, MOST_DEVICES};
use super::library::{library, linked};
use super::stream;
use crate::dispatch::Planned;
use crate::error::{Error, Result};
use crate::family::KERNELS;
use crate::ffi;
use crate::kernel::{KernelDesc, Role};
use cudarc::driver::result::mem_get_info;
use once_cell::sync::OnceCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of device memory that have to be free for a load: the largest module has some 4 MiB, and kernels with a stack need memory for
/// all threads that fit the device.
const LEAST_FREE: usize = 64 << 20;

/// Kernels beside the products.
#[derive(Debug, Clone, Copy)]
pub(super) enum Beside {
    Elementwise,
    #[cfg(all(feature = "experts", any(feature = "candle", feature = "interpose-mistralrs")))]
    Experts,
    #[cfg(feature = "layers")]
    Layers,
}

/// Whether the module of each kernel of the table is loaded on a device, and of the kernels beside.
struct Loaded {
    kernels: Vec<AtomicBool>,
    beside: [AtomicBool; 3],
}

fn of_device(ordinal: usize) -> Result<&'static Loaded> {
    static LOADED: [OnceCell<Loaded>; MOST_DEVICES] = [const { OnceCell::new() }; MOST_DEVICES];
    let cell = LOADED.get(ordinal).ok_or_else(|| Error::NoDevice(format!("there is no device {ordinal}")))?;
    Ok(cell.get_or_init(|| Loaded {
        kernels: KERNELS.iter().map(|_| AtomicBool::new(false)).collect(),
        beside: Default::default(),
    }))
}

/// Loads the modules of all kernels that are built for the current device, and the kernels beside. `ordinal` is the current device's
/// ordinal, `capability` its compute capability.
pub(super) fn load_all(ordinal: usize, capability: u16) -> Result<()> {
    let kernels = KERNELS.iter().zip(library()?).filter(|(kernel, _)| kernel.arch.runs_on(capability));
    kernels.filter(|(_, linked)| linked.is_some()).try_for_each(|(kernel, _)| load(ordinal, kernel))?;
    beside(Beside::Elementwise)?;
    #[cfg(all(feature = "experts", any(feature = "candle", feature = "interpose-mistralrs")))]
    beside(Beside::Experts)?;
    #[cfg(feature = "layers")]
    beside(Beside::Layers)?;
    Ok(())
}

/// Loads what a device needs when memory is full: kernels that run every problem, and the kernels beside.
pub(super) fn load_least(ordinal: usize, capability: u16) -> Result<()> {
    let least = |kernel: &&KernelDesc| kernel.role == Role::LastResort && kernel.is_built();
    KERNELS
        .iter()
        .filter(least)
        .filter(|kernel| kernel.arch.runs_on(capability))
        .try_for_each(|kernel| load(ordinal, kernel))?;
    beside(Beside::Elementwise)
}

/// Makes the first launch of a plan on the current device possible.
///
/// # Errors
/// [`Error::MemoryFull`], and [`Error::Cuda`] where the driver refuses the load all the same.
pub(super) fn ready(plan: &Planned) -> Result<()> {
    if plan.is_ready() {
        return Ok(());
    }
    match plan.kernel.role {
        // cuBLAS loads its kernels itself, and loses them where memory is full as we would.
        Role::Vendor => room_for(plan.kernel.name)?,
        _ => load(current_device()?, plan.kernel)?,
    }
    plan.set_ready();
    Ok(())
}

/// Whether a kernel can be launched on a device without a load.
pub(super) fn is_loaded(ordinal: usize, kernel: &KernelDesc) -> bool {
    of_device(ordinal).is_ok_and(|loaded| loaded.kernels[kernel.index].load(Ordering::Relaxed))
}

fn load(ordinal: usize, kernel: &'static KernelDesc) -> Result<()> {
    let loaded = &of_device(ordinal)?.kernels[kernel.index];
    if loaded.load(Ordering::Relaxed) {
        return Ok(());
    }
    let Some(function) = linked(kernel)?.0.load else { return Ok(()) };
    room_for(kernel.name)?;
    // SAFETY: a function of tilegemm.h without arguments.
    check("cuFuncLoad", unsafe { function() })?;
    loaded.store(true, Ordering::Relaxed);
    Ok(())
}

/// Loads kernels beside the products on the current device.
///
/// # Errors
/// As for [`ready`].
pub(super) fn beside(which: Beside) -> Result<()> {
    let loaded = &of_device(current_device()?)?.beside[which as usize];
    if loaded.load(Ordering::Relaxed) {
        return Ok(());
    }
    room_for("kernels beside the products")?;
    let function = match which {
        Beside::Elementwise => ffi::tg_load_elementwise,
        #[cfg(all(feature = "experts", any(feature = "candle", feature = "interpose-mistralrs")))]
        Beside::Experts => ffi::tg_load_experts,
        #[cfg(feature = "layers")]
        Beside::Layers => ffi::tg_load_layers,
    };
    // SAFETY: a function of library.h or layer.h without arguments.
    check("cuFuncLoad", unsafe { function() })?;
    loaded.store(true, Ordering::Relaxed);
    Ok(())
}

/// Whether device memory has room for a module.
fn room_for(kernel: &'static str) -> Result<()> {
    stream::make_context().map_err(failed("cuCtxSetCurrent"))?;
    let info = stream::relaxed(mem_get_info).and_then(|info| info);
    match info.map_err(failed("cuMemGetInfo"))? {
        (free, _) if free < LEAST_FREE => {
            Err(Error::MemoryFull { kernel, free_mib: free >> 20, need_mib: LEAST_FREE >> 20 })
        }
        _ => Ok(()),
    }
}
