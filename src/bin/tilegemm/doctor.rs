//! `tilegemm doctor`: what kernels need to be built and to run, whether it is here, and what to do where it is not.

#[cfg(feature = "cuda")]
mod gpu;
mod toolkits;
mod tuning;

use crate::kernels::built_for;
use crate::{Failure, Result};
use candle_tilegemm::dispatch::Policy;
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::Error;
use std::fmt::{self, Display};

/// How a finding is rated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Ok,
    /// It works, but not as one would expect.
    Warn,
    /// It is not here.
    Missing,
    /// It is here and does not work.
    Broken,
}

impl Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Missing => "missing",
            Status::Broken => "broken",
        })
    }
}

/// One line of the report.
struct Finding {
    status: Status,
    subject: &'static str,
    what: String,
    /// What to do about it.
    remedy: Option<String>,
}

impl Finding {
    fn ok(subject: &'static str, what: impl Into<String>) -> Self {
        Self { status: Status::Ok, subject, what: what.into(), remedy: None }
    }

    fn problem(status: Status, subject: &'static str, what: impl Display, remedy: impl Into<String>) -> Self {
        Self { status, subject, what: what.to_string(), remedy: Some(remedy.into()) }
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {:<8} {:<12} {}", self.status, self.subject, self.what)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n{:24}-> {remedy}", ""),
            None => Ok(()),
        }
    }
}

pub fn run() -> Result {
    let needed_to_run = [
        ("this build", build()),
        ("to run it", run_time()),
        ("settings", settings()),
        ("measured tables", tuning::findings()),
    ];
    for (title, findings) in &needed_to_run {
        print_section(title, findings)?;
    }
    print_section("to build kernels (feature `cuda`)", &toolkits::findings())?;

    let findings = needed_to_run.iter().flat_map(|(_, findings)| findings);
    match findings.filter(|finding| matches!(finding.status, Status::Missing | Status::Broken)).count() {
        0 => crate::print("what was built can run"),
        count => {
            crate::print(format_args!("what was built cannot run: {count} missing or broken above"))?;
            Err(Failure::Silent)
        }
    }
}

fn print_section(title: &str, findings: &[Finding]) -> Result {
    crate::print(title)?;
    findings.iter().try_for_each(crate::print)?;
    crate::print("")
}

fn build() -> Vec<Finding> {
    let features = [
        ("candle", cfg!(feature = "candle")),
        ("cuda", cfg!(feature = "cuda")),
        ("cutile", cfg!(feature = "cutile")),
        ("interpose", cfg!(feature = "interpose")),
    ];
    let list = |wanted: bool| {
        let names: Vec<_> = features.into_iter().filter(|(_, on)| *on == wanted).map(|(name, _)| name).collect();
        if names.is_empty() {
            "none".into()
        } else {
            names.join(", ")
        }
    };
    let count = KERNELS.iter().filter(|kernel| kernel.is_built()).count();
    vec![
        Finding::ok("version", env!("CARGO_PKG_VERSION")),
        Finding::ok("features", format!("on: {}; off: {}", list(true), list(false))),
        Finding::ok("kernels", format!("{count} of {} built ({})", KERNELS.len(), built_for())),
    ]
}

#[cfg(feature = "cuda")]
fn run_time() -> Vec<Finding> {
    gpu::findings()
}

#[cfg(not(feature = "cuda"))]
fn run_time() -> Vec<Finding> {
    let what = match cfg!(feature = "candle") {
        true => "the CPU: candle's own product, with our epilogue",
        false => "the CPU: plans only, as the features `candle` and `cuda` are off",
    };
    let mut findings = vec![Finding::ok("device", what)];
    if std::path::Path::new("/proc/driver/nvidia/version").exists() {
        let remedy = "build with the feature `cuda` and that of its architecture, such as sm90";
        findings.push(Finding::problem(Status::Warn, "device", "an NVIDIA GPU that this build does not use", remedy));
    }
    findings
}

/// The environment variables that change what runs.
fn settings() -> Vec<Finding> {
    const NAMES: [&str; 9] = [
        "TILEGEMM",
        "TILEGEMM_EXACT_SUMS",
        "TILEGEMM_F32",
        "TILEGEMM_FORCE",
        "TILEGEMM_PDL",
        "TILEGEMM_REQUIRE_GPU",
        "TILEGEMM_TRACE",
        "TILEGEMM_VENDOR",
        "TILEGEMM_WORKSPACE",
    ];
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let (set, unset): (Vec<&str>, Vec<&str>) = NAMES.into_iter().partition(|name| is_set(name));
    let mut findings: Vec<Finding> = set
        .into_iter()
        .map(|name| setting(name, &std::env::var_os(name).unwrap_or_default().to_string_lossy()))
        .collect();
    if !unset.is_empty() {
        findings.push(Finding::ok("not set", unset.join(", ")));
    }
    findings
}

fn setting(name: &'static str, value: &str) -> Finding {
    let what = format!("{name}={value}");
    let broken = |error: String| Finding::problem(Status::Broken, "set", &what, error);
    let read = match name {
        "TILEGEMM_F32" => candle_tilegemm::f32_mode().map(drop),
        "TILEGEMM_WORKSPACE" => candle_tilegemm::workspace::bytes().map(drop),
        _ => Ok(()),
    };
    if let Err(Error::BadSetting { expected, .. }) = read {
        return broken(format!("is not understood; expected {expected}"));
    }
    match name {
        "TILEGEMM_FORCE" | "TILEGEMM_PDL" | "TILEGEMM_VENDOR" if !cfg!(feature = "cuda") => {
            Finding::problem(Status::Warn, "set", &what, "does nothing without the feature `cuda`")
        }
        "TILEGEMM" if !["off", "on", "force", "trace"].contains(&value) => {
            Finding::problem(Status::Warn, "set", &what, "is read as on; set it to off, on, force or trace")
        }
        "TILEGEMM" | "TILEGEMM_EXACT_SUMS" if !cfg!(feature = "interpose") => {
            Finding::problem(Status::Warn, "set", &what, "does nothing without the feature `interpose`")
        }
        "TILEGEMM_FORCE" => match Policy::force(value).map(|policy| policy.forced()) {
            Err(error) => broken(error.to_string()),
            Ok(Some(kernel)) if !kernel.is_built() => {
                broken("is not in this build; unset it, or build its arch".into())
            }
            Ok(_) => Finding::ok("set", what),
        },
        "TILEGEMM_EXACT_SUMS" | "TILEGEMM_PDL" | "TILEGEMM_VENDOR" if !["on", "off"].contains(&value) => {
            broken("is not understood; set it to on or off".into())
        }
        _ => Finding::ok("set", what),
    }
}
