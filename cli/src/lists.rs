//! Lists of products: those of models with experts and with quantised weights, and random ones of a seed.

pub mod experts;
pub mod gguf;
pub mod random;
mod routing;

use candle_tilegemm::internal::suite::{Distribution, Lines, Shape, ShapeGroups, Size};
pub use routing::Routing;
