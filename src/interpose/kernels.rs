//! Calls of kernels whose own definitions are not in the program, such as candle's: our kernels run the call, or its result is NaN.

use super::count::FAILED;
use super::failure::Progress;
use super::mode::{mode, Mode};
use super::symbol::Call;
use super::tell::{tell, Told};
use super::vendor::own;
use crate::dispatch::Counter;
use crate::error::{Error, Result};
use crate::kernel::KernelDesc;
use crate::launch::{self, Pointers, Queue};
use crate::problem::Problem;
use crate::{settings, trace};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Once;

/// candle's declarations.
#[cfg(feature = "interpose-kernels")]
pub(super) use ::candle::cuda_backend::kernels::ffi as candles;

/// One call, by its arguments.
pub(super) trait KernelCall {
    /// What the call asks for, for messages.
    const WHAT: &'static str;
    /// Counts the calls that ran.
    const RAN: &'static Counter;

    /// The product that the call asks for, or the reason why there is none.
    fn product(&self) -> std::result::Result<(Problem, Pointers), String>;

    /// Whether a kernel takes such products: such a kernel can be forced.
    fn takes(kernel: &KernelDesc) -> bool;

    /// Launches the product.
    ///
    /// # Safety
    /// The caller's arguments are as the library's function requires.
    unsafe fn launch(&self, problem: &Problem, pointers: Pointers) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { launch(problem, Self::takes, pointers, self.stream()) }
    }

    /// Where the result is, and its bytes.
    fn output(&self) -> (*mut c_void, usize);

    fn stream(&self) -> *mut c_void;
}

impl<K: KernelCall> Call for K {
    type Status = ();

    unsafe fn run(&self, _: &Cell<Progress>) {
        let launched = self.product().and_then(|(problem, pointers)| {
            // SAFETY: the caller's promises.
            let launched = unsafe { self.launch(&problem, pointers) };
            launched.map_err(|error| format!("{problem}: {error}"))
        });
        match launched {
            Ok(()) => K::RAN.count(),
            // SAFETY: as above.
            Err(failure) => unsafe { fail(self, failure) },
        }
    }

    unsafe fn after_panic(&self, _: Progress) {
        // SAFETY: the caller's promises.
        unsafe { fail(self, "a panic in candle-tilegemm; please report it".into()) };
    }
}

/// Launches a product on our own kernels, by the forced kernel where it `takes` such products.
///
/// # Safety
/// As for [`launch::launch`], on a stream of the current device.
pub(super) unsafe fn launch(
    problem: &Problem,
    takes: fn(&KernelDesc) -> bool,
    pointers: Pointers,
    stream: *mut c_void,
) -> Result<()> {
    let queue = Queue::new(stream, null_mut());
    let dispatcher = launch::dispatcher(launch::current_device()?)?;
    let launch_by = |policy| -> Result<()> {
        // SAFETY: the caller's promises.
        dispatcher.with_plan(problem, policy, |plan| unsafe { launch::launch(plan, pointers, queue) })?
    };
    let (mode, policy) = (mode(), launch::policy()?);
    if policy.forced().is_some_and(takes) {
        match launch_by(policy) {
            // As for products of cuBLAS, a kernel that cannot run the product is passed over, unless the mode is `force`.
            Err(Error::Forced { .. }) if mode != Mode::Force => {}
            outcome => return outcome,
        }
    }
    launch_by(own(policy)) // there is no cuBLAS handle
}

/// The end of a call that could not run: it is told of once on stderr and recorded in a trace, and its result is filled with NaN, or the program ends.
///
/// # Safety
/// The stream of the call is a stream of the current device, and the output has so many bytes.
unsafe fn fail<K: KernelCall>(call: &K, failure: String) {
    static TOLD: Told<String> = Told::new(64);
    let aborts = settings::aborts_on_failure();
    TOLD.once(failure.clone(), || {
        let end = match &aborts {
            Ok(true) => "TILEGEMM_ON_FAILURE=abort ends the program".into(),
            Ok(false) => "its result is NaN".into(),
            Err(error) => format!("its result is NaN ({error})"),
        };
        tell(&format!("{} failed, and {end}: {failure}", K::WHAT));
    });
    if mode() == Mode::Trace {
        trace::outside(failure);
    }
    if aborts.unwrap_or(false) {
        std::process::abort();
    }
    let (at, bytes) = call.output();
    if bytes > 0 {
        // All bits of a NaN may be set, in f16, bf16 and f32.
        // SAFETY: the caller's promises.
        if let Err(error) = unsafe { launch::fill(call.stream(), at, 0xff, bytes) } {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| tell(&format!("the result of {} that failed is undefined: {error}", K::WHAT)));
        }
    }
    FAILED.count();
}
