//! `tilegemm bench`: times the dispatcher's choices against the vendor library and the roofline.

#[cfg(feature = "bench")]
mod address;
#[cfg(any(feature = "bench", test))]
mod allocation;
mod args;
#[cfg(feature = "bench")]
pub mod arms;
#[cfg(feature = "bench")]
mod card;
#[cfg(feature = "bench")]
pub mod check;
mod compact;
mod compare;
mod contenders;
#[cfg(feature = "bench")]
mod cupti;
mod decoder;
#[cfg(feature = "bench")]
mod eager;
#[cfg(any(feature = "bench", feature = "models"))]
mod footprint;
#[cfg(feature = "bench")]
pub mod gguf;
#[cfg(feature = "bench")]
mod grouped;
mod html;
#[cfg(feature = "bench")]
mod ladder;
#[cfg(feature = "bench")]
mod learning;
#[cfg(feature = "bench")]
mod lt;
#[cfg(feature = "bench")]
pub mod measure;
#[cfg(feature = "bench")]
pub mod measured;
#[cfg(feature = "bench")]
mod models;
#[cfg(any(feature = "bench", all(test, feature = "candle")))]
pub mod narrow;
#[cfg(feature = "bench")]
pub mod operands;
pub mod options;
#[cfg(feature = "bench")]
pub mod order;
mod regret;
pub mod report;
#[cfg(feature = "bench")]
mod routed;
#[cfg(feature = "bench")]
pub mod run;
#[cfg(any(feature = "bench", feature = "models"))]
mod samples;
#[cfg(any(feature = "bench", feature = "models"))]
mod shapes;
mod show;
pub mod table;
#[cfg(feature = "bench")]
mod timing;
#[cfg(any(feature = "bench", feature = "models"))]
#[cfg_attr(not(feature = "bench"), allow(dead_code))] // decoders take the numbers alone
mod weights;

use crate::{Failure, Result};
pub use args::{duration, pause, Args};
use candle_tilegemm::internal::suite::Shape;
use compare::Comparison;
use decoder::DecoderReport;
use report::Report;
use std::path::Path;

pub fn run(args: &Args) -> Result {
    if let [first, second] = &args.compare[..] {
        return compare(first, second, args);
    }
    if let Some(path) = &args.from {
        if let Some(report) = decoder::read(path)? {
            return show_decoder(&report, path, args);
        }
        let report = pick(Report::load(path)?, path, args)?;
        args.save(&report)?;
        return show::show(&report, args);
    }
    match &args.decoder {
        Some(model) => run_decoder(model, args),
        None => measure(args, &args.products.shapes()?),
    }
}

/// Prints a record of a decoder.
fn show_decoder(report: &DecoderReport, path: &Path, args: &Args) -> Result {
    if args.json.is_some() || args.html.is_some() || !args.arms.is_empty() || !args.products.only.is_empty() {
        let path = path.display();
        return Err(Failure::Usage(format!(
            "{path} is a record of --decoder: --from prints its tables, and takes no other option with it"
        )));
    }
    crate::print(decoder::table(report))
}

/// The rows and arms of a record that `--only` and `--arms` ask for.
fn pick(report: Report, path: &Path, args: &Args) -> Result<Report> {
    report.pick(&args.products.only, &args.arms).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
}

fn compare(first: &Path, second: &Path, args: &Args) -> Result {
    let paths = [first, second];
    let [first, second] = paths.map(|path| Report::load(path).and_then(|report| pick(report, path, args)));
    let (first, second) = (first?, second?);
    let ours = ["ours".to_string()];
    let arms = if args.arms.is_empty() { &ours[..] } else { &args.arms };
    let comparison = Comparison::new(&first, &second, arms);
    if comparison.is_empty() {
        let [x, y] = paths.map(Path::display);
        let arms = arms.join(" and ");
        let (x_holds, y_holds) = (first.contents(), second.contents());
        let what = format!("no product has a time of {arms} in both records, so there is nothing to compare");
        return Err(format!("{what}\n  {x}: {x_holds}\n  {y}: {y_holds}").into());
    }
    crate::print(comparison.to_string().trim_end())?;
    match comparison.regressions() {
        0 => Ok(()),
        _ => Err(Failure::Silent),
    }
}

/// All that the command makes of a record: text, comparison and page.
pub fn draw(json: serde_json::Value) -> Result<String> {
    let report = Report::from_json(json)?;
    let comparison = Comparison::new(&report, &report, &["ours".to_string()]);
    Ok(format!("{}\n{comparison}\n{}", show::text(&report), html::page(&report)?))
}

#[cfg(feature = "models")]
use decoder::bench as run_decoder;

/// A build for the CPU is all that tiny decoders need.
#[cfg(not(feature = "models"))]
fn run_decoder(_: &str, _: &Args) -> Result {
    let features = "`--features cuda,sm90,full,bench,models`, or with `--features models` for tiny ones on the CPU";
    Err(Failure::NoDevice(format!(
        "this build has no decoders; build it with {features}, or read a record with --from"
    )))
}

#[cfg(feature = "bench")]
fn measure(args: &Args, shapes: &[Shape]) -> Result {
    run::measure(args, shapes)
}

#[cfg(not(feature = "bench"))]
pub const CANNOT_MEASURE: &str = "this build cannot measure; build it with `--features cuda,sm90,full,bench`";

#[cfg(not(feature = "bench"))]
fn measure(_: &Args, _: &[Shape]) -> Result {
    Err(Failure::NoDevice(format!("{CANNOT_MEASURE}, or read a record with --from or --compare")))
}
