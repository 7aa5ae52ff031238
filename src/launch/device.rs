//! What the CUDA runtime says: devices and errors.

use crate::arch::{DeviceInfo, Rates};
use crate::error::{Error, Result};
use crate::ffi;
use std::ffi::CStr;

/// How many devices of a machine are served.
pub(super) const MOST_DEVICES: usize = 64;

/// The newest CUDA version that the driver runs, as 1000 * major + 10 * minor.
///
/// # Errors
/// [`Error::NoDevice`] without a driver.
pub fn driver_version() -> Result<u32> {
    let mut version = 0;
    // SAFETY: `version` is a valid place to write to.
    check("cudaDriverGetVersion", unsafe { ffi::tg_driver_version(&mut version) })?;
    match version {
        0 => Err(Error::NoDevice("there is no NVIDIA driver".into())),
        version => Ok(version as u32),
    }
}

/// Ordinal of the calling thread's current device.
pub fn current_device() -> Result<usize> {
    let mut ordinal = 0;
    // SAFETY: `ordinal` is a valid place to write to.
    check("cudaGetDevice", unsafe { ffi::tg_current_device(&mut ordinal) })?;
    Ok(ordinal as usize)
}

/// Number of devices, or why there is none.
pub fn device_count() -> Result<usize> {
    // SAFETY: no arguments.
    match unsafe { ffi::tg_device_count() } {
        0 => Err(Error::NoDevice(last_cuda_error())),
        count => Ok(count as usize),
    }
}

/// What the CUDA runtime says of a device.
pub fn device_info(ordinal: usize) -> Result<DeviceInfo> {
    device_count()?;
    // SAFETY: an all-zero tg_device_info is valid.
    let mut info: ffi::tg_device_info = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is a valid place to write to.
    check("cudaGetDeviceProperties", unsafe { ffi::tg_device(ordinal as i32, &mut info) })?;
    // SAFETY: `name` is terminated: the library fills it with snprintf.
    let name = unsafe { CStr::from_ptr(info.name.as_ptr()) }.to_string_lossy().into_owned();
    let capability = info.compute_capability as u16;
    let sm_count = info.sm_count as u32;
    Ok(DeviceInfo {
        rates: Rates::of(&name, capability, sm_count),
        name,
        capability,
        sm_count,
        l2_bytes: info.l2_bytes as u64,
        memory_bytes: info.memory_bytes as u64,
    })
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
