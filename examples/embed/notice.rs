//! An error as the one line of a notice.

use candle::Error;

/// The text of an error, without the backtrace that candle adds where `RUST_BACKTRACE` is set.
pub fn text(error: &Error) -> String {
    match error {
        Error::WithBacktrace { inner, .. } => text(inner),
        error => error.to_string(),
    }
}
