//! `tilegemm bench --decoder`: whole decoders with random weights. Stock is candle-transformers' model on candle's own kernels; ours is the decoder of `models/`,
//! its steps launched by the host, and captured as graphs.
//!
//! The weights of both are the same numbers, made on the device. Ours is loaded, measured and dropped before stock is: large models fit once. Every step gives
//! its token to the host, as a program needs it.

#[cfg(feature = "models")]
mod blocks;
#[cfg(feature = "models")]
mod measure;
#[cfg(feature = "models")]
mod narrow;
#[cfg(feature = "models")]
mod ours;
#[cfg(feature = "models")]
mod pool;
#[cfg(feature = "models")]
mod ranks;
mod read;
#[cfg_attr(not(feature = "models"), allow(dead_code))] // without it, records are only read
mod record;
#[cfg(feature = "models")]
mod roof;
#[cfg(feature = "models")]
mod run;
#[cfg(feature = "models")]
mod size;
#[cfg(feature = "models")]
mod stock;
#[cfg(feature = "models")]
mod subject;
mod table;
#[cfg(all(test, feature = "models"))]
mod tests;

pub use read::read;
pub use record::DecoderReport;
#[cfg(feature = "models")]
pub use run::bench;
pub use table::table;
