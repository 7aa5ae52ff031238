//! `tilegemm f32`: the precision and speed of f32 products in each mode, beside cuBLAS: the tables of docs/f32.md.

mod markdown;
#[cfg(feature = "bench")]
mod measure;
mod record;
#[cfg(test)]
mod tests;

use crate::errors::{self, Files, Record as _};
use crate::{bench, explain, products, Result};
use candle_tilegemm::internal::suite::Shape;
use candle_tilegemm::{Format, Layout};
use record::Record;

/// Measure errors and times of f32 products in each mode beside cuBLAS's, as the tables of docs/f32.md
///
/// Errors are the largest and the root mean square over sum |a| |b| against f64. They are measured for cuBLAS SGEMM, for our kernels in the
/// modes strict, accurate and TF32, and for cuBLAS in TF32, by kind of data and K, on 512 x 512 results. Times are measured on the f32 rows
/// of the benchmark suite's classes f32 and attention. Our times are times of the dispatcher's choice without cuBLAS. All five arms take
/// turns, as with `tilegemm bench --arms candle-strict,own-strict,own-accurate,candle-tf32,own-tf32`.
///
/// The command prints the tables. With --from the command prints a record from another machine, or puts the record into a document. Ctrl-C ends
/// the command after the current product.
#[derive(clap::Args)]
pub struct Args {
    /// Layouts whose errors are measured; several layouts with commas
    #[arg(long, default_value = "nt", value_delimiter = ',', conflicts_with = "from", value_parser = explain::layouts())]
    layout: Vec<Layout>,
    /// Samples of each arm and product
    #[arg(long, default_value_t = 31, conflicts_with = "from", value_parser = clap::value_parser!(u16).range(5..=1000))]
    samples: u16,
    /// Pause after each sample, in lengths of the sample; without pauses, large products measure the card's power limit
    #[arg(long, default_value_t = 2.0, conflicts_with = "from", value_parser = bench::pause)]
    pause: f64,
    #[command(flatten)]
    files: Files,
}

pub fn run(args: &Args) -> Result {
    args.files.run(|| measure(args, &shapes()?))
}

/// The tables of the record in this JSON.
pub fn draw(json: serde_json::Value) -> Result<String> {
    Ok(errors::from_json::<Record>(json)?.tables())
}

/// The products to time.
fn shapes() -> Result<Vec<Shape>> {
    let mut shapes = products::of_the_suite()?;
    shapes.retain(|shape| shape.dtype == Format::F32 && ["f32", "attention"].contains(&shape.class.as_str()));
    Ok(shapes)
}

#[cfg(feature = "bench")]
fn measure(args: &Args, shapes: &[Shape]) -> Result<Record> {
    measure::run(args, shapes)
}

#[cfg(not(feature = "bench"))]
fn measure(_: &Args, _: &[Shape]) -> Result<Record> {
    Err(crate::Failure::NoDevice(format!("{}, or read a record with --from", bench::CANNOT_MEASURE)))
}
