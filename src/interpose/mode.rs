//! The mode of the interposer, set by the environment or by the program.

use super::tell::tell;
use crate::error::Result;
use crate::settings::names::Unknown;
use crate::settings::Switch;
use crate::{settings, trace};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::Once;

/// How the interposer treats calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Mode {
    /// Every call goes to cuBLAS.
    Off = 1,
    /// The dispatcher chooses; cuBLAS is one of its choices.
    On = 2,
    /// Our own kernels only: a call inside the contract that no own kernel supports is an error, so that a test suite
    /// cannot pass on cuBLAS by accident.
    Force = 3,
    /// As `On`. In addition, each distinct product is written to a file in the format of the benchmark suite
    /// (`tilegemm trace`), and to stderr with the kernel chosen for the product.
    Trace = 4,
}

const UNSET: u8 = 0;
static MODE: AtomicU8 = AtomicU8::new(UNSET);

/// The mode in force: the mode set by [`set_mode`], else by the environment variable `TILEGEMM`, else [`Mode::On`].
pub fn mode() -> Mode {
    match MODE.load(Ordering::Relaxed) {
        1 => Mode::Off,
        2 => Mode::On,
        3 => Mode::Force,
        4 => Mode::Trace,
        _ => first_mode(mode_from_env()),
    }
}

/// The mode of the environment, unless another thread has set a mode meanwhile.
fn first_mode(of_env: Mode) -> Mode {
    match MODE.compare_exchange(UNSET, of_env as u8, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            trace::start_if_asked();
            of_env
        }
        Err(_) => mode(),
    }
}

/// Sets the mode for the whole process.
///
/// ```
/// use candle_tilegemm::interpose::{mode, set_mode, Mode};
///
/// set_mode(Mode::Off); // for instance to measure the program without us
/// assert_eq!(mode(), Mode::Off);
/// set_mode(Mode::On);
/// ```
pub fn set_mode(mode: Mode) {
    MODE.store(mode as u8, Ordering::Relaxed);
    trace::switch(mode == Mode::Trace);
}

/// Starts [`Mode::Trace`] with this file, whatever `TILEGEMM_TRACE` says, and forgets the products seen before.
///
/// ```
/// use candle_tilegemm::interpose::{mode, trace_to, Mode};
///
/// trace_to(std::env::temp_dir().join("model.toml")); // `tilegemm bench --suite` and `tilegemm tune --suite` read it
/// assert_eq!(mode(), Mode::Trace);
/// ```
pub fn trace_to(path: impl Into<PathBuf>) {
    trace::write_to(path);
    set_mode(Mode::Trace);
}

fn mode_from_env() -> Mode {
    tell_unknown_names();
    match settings::mode().map(|value| value.unwrap_or_default()).as_deref() {
        Ok("" | "on") => Mode::On,
        Ok("off") => Mode::Off,
        Ok("force") => Mode::Force,
        Ok("trace") => Mode::Trace,
        Ok(value) => {
            tell(&format!("TILEGEMM={value} is not understood (off, on, force or trace); using on"));
            Mode::On
        }
        Err(error) => {
            tell(&format!("{error}; using on"));
            Mode::On
        }
    }
}

/// Tells of variables with misspelt names, once: `TILEGEM=off` changes nothing, and nothing else would say so.
fn tell_unknown_names() {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        for Unknown { name, nearest } in settings::names::unknown() {
            tell(&format!("{name} is no variable of this library and changes nothing; the nearest is {nearest}"));
        }
    });
}

static EXACT_SUMS: Switch = Switch::new(settings::exact_sums);

/// Sets whether cuBLAS adds 16-bit products that the dispatcher gives to cuBLAS in f32 throughout. While the switch is
/// off, cuBLAS gets such a call of the program unchanged and may add partial sums in 16 bits, as in a program without
/// the interposer.
///
/// ```
/// use candle_tilegemm::interpose::{exact_sums, set_exact_sums};
///
/// set_exact_sums(true);
/// assert!(exact_sums()?);
/// # Ok::<(), candle_tilegemm::Error>(())
/// ```
pub fn set_exact_sums(on: bool) {
    EXACT_SUMS.set(on);
}

/// Whether cuBLAS adds 16-bit products in f32: by [`set_exact_sums`], else by the environment variable
/// `TILEGEMM_EXACT_SUMS=on|off`, else false.
///
/// # Errors
/// [`Error::BadSetting`](crate::Error::BadSetting) when the environment variable decides and its value is neither.
pub fn exact_sums() -> Result<bool> {
    EXACT_SUMS.is_on()
}

static DRY_RUN: AtomicBool = AtomicBool::new(false);

/// While on, every intercepted call returns success and launches nothing: results are garbage. The time of a model is
/// then the time of everything but the model's products.
#[doc(hidden)]
pub fn set_dry_run(on: bool) {
    DRY_RUN.store(on, Ordering::Relaxed);
}

pub(super) fn is_dry_run() -> bool {
    DRY_RUN.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::{first_mode, mode, set_mode, Mode, Ordering, MODE, UNSET};

    #[test]
    fn a_mode_that_is_set_while_the_environment_is_read_stays() {
        MODE.store(UNSET, Ordering::Relaxed);
        set_mode(Mode::Force); // after mode() has seen that none is set
        assert_eq!((first_mode(Mode::Off), mode()), (Mode::Force, Mode::Force));
        MODE.store(UNSET, Ordering::Relaxed);
        assert_eq!((first_mode(Mode::Off), mode()), (Mode::Off, Mode::Off));
        set_mode(Mode::On);
    }
}
