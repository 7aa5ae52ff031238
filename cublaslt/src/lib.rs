//! Stands in for the crate candle-cublaslt by a line in `[patch]`: see [`candle_tilegemm::cublaslt`].

pub use candle_tilegemm::cublaslt::*;
