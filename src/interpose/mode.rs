//! What the interposer does with calls: set by the environment or by the program.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// What the interposer does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// Every call goes to cuBLAS.
    Off = 1,
    /// The dispatcher chooses; cuBLAS is one of its choices.
    On = 2,
    /// Our own kernels only: a call inside the contract that none of them takes is an error, so that a test suite cannot
    /// pass on cuBLAS by accident.
    Force = 3,
    /// As `On`, and writes each distinct product to a file, in the format of the benchmark suite ([`crate::trace`]), and to
    /// stderr with the kernel that it got.
    Trace = 4,
}

static MODE: AtomicU8 = AtomicU8::new(0);

/// The mode in force: that of [`set_mode`], else that of the environment variable `TILEGEMM`, else [`Mode::On`].
pub fn mode() -> Mode {
    match MODE.load(Ordering::Relaxed) {
        1 => Mode::Off,
        2 => Mode::On,
        3 => Mode::Force,
        4 => Mode::Trace,
        _ => {
            let mode = mode_from_env();
            set_mode(mode);
            mode
        }
    }
}

/// Sets the mode for the whole process.
pub fn set_mode(mode: Mode) {
    MODE.store(mode as u8, Ordering::Relaxed);
}

fn mode_from_env() -> Mode {
    match std::env::var("TILEGEMM").as_deref() {
        Err(_) | Ok("" | "on") => Mode::On,
        Ok("off") => Mode::Off,
        Ok("force") => Mode::Force,
        Ok("trace") => Mode::Trace,
        Ok(value) => {
            eprintln!("candle-tilegemm: TILEGEMM={value} is not understood (off, on, force or trace); using on");
            Mode::On
        }
    }
}

static DRY_RUN: AtomicBool = AtomicBool::new(false);

/// While on, every call that arrives returns success and launches nothing: results are garbage. What a model takes then is
/// what it takes beside its products.
#[doc(hidden)]
pub fn set_dry_run(on: bool) {
    DRY_RUN.store(on, Ordering::Relaxed);
}

pub(super) fn is_dry_run() -> bool {
    DRY_RUN.load(Ordering::Relaxed)
}
