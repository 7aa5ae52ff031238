//! What becomes of a call that we failed at.

use super::{Forwarded, Mode};
use crate::error::Error;
use crate::problem::Problem;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::io::Write;
use std::sync::Mutex;

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing was launched.
    Nothing,
    /// A launch has begun, of a product that is stored in C: once more does no harm.
    Storing,
    /// A launch has begun, of a product that is added to C: once more would add it twice.
    Adding,
}

impl Progress {
    /// From the moment on when the launch begins.
    pub fn launching(problem: &Problem) -> Self {
        match problem.epilogue.reads_c() {
            true => Self::Adding,
            false => Self::Storing,
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Send the call to cuBLAS.
    Forward,
    /// Answer that it is not supported, as [`Mode::Force`] asks.
    Refuse,
    /// Answer that it failed.
    Fail,
}

/// After an error.
pub(super) fn after_failure(progress: Progress, error: &Error, mode: Mode) -> Next {
    // These come before anything runs.
    let ran_nothing = matches!(error, Error::Refused { .. } | Error::Workspace { .. });
    match progress {
        _ if mode == Mode::Force => Next::Refuse,
        Progress::Adding if !ran_nothing => Next::Fail,
        _ => Next::Forward,
    }
}

/// After a panic, which has told of itself on stderr; where calls go now is told once.
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

/// A line on stderr. Unlike `eprintln`, it does not panic where nobody reads it.
pub(super) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "candle-tilegemm: {text}");
}

/// A product by operations, sizes and batch, and element type; and why it was forwarded.
pub(super) type Product = ([c_int; 2], [c_int; 4], c_int, Forwarded);

/// Of which products something was told: of so many that a program without end does not tell, or remember, without end.
pub(super) struct Told(Mutex<BTreeSet<Product>>);

impl Told {
    const MOST: usize = 1024;

    pub const fn new() -> Self {
        Self(Mutex::new(BTreeSet::new()))
    }

    /// Whether nothing was told of it before, and something may be.
    pub fn is_new(&self, product: Product) -> bool {
        let mut told = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        told.len() < Self::MOST && told.insert(product)
    }
}

#[cfg(test)]
mod tests {
    use super::{after_failure, after_panic, Next, Progress, Told};
    use crate::interpose::{Forwarded, Mode};
    use crate::problem::{DType, Epilogue, Layout, Problem};
    use crate::workspace::Lack;
    use crate::Error;

    #[test]
    fn what_may_have_been_added_to_c_is_not_added_again() {
        let broken = Error::Cuda { kernel: "k", error: "cudaErrorUnknown".into() };
        let refused = Error::Workspace { what: "k", lack: Lack::Off };
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
    fn each_product_is_told_of_once_and_not_without_end() {
        let told = Told::new();
        let is_new = |m, reason| told.is_new(([0, 1], [m, 8, 8, 1], 0, reason));
        let first: Vec<bool> = [1, 1, 2, 1].into_iter().map(|m| is_new(m, Forwarded::Failed)).collect();
        assert_eq!(first, [true, false, true, false]);
        assert!(is_new(1, Forwarded::Unsupported), "for another reason");
        assert_eq!((3..10_000).filter(|m| is_new(*m, Forwarded::Failed)).count(), Told::MOST - 3);
    }

    #[test]
    fn a_product_is_added_where_beta_is_not_zero() {
        let mut problem = Problem::dense(4, 4, 4, 1, Layout::NN, DType::F32);
        assert_eq!(Progress::launching(&problem), Progress::Storing);
        problem.epilogue = Epilogue::new(1.0, 0.5);
        assert_eq!(Progress::launching(&problem), Progress::Adding);
    }
}
