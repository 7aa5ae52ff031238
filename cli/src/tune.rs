//! `tilegemm tune`: times the kernels that can run each product of a suite, and records the kernels that beat the
//! dispatcher's choice.

mod args;
#[cfg(feature = "bench")]
mod contest;
#[cfg(feature = "bench")]
mod output;
#[cfg(feature = "bench")]
mod search;

use crate::Result;
pub use args::Args;
use candle_tilegemm::internal::suite::Shape;

pub fn run(args: &Args) -> Result {
    measure(args, &args.products.shapes()?)
}

#[cfg(feature = "bench")]
fn measure(args: &Args, shapes: &[Shape]) -> Result {
    search::run(args, shapes)
}

#[cfg(not(feature = "bench"))]
fn measure(_: &Args, _: &[Shape]) -> Result {
    Err(crate::Failure::NoDevice(crate::bench::CANNOT_MEASURE.into()))
}
