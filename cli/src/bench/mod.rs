//! `tilegemm bench`: times the dispatcher's choices against the vendor library and the roofline.

#[cfg(any(feature = "bench", test))]
mod allocation;
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
#[cfg(feature = "bench")]
mod eager;
#[cfg(feature = "bench")]
pub mod gguf;
#[cfg(feature = "bench")]
mod grouped;
mod html;
#[cfg(feature = "bench")]
mod ladder;
#[cfg(feature = "bench")]
mod lt;
#[cfg(feature = "bench")]
pub mod measure;
#[cfg(feature = "bench")]
pub mod measured;
#[cfg(feature = "bench")]
mod models;
#[cfg(feature = "bench")]
pub mod operands;
pub mod options;
#[cfg(feature = "bench")]
pub mod order;
mod regret;
pub mod report;
#[cfg(feature = "bench")]
pub mod run;
pub mod table;
#[cfg(feature = "bench")]
mod timing;

use crate::products::Products;
use crate::{words, Failure, Result};
use candle_tilegemm::internal::suite::Shape;
use compare::Comparison;
use report::{Form, Report};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    products: Products,
    /// Arms: ours, ours-untuned, ours-invariant, own, own-best, candle, cublaslt, cublaslt-any, cublaslt-top1, own-MODE and candle-MODE for an
    /// f32 mode, cublas-loop for products of experts, bf16 for quantised weights, names of kernels, `every` for each of our kernels and the vendor's call, or `contenders` for those with the lowest estimates
    #[arg(long, value_name = "ARM", value_delimiter = ',', value_parser = arm)]
    arms: Vec<String>,
    #[command(flatten)]
    f32: crate::F32,
    /// Samples of each arm and row
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u16).range(3..=1000))]
    samples: u16,
    /// Pause after each sample, in lengths of the sample; without pauses, large products measure the card's power limit
    #[arg(long, default_value_t = 2.0, value_parser = pause)]
    pause: f64,
    /// Warm-up of a row: this time for each arm, up to seven times; a record for `fit` is made four times as fast with 20ms
    #[arg(long, default_value = "300ms", value_name = "TIME", value_parser = duration)]
    warm_up: Duration,
    /// Use one copy of the operands, which stays in the L2 cache where the copy fits
    #[arg(long)]
    hot: bool,
    /// Time whole calls of candle (allocation, dispatch, launch) instead of kernels
    #[arg(long)]
    eager: bool,
    /// Enter the dispatcher's choice twice, and report the difference of the two
    #[arg(long)]
    aa: bool,
    /// Fit the run into this time, e.g. 8m: the most informative rows first
    #[arg(long, value_name = "TIME", value_parser = duration)]
    budget: Option<Duration>,
    /// Write the record here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the record without percentiles, in a fifth of the space: for thousands of products
    #[arg(long, requires = "json")]
    compact: bool,
    /// Draw the record as a page here
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Read a record instead of measuring; --only and --arms pick its rows and arms
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Show the rows that are faster or slower in the second record than in the first, in `ours` or in --arms; fails on a regression, and where no row is
    /// in both
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"])]
    compare: Vec<PathBuf>,
    /// Run the classic ladder, from a CPU loop to the vendor library, at 1024^3 and 4096^3
    #[arg(long)]
    ladder: bool,
    /// Run a model: prefill and decode, stock candle and ours in turns, and the errors of both; tiny models run on the CPU
    #[arg(long, value_name = "MODEL", value_parser = words::names(["minilm", "bert-base", "llama3-1b", "llama3-8b", "tiny", "tiny-bert"]))]
    model: Option<String>,
    /// Prompt lengths of --model
    #[arg(long, value_delimiter = ',', default_values_t = [128, 2048])]
    prompt: Vec<u32>,
    /// Batch sizes of --model
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16])]
    batch: Vec<u32>,
    /// Tokens to decode in --model
    #[arg(long, default_value_t = 32)]
    decode: u32,
    /// Runs of each arm in --model, taken in turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// A folder with config.json and *.safetensors for --model, in place of random weights
    #[arg(long, value_name = "DIR")]
    weights: Option<PathBuf>,
    /// Do not compare results with the reference
    #[arg(long, hide = true)]
    no_check: bool,
    /// Plant a mistake, to test the check of results: a kernel that skips its last K tile, or zeros as data
    #[arg(long, hide = true)]
    plant: Option<Plant>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Plant {
    ShortK,
    Zeros,
}

#[cfg(feature = "bench")]
#[derive(clap::Parser)]
struct CommandLine {
    #[command(flatten)]
    args: Args,
}

#[cfg(feature = "bench")]
impl Args {
    /// Parses the words after `tilegemm bench` on a command line.
    pub fn of(words: &[&str]) -> Self {
        let words = ["tilegemm bench"].iter().chain(words);
        <CommandLine as clap::Parser>::parse_from(words).args
    }
}

impl Args {
    /// Writes the record where `--json` asks for it.
    fn save(&self, report: &Report) -> Result {
        let form = if self.compact { Form::Compact } else { Form::Whole };
        self.json.as_ref().map_or(Ok(()), |path| report.save(path, form))
    }
}

pub fn run(args: &Args) -> Result {
    if let [first, second] = &args.compare[..] {
        return compare(first, second, args);
    }
    if let Some(path) = &args.from {
        let report = pick(Report::load(path)?, path, args)?;
        args.save(&report)?;
        return show(&report, args);
    }
    measure(args, &args.products.shapes()?)
}

/// Names of arms that are no kernels.
const ARMS: [&str; 18] = [
    "ours",
    "ours-untuned",
    "ours-invariant",
    "every",
    "contenders",
    "own",
    "own-best",
    "candle",
    "cublas-loop",
    "bf16",
    "cublaslt",
    "cublaslt-any",
    "cublaslt-top1",
    "own-accurate",
    "own-strict",
    "own-tf32",
    "candle-strict",
    "candle-tf32",
];

/// The name of an arm as records have it. An unknown name stays, for the error of the measurement or of the record.
fn arm(text: &str) -> std::result::Result<String, std::convert::Infallible> {
    let known = ARMS.into_iter().find(|name| words::is_same(name, text));
    Ok(known.map_or_else(|| words::kernel(text), String::from))
}

pub fn pause(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(pause) if (0.0..=100.0).contains(&pause) => Ok(pause),
        _ => Err("expected a number from 0 to 100".into()),
    }
}

pub fn duration(text: &str) -> std::result::Result<Duration, String> {
    let duration: jiff::SignedDuration = text.parse().map_err(|e| format!("{e}; expected something like 8m or 90s"))?;
    Duration::try_from(duration).map_err(|e| e.to_string())
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

/// What is printed of a record.
fn text(report: &Report) -> String {
    let text = format!("\n{}\n\n{}", table::summary(report), table::remarks(report));
    match regret::of_report(report).to_string() {
        regret if regret.is_empty() => text,
        regret => format!("{text}\n\n{}", regret.trim_end()),
    }
}

/// All that the command makes of a record: text, comparison and page.
pub fn draw(json: serde_json::Value) -> Result<String> {
    let report = Report::from_json(json)?;
    let comparison = Comparison::new(&report, &report, &["ours".to_string()]);
    Ok(format!("{}\n{comparison}\n{}", text(&report), html::page(&report)?))
}

/// Prints a record, and draws the record where `--html` asks for a page.
fn show(report: &Report, args: &Args) -> Result {
    crate::print(text(report))?;
    if let Some(path) = &args.html {
        html::write(report, path)?;
        crate::print(format_args!("page: {}", path.display()))?;
    }
    Ok(())
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
