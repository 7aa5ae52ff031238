//! Device properties by the CUDA driver; errors of the driver and of the CUDA runtime.

use crate::arch::{ArchModel, DeviceInfo};
use crate::error::{Error, Result};
use crate::ffi;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use once_cell::sync::OnceCell;
use std::ffi::CStr;

/// The number of devices of a machine that the library supports.
pub(super) const MOST_DEVICES: usize = 64;

/// The newest CUDA version that the driver supports, as 1000 * major + 10 * minor.
///
/// # Errors
/// [`Error::NoDevice`] without a driver.
pub fn driver_version() -> Result<u32> {
    let mut version = 0;
    // SAFETY: `version` is a valid place to write to. The function needs no `cuInit`.
    match unsafe { sys::cuDriverGetVersion(&mut version) } {
        CUresult::CUDA_SUCCESS => Ok(version as u32),
        _ => Err(Error::NoDevice("there is no NVIDIA driver".into())),
    }
}

/// Ordinal of the calling thread's current device: the device of the thread's context, and device 0 for a thread
/// without a context.
pub fn current_device() -> Result<usize> {
    init().map_err(failed("cuInit"))?;
    let mut device = 0;
    // SAFETY: `device` is a valid place to write to.
    match unsafe { sys::cuCtxGetDevice(&mut device) } {
        // A CUdevice is the ordinal.
        CUresult::CUDA_SUCCESS => Ok(device as usize),
        // `cudaSetDevice` gives the thread a context (CUDA 12 and newer): this thread has chosen no device.
        CUresult::CUDA_ERROR_INVALID_CONTEXT => Ok(0),
        error => Err(failed("cuCtxGetDevice")(DriverError(error))),
    }
}

/// Number of devices, or the reason why there is none.
pub fn device_count() -> Result<usize> {
    // SAFETY: no arguments.
    let runtime = unsafe { ffi::tg_runtime_version() } as u32;
    // The runtime, which launches the kernels, runs on drivers of its own major version and on newer ones.
    if driver_version().map_or(0, |driver| driver / 1000) < runtime / 1000 {
        const OLD: &str = "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version";
        return Err(Error::NoDevice(OLD.into()));
    }
    match init().and_then(|()| result::device::get_count()) {
        Ok(0) => Err(Error::NoDevice(text(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)))),
        Ok(count) => Ok(count as usize),
        Err(error) => Err(Error::NoDevice(text(error))),
    }
}

/// Properties of a device by the CUDA driver.
///
/// ```
/// use candle_tilegemm::launch;
///
/// match launch::device_info(0) {
///     Ok(device) => println!("{}: sm{}, {} multiprocessors", device.name, device.capability, device.sm_count),
///     Err(error) => println!("no GPU: {error}"),
/// }
/// ```
pub fn device_info(ordinal: usize) -> Result<DeviceInfo> {
    device_count()?;
    let device = result::device::get(ordinal as i32).map_err(failed("cuDeviceGet"))?;
    // SAFETY: the driver has just given this device.
    let attribute = |attribute| unsafe { result::device::get_attribute(device, attribute) };
    let attribute = |name| attribute(name).map_err(failed("cuDeviceGetAttribute"));
    let name = result::device::get_name(device).map_err(failed("cuDeviceGetName"))?;
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let capability = (major * 10 + minor) as u16;
    let sm_count = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
    let l2_bytes = attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as u64;
    // SAFETY: as above.
    let memory_bytes = unsafe { result::device::total_mem(device) }.map_err(failed("cuDeviceTotalMem"))? as u64;
    let model = ArchModel::of(&name, capability, sm_count);
    Ok(DeviceInfo { name, capability, sm_count, l2_bytes, memory_bytes, model })
}

/// Initialises the driver. Every driver call except the call of [`driver_version`] needs the initialisation. A failure
/// is not kept.
pub(super) fn init() -> std::result::Result<(), DriverError> {
    static READY: OnceCell<()> = OnceCell::new();
    READY.get_or_try_init(result::init).copied()
}

/// The error of a driver call.
pub(super) fn failed(call: &'static str) -> impl FnOnce(DriverError) -> Error {
    move |error| Error::Cuda { kernel: call, error: text(error) }
}

/// An error of the driver as "CUDA_ERROR_NAME: description".
pub(super) fn text(error: DriverError) -> String {
    match (error.error_name(), error.error_string()) {
        (Ok(name), Ok(description)) => format!("{}: {}", name.to_string_lossy(), description.to_string_lossy()),
        _ => format!("{:?}", error.0),
    }
}

pub(super) fn check(call: &'static str, status: ffi::tg_status) -> Result<()> {
    match status {
        ffi::tg_status::TG_OK => Ok(()),
        _ => Err(Error::Cuda { kernel: call, error: last_cuda_error() }),
    }
}

pub(super) fn last_cuda_error() -> String {
    // SAFETY: a terminated string that lives until the next call on this thread.
    unsafe { CStr::from_ptr(ffi::tg_last_cuda_error()) }.to_string_lossy().into_owned()
}
