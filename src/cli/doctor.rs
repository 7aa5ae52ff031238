//! `tilegemm doctor`: requirements for building and running kernels, their state on this machine, and remedies.

#[cfg(feature = "cuda")]
mod gpu;
mod toolkits;
mod tuning;

use crate::cli::kernels::built_for;
use crate::cli::{Failure, Result};
use crate::dispatch::Policy;
use crate::family::KERNELS;
use crate::settings::{self, Setting};
use crate::Error;
use std::fmt::{self, Display};

/// The rating of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Ok,
    /// The component works, but not as expected.
    Warn,
    /// The component is absent.
    Missing,
    /// The component is present and does not work.
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
    /// The remedy.
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
        ("settings", environment()),
        ("measured tables", tuning::findings()),
    ];
    for (title, findings) in &needed_to_run {
        print_section(title, findings)?;
    }
    print_section("to build and start programs with the feature `cuda`", &toolkits::findings())?;

    let findings = needed_to_run.iter().flat_map(|(_, findings)| findings);
    match findings.filter(|finding| matches!(finding.status, Status::Missing | Status::Broken)).count() {
        0 => crate::cli::print("what was built can run"),
        count => {
            crate::cli::print(format_args!("what was built cannot run: {count} missing or broken above"))?;
            Err(Failure::Silent)
        }
    }
}

fn print_section(title: &str, findings: &[Finding]) -> Result {
    crate::cli::print(title)?;
    findings.iter().try_for_each(crate::cli::print)?;
    crate::cli::print("")
}

/// The features of this build, and whether they are on.
const FEATURES: [(&str, bool); 6] = [
    ("candle", cfg!(feature = "candle")),
    ("cuda", cfg!(feature = "cuda")),
    ("cutile", cfg!(feature = "cutile")),
    ("interpose", cfg!(feature = "interpose")),
    ("interpose-kernels", cfg!(feature = "interpose-kernels")),
    ("preload", cfg!(feature = "preload")),
];

fn build() -> Vec<Finding> {
    let list = |wanted: bool| {
        let names: Vec<_> = FEATURES.into_iter().filter(|(_, on)| *on == wanted).map(|(name, _)| name).collect();
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
        let remedy = "build with the feature of its architecture, such as sm90";
        findings.push(Finding::problem(Status::Warn, "device", "an NVIDIA GPU that this build does not use", remedy));
    }
    findings
}

/// The environment variables that change the choice of kernels; the measured tables have a section of their own.
fn environment() -> Vec<Finding> {
    let listed = settings::ALL.iter().filter(|setting| setting.name != settings::TUNING.name);
    let (set, unset): (Vec<&Setting>, Vec<_>) = listed.partition(|setting| setting.value().is_some());
    let mut findings: Vec<Finding> = set.into_iter().map(setting).collect();
    if !unset.is_empty() {
        let names: Vec<_> = unset.into_iter().map(|setting| setting.name).collect();
        findings.push(Finding::ok("not set", names.join(", ")));
    }
    findings
}

fn setting(setting: &Setting) -> Finding {
    let value = setting.value().unwrap_or_default();
    let value = value.to_string_lossy();
    let what = format!("{}={value}", setting.name);
    let finding = |status, remedy: String| Finding::problem(status, "set", &what, remedy);
    let wrong = match setting.check() {
        Err(Error::BadSetting { expected, .. }) => Some(expected),
        _ => None,
    };
    let lacks = |feature: &&str| FEATURES.iter().any(|(name, on)| name == feature && !on);
    match (wrong, setting.feature.filter(lacks)) {
        (Some(expected), _) if setting.name == settings::MODE.name => {
            finding(Status::Warn, format!("is read as on; set it to {expected}"))
        }
        (_, Some(feature)) => finding(Status::Warn, format!("does nothing without the feature `{feature}`")),
        (Some(expected), None) => finding(Status::Broken, format!("is not understood; expected {expected}")),
        (None, None) if setting.name == settings::FORCE.name => forced(&what, &value),
        (None, None) => Finding::ok("set", what),
    }
}

fn forced(what: &str, kernel: &str) -> Finding {
    let broken = |error: String| Finding::problem(Status::Broken, "set", what, error);
    match Policy::force(kernel).map(|policy| policy.forced()) {
        Err(error) => broken(error.to_string()),
        Ok(Some(kernel)) if !kernel.is_built() => broken("is not in this build; unset it, or build its arch".into()),
        Ok(_) => Finding::ok("set", what),
    }
}
