//! Messages to the user on stderr.

use std::io::Write;

/// Writes a line to stderr. Unlike `eprintln`, this function does not panic when stderr is closed.
pub(crate) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "candle-tilegemm: {text}");
}
