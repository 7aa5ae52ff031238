//! The vendor library as one more kernel: cuBLAS, called with candle's conventions.

pub(crate) mod api;
mod call;
mod library;
mod sums;
#[cfg(test)]
mod tests;

pub use api::VendorLibrary;
pub use call::VendorCall;
