//! What a notice says of an error: one line.

use candle::Error;

/// The error's own text, without the backtrace that candle adds where `RUST_BACKTRACE` is set.
pub fn text(error: &Error) -> String {
    match error {
        Error::WithBacktrace { inner, .. } => text(inner),
        error => error.to_string(),
    }
}
