use super::api::{version, Cublas, VendorLibrary};
use super::call::VendorCall;
use crate::launch::pointers::Pointers;
use crate::problem::{Format, Layout, Problem};
use std::cell::Cell;
use std::ffi::{c_int, c_longlong, c_void};
use std::ptr::{null, null_mut};

thread_local! {
    /// The math mode during the latest call, and the call's return value.
    static DURING: Cell<c_int> = const { Cell::new(-1) };
    static STATUS: Cell<c_int> = const { Cell::new(0) };
}

unsafe extern "C" fn gemm(
    handle: *mut c_void,
    _: c_int,
    _: c_int,
    _: c_int,
    _: c_int,
    _: c_int,
    _: *const c_void,
    _: *const c_void,
    _: c_int,
    _: c_int,
    _: c_longlong,
    _: *const c_void,
    _: c_int,
    _: c_int,
    _: c_longlong,
    _: *const c_void,
    _: *mut c_void,
    _: c_int,
    _: c_int,
    _: c_longlong,
    _: c_int,
    _: c_int,
    _: c_int,
) -> c_int {
    // SAFETY: the tests' handle is a number.
    DURING.set(unsafe { *handle.cast::<c_int>() });
    STATUS.get()
}

unsafe extern "C" fn get_math_mode(handle: *mut c_void, mode: *mut c_int) -> c_int {
    // SAFETY: the tests' handle is a number.
    unsafe { *mode = *handle.cast::<c_int>() };
    0
}

unsafe extern "C" fn set_math_mode(handle: *mut c_void, mode: c_int) -> c_int {
    // SAFETY: the tests' handle is a number.
    unsafe { *handle.cast::<c_int>() = mode };
    0
}

#[cfg(feature = "interpose")]
unsafe extern "C" fn get_stream(_: *mut c_void, _: *mut *mut c_void) -> c_int {
    0
}

/// A library whose handles are their own math mode.
fn library(major: i32) -> Cublas {
    Cublas {
        library: VendorLibrary { path: "libcublas.so".into(), version: [major, 1, 0] },
        gemm_strided_batched_ex: gemm,
        get_math_mode,
        set_math_mode,
        #[cfg(feature = "interpose")]
        get_stream,
        #[cfg(feature = "interpose")]
        get_pointer_mode: get_math_mode,
    }
}

/// The math mode during the call and after the call, and whether the call succeeded.
fn modes(call: &VendorCall, major: i32, status: c_int, before: c_int) -> (c_int, c_int, bool) {
    let mut handle = before;
    let pointers = Pointers::new(null(), null(), null_mut());
    DURING.set(-1);
    STATUS.set(status);
    // SAFETY: the tests' library reads no pointer.
    let result = unsafe { call.run_by(&library(major), pointers, (&raw mut handle).cast()) };
    (DURING.get(), handle, result.is_ok())
}

#[test]
fn sums_of_16_bits_are_exact_in_a_planned_call_and_the_handle_is_as_before() {
    for (dtype, exact) in [(Format::BF16, 16), (Format::F16, 16), (Format::F32, 0), (Format::F64, 0)] {
        let problem = Problem::dense(16, 385, 96, 3, Layout::NN, dtype);
        let planned = VendorCall::of(&problem).unwrap();
        let stock = VendorCall::by_candle(&problem).unwrap();
        for before in [0, 3, 16, 19] {
            assert_eq!(modes(&planned, 13, 0, before), (before | exact, before, true), "{dtype}");
            assert_eq!(modes(&planned, 12, 7, before), (before | exact, before, false), "{dtype}, after an error");
            assert_eq!(modes(&stock, 13, 0, before), (before, before, true), "{dtype}, stock");
        }
    }
}

#[test]
fn a_library_of_another_version_is_not_called() {
    unsafe extern "C" fn property(number: c_int, value: *mut c_int) -> c_int {
        // SAFETY: a valid place to write to.
        unsafe { *value = [11, 5, 1][number as usize] };
        0
    }
    assert_eq!(version(property).unwrap(), [11, 5, 1]);
    let call = VendorCall::of(&Problem::dense(8, 8, 8, 1, Layout::NN, Format::F32)).unwrap();
    assert_eq!(modes(&call, 11, 0, 0), (-1, 0, false));
    let text = library(11).library.verify().unwrap_err().to_string();
    assert!(text.contains("11.1.0, libcublas.so") && text.contains("TILEGEMM_VENDOR=off"), "{text}");
}

/// In this program candle links cuBLAS.
#[cfg(all(feature = "candle", feature = "interpose"))]
#[test]
fn the_library_is_the_one_that_the_program_links() {
    let library = &super::api::cublas().unwrap().library;
    let path = library.path.display().to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let loaded = maps.lines().filter(|line| line.contains("/libcublas.so")).count();
    let file = std::fs::canonicalize(&library.path).unwrap();
    assert!(loaded > 0 && maps.contains(&file.display().to_string()), "{path} is not what is loaded:\n{maps}");
    library.verify().unwrap();
}
