//! The arguments of `tilegemm bench`.

use super::report::{Form, Report};
use crate::products::Products;
use crate::{words, Result};
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub products: Products,
    /// Arms: ours, ours-untuned, ours-invariant, learned for what a program chooses once it has learned, own, own-best, candle, cublaslt, cublaslt-any, cublaslt-top1, own-MODE and candle-MODE for an
    /// f32 mode, cublas-loop for products of experts, bf16 for quantised weights, names of kernels, `every` for each of our kernels and the vendor's call, or `contenders` for those with the lowest estimates
    #[arg(long, value_name = "ARM", value_delimiter = ',', value_parser = arm)]
    pub arms: Vec<String>,
    #[command(flatten)]
    pub f32: crate::F32,
    /// Samples of each arm and row
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u16).range(3..=1000))]
    pub samples: u16,
    /// Pause after each sample, in lengths of the sample; without pauses, large products measure the card's power limit
    #[arg(long, default_value_t = 2.0, value_parser = pause)]
    pub pause: f64,
    /// Warm-up of a row: this time for each arm, up to seven times; a record for `fit` is made four times as fast with 20ms
    #[arg(long, default_value = "300ms", value_name = "TIME", value_parser = duration)]
    pub warm_up: Duration,
    /// Use one copy of the operands, which stays in the L2 cache where the copy fits
    #[arg(long)]
    pub hot: bool,
    /// Time whole calls of candle (allocation, dispatch, launch) instead of kernels
    #[arg(long)]
    pub eager: bool,
    /// Enter the dispatcher's choice twice, and report the difference of the two
    #[arg(long)]
    pub aa: bool,
    /// Fit the run into this time, e.g. 8m: the most informative rows first
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub budget: Option<Duration>,
    /// Write the record here
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the record without percentiles, in a fifth of the space: for thousands of products
    #[arg(long, requires = "json")]
    pub compact: bool,
    /// Draw the record as a page here
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Read a record instead of measuring; --only and --arms pick its rows and arms
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Show the rows that are faster or slower in the second record than in the first, in `ours` or in --arms; fails on a regression, and where no row is
    /// in both
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"])]
    pub compare: Vec<PathBuf>,
    /// Run the classic ladder, from a CPU loop to the vendor library, at 1024^3 and 4096^3
    #[arg(long)]
    pub ladder: bool,
    /// Run a model: prefill and decode, stock candle and ours in turns, and the errors of both; tiny models run on the CPU
    #[arg(long, value_name = "MODEL", value_parser = words::names(["minilm", "bert-base", "llama3-1b", "llama3-8b", "tiny", "tiny-bert"]))]
    pub model: Option<String>,
    /// Prompt lengths of --model
    #[arg(long, value_delimiter = ',', default_values_t = [128, 2048])]
    pub prompt: Vec<u32>,
    /// Batch sizes of --model
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16])]
    pub batch: Vec<u32>,
    /// Tokens to decode in --model, and steps of a run of --decoder
    #[arg(long, default_value_t = 32)]
    pub decode: u32,
    /// Runs of each arm in --model, taken in turns, and in --decoder
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// A folder with config.json and *.safetensors for --model, in place of random weights
    #[arg(long, value_name = "DIR")]
    pub weights: Option<PathBuf>,
    /// Run a decoder with random weights: candle-transformers' model (`stock`), and ours with steps launched by the host (`eager`) and captured as graphs
    /// (`captured`), which are its --arms; --budget 4m leaves out what does not fit; tiny decoders run on the CPU
    #[arg(long, value_name = "MODEL", value_parser = words::names(DECODERS))]
    pub decoder: Option<String>,
    /// Prompts of --decoder, in tokens of one sequence
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_values_t = [128, 512, 2048, 8192], value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill: Vec<u32>,
    /// Tokens before the steps of --decoder
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_values_t = [128, 2048, 8192], value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Vec<u32>,
    /// Sequences of a step of --decoder
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 8, 32], value_parser = clap::value_parser!(u32).range(1..=64))]
    pub sequences: Vec<u32>,
    /// Cards that compute our arms of --decoder together, from the first on; on the CPU threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub cards: u8,
    /// The type of keys and values of our arms of --decoder; else the decoder's
    #[arg(long, value_name = "TYPE", value_parser = words::names(["fp8"]))]
    pub cache: Option<String>,
    /// Do not compare results with the reference
    #[arg(long, hide = true)]
    pub no_check: bool,
    /// Plant a mistake, to test the check of results: a kernel that skips its last K tile, or zeros as data
    #[arg(long, hide = true)]
    pub plant: Option<Plant>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Plant {
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
    pub fn save(&self, report: &Report) -> Result {
        let form = if self.compact { Form::Compact } else { Form::Whole };
        self.json.as_ref().map_or(Ok(()), |path| report.save(path, form))
    }
}

/// Sizes of --decoder.
pub const DECODERS: [&str; 19] = [
    "llama3-8b",
    "llama3-8b-q4_k_m",
    "llama3-8b-fp8",
    "llama3-8b-fp8-dynamic",
    "llama3-8b-w4a16",
    "llama3-1b",
    "llama3-70b",
    "qwen3-30b-a3b",
    "qwen3-30b-a3b-fp8",
    "qwen3-30b-a3b-fp8-dynamic",
    "gpt-oss-20b",
    "smollm2-135m",
    "smollm2-135m-q4_1",
    "tiny",
    "tiny-q4_k_m",
    "tiny-fp8",
    "tiny-fp8-dynamic",
    "tiny-w4a16",
    "tiny-gpt-oss",
];

/// Names of arms that are no kernels.
const ARMS: [&str; 19] = [
    "ours",
    "ours-untuned",
    "ours-invariant",
    "learned",
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
