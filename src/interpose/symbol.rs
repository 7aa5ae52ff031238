//! What all calls of functions have that are defined here in place of other libraries': the check whether calls arrive, and the guard that each call runs
//! in.

use super::failure::Progress;
use super::mode::is_dry_run;
use std::cell::Cell;
use std::panic::AssertUnwindSafe;

/// One call of a function that is defined here.
pub(super) trait Call {
    /// What the function returns. The default value is a success.
    type Status: Default;

    /// Runs the call, and ends a call that cannot run.
    ///
    /// # Safety
    /// The caller's arguments are as the library's function requires.
    unsafe fn run(&self, progress: &Cell<Progress>) -> Self::Status;

    /// Ends a call in which our code has panicked.
    ///
    /// # Safety
    /// As for [`Call::run`].
    unsafe fn after_panic(&self, progress: Progress) -> Self::Status;
}

thread_local! {
    /// The function whose next call on this thread is a check's; empty without a check.
    static ASKED: Cell<&'static str> = const { Cell::new("") };
}

/// Whether the call of a function that `call` makes reaches the definition here, and not another one.
pub(super) fn arrives(function: &'static str, call: impl FnOnce()) -> bool {
    ASKED.set(function);
    call();
    ASKED.replace("").is_empty()
}

/// Makes a call of a function. A check's call does nothing, and neither does any call of a dry run.
///
/// # Safety
/// As for [`Call::run`].
pub(super) unsafe fn enter<C: Call>(function: &'static str, call: C) -> C::Status {
    if ASKED.get() == function {
        ASKED.set("");
        return C::Status::default();
    }
    if is_dry_run() {
        return C::Status::default();
    }
    let progress = Cell::new(Progress::Nothing);
    // A panic must not cross the C boundary.
    // SAFETY: the caller's promises are passed on.
    let status = std::panic::catch_unwind(AssertUnwindSafe(|| unsafe { call.run(&progress) }));
    // SAFETY: as above.
    status.unwrap_or_else(|_| unsafe { call.after_panic(progress.get()) })
}

#[cfg(test)]
mod tests {
    use super::{arrives, enter, Call, Progress};
    use std::cell::Cell;

    struct Panics;

    impl Call for Panics {
        type Status = i32;

        unsafe fn run(&self, progress: &Cell<Progress>) -> i32 {
            progress.set(Progress::Storing);
            panic!("planted by a test");
        }

        unsafe fn after_panic(&self, progress: Progress) -> i32 {
            assert_eq!(progress, Progress::Storing);
            13
        }
    }

    #[test]
    fn a_panic_stays_inside_and_a_check_takes_one_call_of_its_function() {
        // SAFETY: the calls read nothing.
        let call = |function| unsafe { enter(function, Panics) };
        assert_eq!(call("f"), 13);
        let mut answers = Vec::new();
        assert!(arrives("f", || answers.extend(["g", "f", "f"].map(call))));
        assert_eq!(answers, [13, 0, 13]);
        assert!(!arrives("f", || answers.push(call("g"))));
        assert_eq!(call("f"), 13, "the check has ended");
    }
}
