//! `tilegemm gguf`: the precision of products with quantised weights, beside candle's kernels: the tables of docs/gguf.md.

#[cfg(feature = "bench")]
mod measure;
mod record;
#[cfg(test)]
mod tests;

use crate::errors::Files;
use crate::Result;
use record::Record;

/// Measure errors of products with quantised weights beside candle's kernels, as the tables of docs/gguf.md
///
/// Errors are the largest and the root mean square over sum |w x| against f64 of the dequantised weights and the given activations. They are
/// measured by format and kind of data, with few rows and with many, on 256 columns with sums of length 4096. candle quantises the weights.
/// Ours is the dispatcher's choice; candle's kernels are those of candle's QMatMul, which a build with the feature interpose-kernels lacks.
///
/// The command prints the tables. With --from the command prints a record from another machine, or puts the record into a document. Ctrl-C ends
/// the command after the current kind of data.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    files: Files,
}

pub fn run(args: &Args) -> Result {
    args.files.run(measure)
}

#[cfg(feature = "bench")]
fn measure() -> Result<Record> {
    measure::run()
}

#[cfg(not(feature = "bench"))]
fn measure() -> Result<Record> {
    let what = crate::bench::CANNOT_MEASURE;
    Err(crate::Failure::NoDevice(format!("{what}, or read a record with --from")))
}
