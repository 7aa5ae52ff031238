//! Sentence embeddings with all-MiniLM-L6-v2, through candle-transformers' BERT and through a BERT on our layers.
//!
//! Both models see the same weights and batches. The example compares the embeddings, times both models, and lists the matrix
//! products of our model with the kernel that ran each product.
//!
//! ```sh
//! third_party/fetch.sh model
//! cargo run -p candle-tilegemm-examples --bin embed                                  # a built-in set, on the CPU
//! cargo run -p candle-tilegemm-examples --bin embed -- --sentences notes.txt --json
//! cargo run -p candle-tilegemm-examples --bin embed --features cuda,sm90 -- --dtype bf16
//! ```

mod input;
mod minilm;
mod model;
mod notice;
mod report;

use anyhow::{bail, Context, Result};
use candle::{DType, Device, Tensor};
use candle_tilegemm::stats;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum};
use input::Batch;
use model::{Embedder, Folder};
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Embeds sentences with all-MiniLM-L6-v2, with stock candle and with candle-tilegemm, and compares the two.
#[derive(Parser)]
#[command(args_override_self = true)] // the last of a repeated option counts
struct Args {
    /// UTF-8 text, one sentence per line, or `-` for stdin; a built-in set unless given
    #[arg(long, value_name = "FILE")]
    sentences: Option<PathBuf>,
    /// Folder of the model; else TILEGEMM_MODEL_DIR, else where third_party/fetch.sh puts it
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// auto: the GPU where there is one, else the CPU
    #[arg(long, value_enum, default_value = "auto")]
    device: DeviceChoice,
    /// Type of weights and activations; embeddings are always f32
    #[arg(long, default_value = "f32", value_parser = PossibleValuesParser::new(["f32", "f16", "bf16"])
        .try_map(|name| name.parse::<DType>()))]
    dtype: DType,
    /// Sentences per batch
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Timed runs of each model, taken in turns; the median is printed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Print JSON; notices still go to stderr
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum DeviceChoice {
    Auto,
    Cpu,
    Cuda,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    // Stock means cuBLAS. A linked interposer would give stock's products to our kernels.
    #[cfg(feature = "interpose")]
    candle_tilegemm::interpose::set_mode(candle_tilegemm::interpose::Mode::Off);

    let sentences = input::read_sentences(args.sentences.as_deref())?;
    let device = args.device.open()?;
    let folder = Folder::find(args.model.as_deref())?;
    let (stock, ours) = folder.load_models(args.dtype, &device)?;
    let batches = input::tokenize(&sentences, &folder, args.batch_size as usize, &device)?;

    // Our model runs first in this process, so the counters hold this one pass.
    let our_embeddings = embed(&ours, &batches)?;
    let gemms = stats::gemms();
    let stock_embeddings = embed(&stock, &batches)?;
    // The passes above have warmed up both models.
    let [stock_ms, our_ms] = time([&stock, &ours], &batches[0], args.runs, &device)?;

    let report = Report {
        device: describe(&device),
        max_abs_diff: report::max_abs_diff(&our_embeddings, &stock_embeddings)?,
        embeddings: our_embeddings.to_vec2()?,
        stock_ms,
        ours_ms: our_ms,
        gemms,
    };
    if args.json {
        report.print_json()
    } else {
        println!("all-MiniLM-L6-v2, {}, on {}\n", args.dtype.as_str(), report.device);
        report::print_similarities(&sentences, &our_embeddings)?;
        report.print_comparison(batches[0].ids.dims2()?);
        report.print_gemms();
        Ok(())
    }
}

impl DeviceChoice {
    fn open(self) -> Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda if !cfg!(feature = "cuda") => {
                bail!("built without CUDA; add `--features cuda,sm90`, or the architecture of your GPU, to `cargo run`")
            }
            Self::Cuda => Device::new_cuda(0).context("no CUDA device; `--device cpu` runs without one"),
            Self::Auto if !cfg!(feature = "cuda") => Ok(Device::Cpu),
            Self::Auto => Ok(Device::new_cuda(0).unwrap_or_else(|error| {
                eprintln!("notice: running on the CPU, as there is no CUDA device: {}", notice::text(&error));
                Device::Cpu
            })),
        }
    }
}

fn describe(device: &Device) -> String {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => {
            candle_tilegemm::launch::device_info(0).map_or_else(|error| error.to_string(), |info| info.name)
        }
        _ => "CPU".into(),
    }
}

/// Embeddings of all batches, (sentences, hidden).
fn embed(model: &dyn Embedder, batches: &[Batch]) -> Result<Tensor> {
    let embeddings = batches.iter().map(|batch| model.embed(batch)).collect::<candle::Result<Vec<_>>>()?;
    Ok(Tensor::cat(&embeddings, 0)?)
}

/// Median milliseconds of each model for one batch. The models take turns, so that a change of the clocks meets both.
fn time(models: [&dyn Embedder; 2], batch: &Batch, runs: u32, device: &Device) -> Result<[f64; 2]> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..runs {
        for (model, times) in models.iter().zip(&mut times) {
            device.synchronize()?;
            let start = Instant::now();
            model.embed(batch)?;
            device.synchronize()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }))
}
