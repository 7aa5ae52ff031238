//! The next step for a call that failed on our side: forward, refuse or fail.

use super::mode::Mode;
use super::tell::tell;
use crate::error::Error;
use crate::problem::Problem;

/// The progress of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing was launched.
    Nothing,
    /// A launch has begun, and the product is stored in C: running the product again is harmless.
    Storing,
    /// A launch has begun, and the product is added to C in place: running the product again adds the product twice.
    Adding,
}

impl Progress {
    /// The progress from the beginning of the launch on.
    pub fn launching(problem: &Problem) -> Self {
        match problem.epilogue.in_place {
            true => Self::Adding,
            false => Self::Storing,
        }
    }
}

/// The next step for the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Send the call to cuBLAS.
    Forward,
    /// Answer "not supported", as [`Mode::Force`] asks.
    Refuse,
    /// Answer "execution failed".
    Fail,
}

/// The next step after an error.
pub(super) fn after_failure(progress: Progress, error: &Error, mode: Mode) -> Next {
    // These errors come before any kernel runs.
    let ran_nothing = matches!(error, Error::Refused { .. } | Error::Workspace { .. });
    match progress {
        _ if mode == Mode::Force => Next::Refuse,
        Progress::Adding if !ran_nothing => Next::Fail,
        _ => Next::Forward,
    }
}

/// The next step after a panic. The panic has printed its own message on stderr; the destination of later calls is
/// reported once.
pub(super) fn after_panic(progress: Progress, mode: Mode) -> Next {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        tell("the interposer panicked; please report this. Such products go to cuBLAS, or fail with C in doubt")
    });
    match progress {
        _ if mode == Mode::Force => Next::Refuse,
        Progress::Adding => Next::Fail,
        _ => Next::Forward,
    }
}

#[cfg(test)]
mod tests {
    use super::{after_failure, after_panic, Mode, Next, Progress};
    use crate::error::Error;
    use crate::problem::{Epilogue, Format, Layout, Problem};
    use crate::workspace::WorkspaceError;

    #[test]
    fn what_may_have_been_added_to_c_is_not_added_again() {
        let broken = Error::Cuda { kernel: "k", error: "cudaErrorUnknown".into() };
        let refused = Error::Workspace { what: "k", lack: WorkspaceError::Off.into() };
        for progress in [Progress::Nothing, Progress::Storing, Progress::Adding] {
            let expected = if progress == Progress::Adding { Next::Fail } else { Next::Forward };
            assert_eq!(after_failure(progress, &broken, Mode::On), expected, "{progress:?}");
            assert_eq!(after_panic(progress, Mode::On), expected, "{progress:?}");
            assert_eq!(after_failure(progress, &refused, Mode::On), Next::Forward, "{progress:?}");
            assert_eq!(after_failure(progress, &broken, Mode::Force), Next::Refuse, "{progress:?}");
            assert_eq!(after_panic(progress, Mode::Force), Next::Refuse, "{progress:?}");
        }
    }

    #[test]
    fn a_product_is_added_where_c_is_d() {
        let mut problem = Problem::dense(4, 4, 4, 1, Layout::NN, Format::F32);
        assert_eq!(Progress::launching(&problem), Progress::Storing);
        problem.epilogue = Epilogue::new(1.0, 0.5);
        problem.epilogue.c = Some(problem.d);
        assert_eq!(Progress::launching(&problem), Progress::Storing, "C is another matrix than D");
        problem.epilogue.in_place = true;
        assert_eq!(Progress::launching(&problem), Progress::Adding);
    }
}
