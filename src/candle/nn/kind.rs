//! Which products can be one.

use crate::candle::qweights::Stored;
use ::candle::DType;

/// Products with the same kind can be one; narrow ones say so themselves.
#[derive(PartialEq)]
pub(super) enum Kind {
    Dense(DType),
    Blocks(Stored),
    /// Weights that were dequantised.
    Dequantised(DType),
    Narrow,
}
