//! The products of a running program as a benchmark suite: a row of [`crate::suite`] for each distinct product.
//!
//! With `TILEGEMM=trace` in the environment, the launches of the op and of the interposer are recorded;
//! `tilegemm trace -- PROGRAM` sets this variable. Products are distinct by sizes, strides, element type and epilogue,
//! not by the alignment of their pointers or the f32 mode.

#[cfg(feature = "interpose")]
mod process;
mod tracer;

#[cfg(feature = "interpose")]
pub(crate) use process::{outside, start_if_asked, switch, unplanned, write_to};
pub use tracer::DEFAULT_FILE;
pub use tracer::{class_of, Recorded, Tracer, LEFT_OUT};
