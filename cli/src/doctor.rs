//! `tilegemm doctor`: requirements for building and running kernels, their state on this machine, and remedies.

mod environment;
mod finding;
#[cfg(feature = "cuda")]
mod gpu;
mod toolkits;
mod tuning;

use crate::kernels::{built_for, left_out};
use crate::{Failure, Result};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::KernelDesc;
use finding::{Finding, Status, FEATURES};
use serde::Serialize;

#[derive(clap::Args)]
pub struct Args {
    /// Print JSON: the findings, and whether what was built can run
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    /// Whether nothing that running needs is missing or broken: the exit code is 0 then.
    can_run: bool,
    sections: Vec<Section>,
}

/// Findings on one subject.
#[derive(Serialize)]
struct Section {
    title: &'static str,
    /// Whether a finding that is missing or broken keeps what was built from running.
    is_needed_to_run: bool,
    findings: Vec<Finding>,
}

pub fn run(args: &Args) -> Result {
    let section = |title, is_needed_to_run, findings| Section { title, is_needed_to_run, findings };
    let sections = vec![
        section("this build", true, build()),
        section("to run it", true, run_time()),
        section("settings", true, environment::findings()),
        section("measured tables", true, tuning::findings()),
        section("to build and start programs with the feature `cuda`", false, toolkits::findings()),
    ];
    let needed = sections.iter().filter(|section| section.is_needed_to_run).flat_map(|section| &section.findings);
    let bad = needed.filter(|finding| matches!(finding.status, Status::Missing | Status::Broken)).count();
    let report = Report { can_run: bad == 0, sections };
    if args.json {
        crate::print_json(&report)?;
    } else {
        report.sections.iter().try_for_each(Section::print)?;
        match bad {
            0 => crate::print("what was built can run")?,
            bad => crate::print(format_args!("what was built cannot run: {bad} missing or broken above"))?,
        }
    }
    match report.can_run {
        true => Ok(()),
        false => Err(Failure::Silent),
    }
}

impl Section {
    fn print(&self) -> Result {
        crate::print(self.title)?;
        self.findings.iter().try_for_each(crate::print)?;
        crate::print("")
    }
}

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
    let mut findings = vec![
        Finding::ok("version", candle_tilegemm::internal::VERSION),
        Finding::ok("features", format!("on: {}; off: {}", list(true), list(false))),
        Finding::ok("kernels", format!("{count} of {} built ({})", KERNELS.len(), built_for())),
    ];
    let all: Vec<&KernelDesc> = KERNELS.iter().collect();
    findings.extend(left_out(&all).into_iter().map(|line| Finding::ok("kernels", line)));
    findings
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
