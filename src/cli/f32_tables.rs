//! `tilegemm f32`: the precision and speed of f32 products in each mode, beside cuBLAS: the tables of docs/f32.md.

#[cfg(any(feature = "bench", test))]
mod data;
mod markdown;
#[cfg(feature = "bench")]
mod measure;
mod record;
#[cfg(test)]
mod tests;

use crate::cli::{bench, explain, products, Failure, Result};
use crate::suite::Shape;
use crate::{Format, Layout};
use record::Record;
use std::path::{Path, PathBuf};

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
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Layouts whose errors are measured; several layouts with commas
    #[arg(long, default_value = "nt", value_delimiter = ',', value_parser = explain::one_of::<Layout>(["nn", "nt", "tn", "tt"]))]
    layout: Vec<Layout>,
    /// Samples of each arm and product
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u16).range(5..=1000))]
    samples: u16,
    /// Pause after each sample, in lengths of the sample; without pauses, large products measure the card's power limit
    #[arg(long, default_value_t = 2.0, value_parser = bench::pause)]
    pause: f64,
    /// Write the record here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Read a record instead of measuring
    #[arg(long, value_name = "FILE", conflicts_with_all = ["layout", "samples", "pause", "json"])]
    from: Option<PathBuf>,
    /// Put the tables into this document, between its lines `<!-- tilegemm f32 -->` and `<!-- end of tilegemm f32 -->`
    #[arg(long, value_name = "FILE")]
    update: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result {
    if let Some(path) = &args.update {
        updated(path, "")?; // reports a wrong document before the measurement
    }
    let record = match &args.from {
        Some(path) => Record::load(path)?,
        None => measure(args, &shapes()?)?,
    };
    if let Some(path) = &args.json {
        record.save(path)?;
    }
    let tables = markdown::tables(&record);
    crate::cli::print(format_args!("\n{}", tables.trim_end()))?;
    #[cfg(feature = "bench")]
    if measure::interrupted() {
        return Err(Failure::Interrupted);
    }
    if let Some(flaw) = record.flaw() {
        let kept = args.update.as_ref().map_or(String::new(), |path| format!("; {} stays as it is", path.display()));
        return Err(format!("{flaw}{kept}").into());
    }
    if let Some(path) = &args.update {
        let text = updated(path, &tables)?;
        std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(())
}

/// A document with these tables.
fn updated(path: &Path, tables: &str) -> Result<String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|e| Failure::Usage(format!("cannot read {}: {e}", path.display())))?;
    let missing = || {
        let [begin, end] = [markdown::BEGIN, markdown::END];
        Failure::Usage(format!("{} has no line '{begin}' with '{end}' after it", path.display()))
    };
    markdown::insert(&text, tables).ok_or_else(missing)
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
    Err(Failure::NoDevice(format!("{}, or read a record with --from", bench::CANNOT_MEASURE)))
}
