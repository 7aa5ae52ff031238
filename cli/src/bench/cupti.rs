//! Times of kernels by CUPTI's activity records, for calls that wait for the GPU: no graph can hold such a call, and its time contains the
//! host's work. CUPTI comes with the CUDA toolkit; libcupti is loaded when a row needs it. cudarc's module for CUPTI would link libcupti into
//! every program of the build.

use crate::Result;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::alloc::{alloc, dealloc, Layout};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
const KERNELS: u32 = 10;
/// CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
const FORCED: u32 = 1;
/// The buffer that CUPTI writes records to. CUPTI asks for an alignment of 8 bytes.
const BUFFER: Layout = match Layout::from_size_align(1 << 20, 8) {
    Ok(layout) => layout,
    Err(_) => panic!("a layout of 1 MiB"),
};

type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Complete = unsafe extern "C" fn(*mut (), u32, *mut u8, usize, usize);

/// The functions of libcupti that this module calls.
struct Api {
    register: unsafe extern "C" fn(Request, Complete) -> u32,
    enable: unsafe extern "C" fn(u32) -> u32,
    disable: unsafe extern "C" fn(u32) -> u32,
    flush: unsafe extern "C" fn(u32) -> u32,
    next: unsafe extern "C" fn(*mut u8, usize, *mut *mut KernelRecord) -> u32,
}

/// The beginning of CUPTI's record of a kernel, which every version since CUDA 9 has (`CUpti_ActivityKernel4`, cupti_activity.h).
#[repr(C)]
struct KernelRecord {
    kind: u32,
    settings: [u32; 3],
    /// Nanoseconds.
    start: u64,
    end: u64,
}

static API: OnceLock<std::result::Result<Api, String>> = OnceLock::new();
/// Nanoseconds of the kernels whose records have arrived.
static TIME: AtomicU64 = AtomicU64::new(0);

/// Microseconds that the GPU spends in kernels of `work`, which waits for its end. An error says what is missing.
pub fn time_in_kernels(work: impl FnOnce() -> Result) -> Result<f64> {
    let api = API.get_or_init(|| load().map_err(|e| e.to_string())).as_ref().map_err(String::as_str)?;
    // SAFETY: signatures as of cupti_activity.h.
    unsafe {
        succeed("cuptiActivityEnable", (api.enable)(KERNELS))?;
        TIME.store(0, Ordering::Relaxed);
        let worked = work();
        let flushed = succeed("cuptiActivityFlushAll", (api.flush)(FORCED));
        succeed("cuptiActivityDisable", (api.disable)(KERNELS))?;
        worked.and(flushed)?;
    }
    match TIME.load(Ordering::Relaxed) {
        0 => Err("CUPTI gave no record of a kernel".into()),
        ns => Ok(ns as f64 / 1e3),
    }
}

fn load() -> Result<Api> {
    let names =
        ["libcupti.so.13", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so", "/usr/local/cuda/lib64/libcupti.so"];
    // SAFETY: libcupti has no initialisers that depend on this program.
    let library = names.into_iter().find_map(|name| unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.ok());
    let library =
        library.ok_or("there is no libcupti; add the CUDA toolkit's folder extras/CUPTI/lib64 to LD_LIBRARY_PATH")?;
    // SAFETY: signatures as of cupti_activity.h.
    let api = unsafe {
        Api {
            register: *library.get(b"cuptiActivityRegisterCallbacks\0")?,
            enable: *library.get(b"cuptiActivityEnable\0")?,
            disable: *library.get(b"cuptiActivityDisable\0")?,
            flush: *library.get(b"cuptiActivityFlushAll\0")?,
            next: *library.get(b"cuptiActivityGetNextRecord\0")?,
        }
    };
    std::mem::forget(library); // the functions are used until the program ends
                               // SAFETY: as above; both callbacks live as long as the program.
    succeed("cuptiActivityRegisterCallbacks", unsafe { (api.register)(request, complete) })?;
    Ok(api)
}

fn succeed(function: &str, status: u32) -> Result {
    match status {
        0 => Ok(()),
        status => Err(format!("{function} failed with status {status} (CUptiResult)").into()),
    }
}

unsafe extern "C" fn request(buffer: *mut *mut u8, bytes: *mut usize, most_records: *mut usize) {
    // SAFETY: the layout has a size; CUPTI passes three places to write to.
    unsafe {
        let memory = alloc(BUFFER);
        *buffer = memory;
        *bytes = if memory.is_null() { 0 } else { BUFFER.size() };
        *most_records = 0; // as many as fit
    }
}

unsafe extern "C" fn complete(_: *mut (), _: u32, buffer: *mut u8, _: usize, valid: usize) {
    if buffer.is_null() {
        return;
    }
    if let Some(Ok(api)) = API.get() {
        let mut record = null_mut();
        // SAFETY: CUPTI passes a buffer of `request` with `valid` bytes of records, and only kernels are enabled.
        while unsafe { (api.next)(buffer, valid, &mut record) } == 0 {
            let KernelRecord { kind, start, end, .. } = unsafe { &*record };
            if *kind == KERNELS {
                TIME.fetch_add(end.saturating_sub(*start), Ordering::Relaxed);
            }
        }
    }
    // SAFETY: the memory is of `request`.
    unsafe { dealloc(buffer, BUFFER) };
}
