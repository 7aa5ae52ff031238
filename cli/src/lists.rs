//! Lists of products: those of models with experts, with quantised and with narrow weights, and random ones of a seed.

pub mod experts;
pub mod gguf;
pub mod narrow;
pub mod random;
mod routing;

use candle_tilegemm::internal::suite::{Distribution, Lines, Shape, ShapeGroups, Shared, Size};
pub use routing::Routing;
