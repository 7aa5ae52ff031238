//! `tilegemm errors`: the precision of products beside cuBLAS's and candle's kernels: the tables of docs/log/2026-11-f32-errors.md,
//! docs/log/2026-11-gguf-errors.md and docs/log/2026-11-narrow-errors.md.

mod cells;
#[cfg(any(feature = "bench", test))]
pub mod data;
mod f32;
mod files;
mod gguf;
#[cfg(feature = "bench")]
mod measure;
mod narrow;
#[cfg(any(feature = "bench", all(test, feature = "candle")))]
mod operands;
mod record;
#[cfg(test)]
mod tests;

use crate::words::{words, Words};
use crate::{bench, explain, Failure, Result};
use candle_tilegemm::Layout;
use files::Files;
use record::{Record, Subject};

/// Samples of each arm and product, unless asked otherwise.
#[cfg(feature = "bench")]
const SAMPLES: u16 = 31;
/// The pause after each sample, in lengths of the sample.
#[cfg(feature = "bench")]
const PAUSE: f64 = 2.0;

/// Measure errors of products against f64, beside cuBLAS's and candle's kernels
///
/// Errors are the largest and the root mean square over sum |a| |b| against f64, by kind of data.
///
/// f32: cuBLAS SGEMM, our kernels in the modes strict, accurate and TF32, and cuBLAS in TF32, by K, on 512 x 512 results; and times of the f32 rows of
/// the benchmark suite's classes f32 and attention. Our times are times of the dispatcher's choice without cuBLAS. All five arms take turns, as with
/// `tilegemm bench --arms candle-strict,own-strict,own-accurate,candle-tf32,own-tf32`.
///
/// gguf: products with quantised weights beside candle's kernels, by format of the weights, with few rows and with many, on 256 columns with sums of length
/// 4096; f64 of the dequantised weights and the given activations. candle quantises the weights. Ours is the dispatcher's choice; candle's kernels are
/// those of candle's QMatMul, which a build with the feature interpose-kernels lacks.
///
/// narrow: products with weights in fp8, 4 and 8 bits, MXFP4 and NVFP4 and activations in bf16, beside the product of the weights in bf16, on 256 columns with
/// sums of length 4096; and products of fp8 by fp8 and int8 by int8 beside cuBLASLt, with sums of length 16384, in units of 2^-13 and less half a unit of the
/// result; f64 of the quantised operands. Ours is the dispatcher's choice.
///
/// The command prints the tables. With --from it prints a record from another machine, or puts the record into a document. Ctrl-C ends it after the
/// current product.
#[derive(clap::Args)]
pub struct Args {
    /// f32 products, products with the quantised weights of GGUF files, or products with narrow weights
    #[arg(value_name = "PRODUCTS", value_parser = subjects())]
    of: Subject,
    /// f32: layouts whose errors are measured; several layouts with commas [default: nt]
    #[arg(long, value_delimiter = ',', conflicts_with = "from", value_parser = explain::layouts())]
    layout: Vec<Layout>,
    /// f32: samples of each arm and product [default: 31]
    #[arg(long, conflicts_with = "from", value_parser = clap::value_parser!(u16).range(5..=1000))]
    samples: Option<u16>,
    /// f32: pause after each sample, in lengths of the sample; without pauses, large products measure the card's power limit [default: 2]
    #[arg(long, conflicts_with = "from", value_parser = bench::pause)]
    pause: Option<f64>,
    #[command(flatten)]
    files: Files,
}

fn subjects() -> Words<Subject> {
    words(Subject::ALL.map(|subject| (subject.name(), subject)))
}

pub fn run(args: &Args) -> Result {
    let has_times = args.samples.is_some() || args.pause.is_some();
    if args.of != Subject::F32 && (has_times || !args.layout.is_empty()) {
        let message = "--layout, --samples and --pause are for f32: products with quantised or narrow weights have one layout, and no times are measured";
        return Err(Failure::Usage(message.into()));
    }
    args.files.run(args.of, || measure(args))
}

/// The tables of the record in this JSON.
pub fn draw(json: serde_json::Value) -> Result<String> {
    Ok(files::tables(&Record::of_json(json, None)?))
}

#[cfg(feature = "bench")]
fn measure(args: &Args) -> Result<Record> {
    match args.of {
        Subject::F32 => {
            let layouts = if args.layout.is_empty() { vec![Layout::NT] } else { args.layout.clone() };
            measure::f32::run(&layouts, args.samples.unwrap_or(SAMPLES), args.pause.unwrap_or(PAUSE))
        }
        Subject::Gguf => measure::gguf::run(),
        Subject::Narrow => measure::narrow::run(),
    }
}

#[cfg(not(feature = "bench"))]
fn measure(_: &Args) -> Result<Record> {
    Err(Failure::NoDevice(format!("{}, or read a record with --from", bench::CANNOT_MEASURE)))
}
