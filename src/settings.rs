//! The environment variables of this library. [`ALL`] lists each variable once, and no other module reads the
//! environment.
//!
//! An empty variable counts as not set.

pub mod names;
mod switch;

pub(crate) use switch::Switch;

use crate::error::{Error, Result};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

/// An environment variable.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Setting {
    /// The name of the variable.
    pub name: &'static str,
    /// The permitted values: `on|off`, `<MiB>`.
    pub holds: &'static str,
    /// The value where the variable is not set; empty for none.
    pub default: &'static str,
    /// The effect of the variable.
    pub decides: &'static str,
    /// The Cargo feature without which the variable does nothing.
    pub feature: Option<&'static str>,
    /// The error's description of permitted values.
    expected: &'static str,
    check: fn(&Setting, OsString) -> Result<()>,
}

/// The mode of the interposer.
pub const MODE: Setting = Setting {
    name: "TILEGEMM",
    holds: "off|on|force|trace",
    default: "on",
    decides: "mode of the interposer; `force` makes a call that our kernels do not take an error",
    feature: Some("interpose"),
    expected: "off, on, force or trace",
    check: Setting::check_word,
};

/// The file of a trace.
pub const TRACE: Setting = Setting {
    name: "TILEGEMM_TRACE",
    holds: "<file>",
    default: "tilegemm-trace.toml",
    decides: "where `TILEGEMM=trace` writes",
    feature: None,
    expected: "a file",
    check: |_, _| Ok(()),
};

/// The one kernel to use.
pub const FORCE: Setting = Setting {
    name: "TILEGEMM_FORCE",
    holds: "<kernel>[@<configuration>]",
    default: "",
    decides: "the one kernel to take",
    feature: Some("cuda"),
    expected: "a kernel, or a kernel and a configuration as in NAME@128x64_k2",
    check: Setting::check_as::<String>,
};

/// Whether the vendor library is a candidate.
pub const VENDOR: Setting = Setting {
    name: "TILEGEMM_VENDOR",
    holds: "on|off",
    default: "on",
    decides: "whether cuBLAS is a candidate",
    feature: Some("cuda"),
    expected: "on or off",
    check: Setting::check_word,
};

/// Whether a row of a result depends on other rows.
pub const BATCH_INVARIANT: Setting = Setting {
    name: "TILEGEMM_BATCH_INVARIANT",
    holds: "on|off",
    default: "off",
    decides: "whether a row of a result is the same to the bit whatever other rows there are",
    feature: Some("cuda"),
    expected: "on or off",
    check: Setting::check_word,
};

/// Sums of 16-bit products in cuBLAS.
pub const EXACT_SUMS: Setting = Setting {
    name: "TILEGEMM_EXACT_SUMS",
    holds: "on|off",
    default: "off",
    decides: "whether the interposer has cuBLAS add 16-bit products in f32 throughout",
    feature: Some("interpose"),
    expected: "on or off",
    check: Setting::check_word,
};

/// The report of the preload library.
pub const STATS: Setting = Setting {
    name: "TILEGEMM_STATS",
    holds: "on|off",
    default: "off",
    decides: "whether the preload library writes its counters to stderr when the program ends",
    feature: Some("preload"),
    expected: "on or off",
    check: Setting::check_word,
};

/// What happens to a product of experts, or with quantised weights, that cannot run.
pub const ON_FAILURE: Setting = Setting {
    name: "TILEGEMM_ON_FAILURE",
    holds: "nan|abort",
    default: "nan",
    decides: "what a call of candle's kernels for experts or quantised weights, or of mistralrs's, does when it cannot run: give NaN, or end the program",
    feature: Some("interpose-kernels"),
    expected: "nan or abort",
    check: Setting::check_word,
};

/// The f32 mode of the process.
pub const F32: Setting = Setting {
    name: "TILEGEMM_F32",
    holds: "accurate|strict|tf32",
    default: "accurate",
    decides: "how exact f32 products are, where neither call nor program says",
    feature: None,
    expected: "accurate, strict or tf32",
    check: Setting::check_word,
};

/// The size of a workspace.
pub const WORKSPACE: Setting = Setting {
    name: "TILEGEMM_WORKSPACE",
    holds: "<MiB>",
    default: "128",
    decides: "device memory of each stream for copies and partial sums",
    feature: None,
    expected: "a number of MiB, 0 for none",
    check: Setting::check_as::<u32>,
};

/// Programmatic dependent launch.
pub const PDL: Setting = Setting {
    name: "TILEGEMM_PDL",
    holds: "on|off",
    default: "on",
    decides: "whether a kernel may start while the kernel before still runs (programmatic dependent launch)",
    feature: Some("cuda"),
    expected: "on or off",
    check: Setting::check_word,
};

/// Graphs of a decoder's steps.
pub const GRAPHS: Setting = Setting {
    name: "TILEGEMM_GRAPHS",
    holds: "on|off",
    default: "on",
    decides: "whether the steps of a decoder become CUDA graphs",
    feature: Some("layers"),
    expected: "on or off",
    check: Setting::check_word,
};

/// The measured table with precedence.
pub const TUNING: Setting = Setting {
    name: "TILEGEMM_TUNING",
    holds: "<file>|off",
    default: "",
    decides: "the measured table to ask first, instead of the one in the cache; or none at all",
    feature: None,
    expected: "a file, or off",
    check: |_, _| Ok(()),
};

/// Whether a program learns.
pub const LEARN: Setting = Setting {
    name: "TILEGEMM_LEARN",
    holds: "on|off",
    default: "off",
    decides: "whether the first calls of a product try several kernels, and the fastest stays",
    feature: Some("cuda"),
    expected: "on or off",
    check: Setting::check_word,
};

/// Tests that need a GPU.
pub const REQUIRE_GPU: Setting = Setting {
    name: "TILEGEMM_REQUIRE_GPU",
    holds: "1",
    default: "",
    decides: "GPU tests fail without a device instead of being skipped",
    feature: None,
    expected: "1",
    check: |_, _| Ok(()),
};

/// Every environment variable of this library.
pub const ALL: [Setting; 15] = [
    MODE,
    TRACE,
    STATS,
    FORCE,
    VENDOR,
    BATCH_INVARIANT,
    EXACT_SUMS,
    ON_FAILURE,
    F32,
    WORKSPACE,
    PDL,
    GRAPHS,
    TUNING,
    LEARN,
    REQUIRE_GPU,
];

impl Setting {
    /// The value at the start of the process; `None` where the variable is not set, or empty.
    pub fn value(&self) -> Option<OsString> {
        std::env::var_os(self.name).filter(|value| !value.is_empty())
    }

    /// Checks that the value, if there is one, is permitted.
    ///
    /// # Errors
    /// [`Error::BadSetting`] when the variable holds something else.
    pub fn check(&self) -> Result<()> {
        self.value().map_or(Ok(()), |value| self.check_value(value))
    }

    /// Checks that the variable may hold `value`.
    ///
    /// # Errors
    /// As for [`Setting::check`].
    pub fn check_value(&self, value: OsString) -> Result<()> {
        (self.check)(self, value)
    }

    /// # Errors
    /// [`Error::BadSetting`] when the variable holds something else than a `T`.
    fn read<T: FromStr>(&self) -> Result<Option<T>> {
        self.value().map(|value| self.parse(value)).transpose()
    }

    /// # Errors
    /// As for `read`.
    pub(crate) fn parse<T: FromStr>(&self, value: OsString) -> Result<T> {
        let bad = |value: String, expected| Error::BadSetting { name: self.name, value, expected };
        let text = value.into_string().map_err(|value| bad(value.to_string_lossy().into(), "text in UTF-8"))?;
        text.parse().map_err(|_| bad(text, self.expected))
    }

    fn switch(&self) -> Result<bool> {
        Ok(self.read()?.map_or(self.default == "on", |OnOff(on)| on))
    }

    fn path(&self) -> Option<PathBuf> {
        self.value().map(PathBuf::from)
    }

    fn check_as<T: FromStr>(&self, value: OsString) -> Result<()> {
        self.parse::<T>(value).map(drop)
    }

    /// Whether the value is one of the words of [`Setting::holds`].
    fn check_word(&self, value: OsString) -> Result<()> {
        let value: String = self.parse(value)?;
        match self.holds.split('|').any(|word| word == value) {
            true => Ok(()),
            false => Err(Error::BadSetting { name: self.name, value, expected: self.expected }),
        }
    }
}

struct OnOff(bool);

impl FromStr for OnOff {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "on" => Ok(Self(true)),
            "off" => Ok(Self(false)),
            _ => Err(()),
        }
    }
}

/// The value of [`MODE`], whatever the value is.
#[cfg(feature = "interpose")]
pub(crate) fn mode() -> Result<Option<String>> {
    MODE.read()
}

/// The value of [`TRACE`].
pub(crate) fn trace() -> Option<PathBuf> {
    TRACE.path()
}

/// The value of [`FORCE`].
pub(crate) fn force() -> Result<Option<String>> {
    FORCE.read()
}

/// The value of [`VENDOR`].
pub(crate) fn vendor() -> Result<bool> {
    VENDOR.switch()
}

/// The value of [`BATCH_INVARIANT`].
pub(crate) fn batch_invariant() -> Result<bool> {
    BATCH_INVARIANT.switch()
}

/// The value of [`EXACT_SUMS`].
#[cfg(feature = "interpose")]
pub(crate) fn exact_sums() -> Result<bool> {
    EXACT_SUMS.switch()
}

/// The value of [`STATS`].
#[cfg(feature = "preload")]
pub(crate) fn stats() -> Result<bool> {
    STATS.switch()
}

/// Whether [`ON_FAILURE`] asks for the end of the program.
#[cfg(any(feature = "interpose-kernels", feature = "interpose-mistralrs"))]
pub(crate) fn aborts_on_failure() -> Result<bool> {
    ON_FAILURE.check()?;
    Ok(ON_FAILURE.read::<String>()?.is_some_and(|value| value == "abort"))
}

/// The value of [`F32`].
pub(crate) fn f32_mode<Mode: FromStr>() -> Result<Option<Mode>> {
    F32.read()
}

/// The value of [`WORKSPACE`], in MiB.
pub(crate) fn workspace() -> Result<Option<u32>> {
    WORKSPACE.read()
}

/// The value of [`PDL`].
#[cfg(feature = "cuda")]
pub(crate) fn overlap() -> Result<bool> {
    PDL.switch()
}

/// The value of [`LEARN`].
pub(crate) fn learn() -> Result<bool> {
    LEARN.switch()
}

/// Whether the steps of a decoder become CUDA graphs: `TILEGEMM_GRAPHS`, on unless given.
pub fn graphs() -> Result<bool> {
    GRAPHS.switch()
}

/// The request of [`TUNING`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tuning {
    /// No measured table.
    Off,
    /// This table before the shipped table.
    File(PathBuf),
}

/// The value of [`TUNING`].
pub fn tuning() -> Option<Tuning> {
    TUNING.path().map(|path| if path.as_os_str() == "off" { Tuning::Off } else { Tuning::File(path) })
}

/// The user's folder for caches: `$XDG_CACHE_HOME`, else `~/.cache`. `None` where neither folder is known.
pub fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG Base Directory Specification says to ignore relative paths.
    let cache = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    cache.or_else(|| Some(set("HOME")?.join(".cache")))
}

#[cfg(test)]
mod tests {
    use super::{OnOff, Setting, ALL, F32, VENDOR, WORKSPACE};
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    fn error<T: std::str::FromStr>(setting: &Setting, value: impl Into<OsString>) -> String {
        setting.parse::<T>(value.into()).err().expect("it is not understood").to_string()
    }

    #[test]
    fn a_value_that_is_not_utf8_is_an_error_and_not_unset() {
        let text = error::<String>(&F32, OsString::from_vec(b"str\xffct".to_vec()));
        assert_eq!(text, "TILEGEMM_F32=str\u{fffd}ct is not understood; expected text in UTF-8");
        assert_eq!(F32.parse::<String>("strict".into()).unwrap(), "strict");
    }

    #[test]
    fn a_workspace_is_a_number_of_mib_or_an_error() {
        assert_eq!([0, 64].map(|mib| WORKSPACE.parse::<u32>(mib.to_string().into()).unwrap()), [0, 64]);
        for bad in ["-1", "64MiB", "off", "1.5", "99999999999"] {
            let expected = format!("TILEGEMM_WORKSPACE={bad} is not understood; expected a number of MiB, 0 for none");
            assert_eq!(error::<u32>(&WORKSPACE, bad), expected);
        }
    }

    #[test]
    fn a_switch_is_on_or_off_and_its_default_where_it_is_not_set() {
        assert_eq!(["on", "off"].map(|value| VENDOR.parse::<OnOff>(value.into()).unwrap().0), [true, false]);
        for bad in ["of", "ON", "1"] {
            let expected = format!("TILEGEMM_VENDOR={bad} is not understood; expected on or off");
            assert_eq!(error::<OnOff>(&VENDOR, bad), expected);
        }
        let never_set = |default| Setting { name: "TILEGEMM_NEVER_SET", default, ..VENDOR };
        assert!(never_set("on").value().is_none());
        assert_eq!(["on", "off"].map(|default| never_set(default).switch().unwrap()), [true, false]);
    }

    #[test]
    fn an_error_lists_the_words_that_a_variable_may_hold() {
        for setting in ALL.iter().filter(|setting| !setting.holds.contains('<') && setting.holds.contains('|')) {
            let (first, last) = setting.holds.rsplit_once('|').unwrap();
            assert_eq!(setting.expected, format!("{} or {last}", first.replace('|', ", ")), "{}", setting.name);
            assert!(setting.holds.split('|').any(|word| word == setting.default), "{}", setting.name);
        }
    }
}
