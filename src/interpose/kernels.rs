//! What the definitions of candle's own kernels share: the check whether calls arrive, the launch, and the end of calls that cannot run.

use super::call::own;
use super::mode::{mode, Mode};
use super::tell::tell;
use crate::error::{Error, Result};
use crate::kernel::KernelDesc;
use crate::launch::{self, Pointers, Queue};
use crate::problem::Problem;
use crate::{settings, trace};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::panic::AssertUnwindSafe;
use std::ptr::null_mut;
use std::sync::{Mutex, Once};

/// The state of a thread's check whether calls arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Asking,
    Arrived,
}

/// A check whether calls arrive: one call through candle's declaration, which reaches the definition here, or another one.
#[derive(Debug)]
pub(super) struct Probe(Cell<State>);

impl Probe {
    pub const fn new() -> Self {
        Self(Cell::new(State::Idle))
    }

    /// The next call on this thread is the check's.
    pub fn ask(&self) {
        self.0.set(State::Asking);
    }

    /// Whether a call is the check's: such a call does nothing.
    pub fn arrives(&self) -> bool {
        let is_check = self.0.get() != State::Idle;
        if is_check {
            self.0.set(State::Arrived);
        }
        is_check
    }

    /// Ends the check.
    pub fn has_arrived(&self) -> bool {
        self.0.replace(State::Idle) == State::Arrived
    }
}

/// Runs a product on our own kernels, by the forced kernel where it `takes` such products.
///
/// # Safety
/// As for [`launch::launch`], on a stream of the current device.
pub(super) unsafe fn run(
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

/// Whether `call` ran. A call that could not is told of once on stderr and recorded in a trace; then its result is filled with NaN, or the program ends.
/// `what` names the product; `output` is the place of the result, and its bytes.
///
/// # Safety
/// `stream` is a stream of the current device, and the output has so many bytes.
pub(super) unsafe fn guard(
    what: &str,
    stream: *mut c_void,
    output: (*mut c_void, usize),
    call: impl FnOnce() -> std::result::Result<(), String>,
) -> bool {
    // A panic must not cross the C boundary.
    let failure = match std::panic::catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return true,
        Ok(Err(failure)) => failure,
        Err(_) => "a panic in candle-tilegemm; please report it".into(),
    };
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let aborts = settings::aborts_on_failure();
    let mut told = TOLD.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if told.len() < 64 && told.insert(failure.clone()) {
        let end = match &aborts {
            Ok(true) => "TILEGEMM_ON_FAILURE=abort ends the program".into(),
            Ok(false) => "its result is NaN".into(),
            Err(error) => format!("its result is NaN ({error})"),
        };
        tell(&format!("{what} failed, and {end}: {failure}"));
    }
    drop(told);
    if mode() == Mode::Trace {
        trace::outside(failure);
    }
    if aborts.unwrap_or(false) {
        std::process::abort();
    }
    let (at, bytes) = output;
    if bytes > 0 {
        // All bits of a NaN may be set, in f16, bf16 and f32.
        // SAFETY: the caller's promises.
        if let Err(error) = unsafe { launch::fill(stream, at, 0xff, bytes) } {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| tell(&format!("the result of {what} that failed is undefined: {error}")));
        }
    }
    false
}
