//! The arguments of `tilegemm tune`.

use crate::bench;
use crate::products::Products;
use std::path::PathBuf;
use std::time::Duration;

/// Measure which kernels are fastest on this GPU, and write a table that the dispatcher asks before its estimates
///
/// For each product of the suite, the command times the dispatcher's choice, every kernel of our own and the vendor library as
/// `tilegemm bench` does: cold operands, in turns, with pauses, results checked. A kernel that is more than 3 % faster than the choice
/// is timed against the choice a second time, on fresh operands. A kernel that wins both times gets an entry. With the vendor library
/// off (TILEGEMM_VENDOR=off, TILEGEMM=force) the dispatcher chooses among our own kernels; this choice has entries of its own.
///
/// `--class experts` takes the products of models with experts, with uniform routing.
///
/// The table is valid for this GPU model, this driver branch and this version of the crate; elsewhere the table is refused. An entry is
/// valid as long as the code of its kernel stays the same.
/// TILEGEMM_TUNING=FILE names another table; TILEGEMM_TUNING=off switches tables off. Ctrl-C ends the command after the current product
/// and writes the results so far. Nothing else measures.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub products: Products,
    #[command(flatten)]
    pub f32: crate::F32,
    /// Fit the run into this time, e.g. 10m: the most informative rows first
    #[arg(long, value_name = "TIME", value_parser = bench::duration)]
    pub budget: Option<Duration>,
    /// The file of the table [default: candle-tilegemm/GPU.json in $XDG_CACHE_HOME or ~/.cache, where the dispatcher looks for a table]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Keep the entries that this file has for other products
    #[arg(long)]
    pub merge: bool,
    /// Replace this file
    #[arg(long, conflicts_with = "merge")]
    pub force: bool,
    /// Samples of each kernel and product
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u16).range(5..=1000))]
    pub samples: u16,
    /// Pause after each sample, in lengths of the sample; without pauses, large products measure the card's power limit
    #[arg(long, default_value_t = 2.0, value_parser = bench::pause)]
    pub pause: f64,
}
