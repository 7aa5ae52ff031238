//! `tilegemm tune`: times the kernels that can run each product of a suite, and records the kernels that beat the
//! dispatcher's choice.

#[cfg(feature = "bench")]
mod contest;
#[cfg(feature = "bench")]
mod output;
#[cfg(feature = "bench")]
mod search;

use crate::cli::{bench, Result};
use crate::suite::Shape;
use std::path::PathBuf;
use std::time::Duration;

/// Measure which kernels are fastest on this GPU, and write a table that the dispatcher asks before its estimates
///
/// For each product of the suite, the dispatcher's choice, every kernel of our own and the vendor library are timed as
/// `tilegemm bench` does it: cold operands, in turns, with pauses, results checked. One that is more than 3 % faster than the
/// choice is timed against it a second time, on fresh operands, and entered if it is so again. With the vendor library off
/// (TILEGEMM_VENDOR=off, TILEGEMM=force) the dispatcher chooses among our own kernels: for that there are entries of their own.
///
/// The table holds for this GPU model, this driver branch and this version of the crate; elsewhere it is refused. An entry of it
/// holds as long as the code of its kernel stays the same.
/// TILEGEMM_TUNING=FILE|off names another table, or has none asked. Ctrl-C ends it after the product in hand and writes what
/// was found. Nothing is measured unless this command is run.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Products to measure, in the format of benches/suite.toml, instead of those; `tilegemm trace` writes such a file
    #[arg(long, value_name = "FILE")]
    suite: Option<PathBuf>,
    /// Only rows whose id or class contains this; several with commas
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    f32: crate::cli::F32,
    /// Fit the run into this time, e.g. 10m: the most informative rows first
    #[arg(long, value_name = "TIME", value_parser = bench::duration)]
    budget: Option<Duration>,
    /// Where the table goes [default: candle-tilegemm/GPU.json in $XDG_CACHE_HOME or ~/.cache, where it is found again]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Keep what the table at that place has for other products
    #[arg(long)]
    merge: bool,
    /// Replace the table at that place
    #[arg(long, conflicts_with = "merge")]
    force: bool,
    /// Samples of each kernel and product
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u16).range(5..=1000))]
    samples: u16,
    /// Pause after each sample, in lengths of it; without pauses large products measure the card's power limit
    #[arg(long, default_value_t = 2.0, value_parser = bench::pause)]
    pause: f64,
}

pub fn run(args: &Args) -> Result {
    let shapes = bench::shapes(args.suite.as_deref(), &args.only)?;
    measure(args, &shapes)
}

#[cfg(feature = "bench")]
fn measure(args: &Args, shapes: &[Shape]) -> Result {
    search::run(args, shapes)
}

#[cfg(not(feature = "bench"))]
fn measure(_: &Args, _: &[Shape]) -> Result {
    Err(crate::cli::Failure::NoDevice(bench::CANNOT_MEASURE.into()))
}
