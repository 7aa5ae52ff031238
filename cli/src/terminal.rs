//! What the command prints, on stdout and stderr. A reader that has gone away, like `head`, is no error and no panic.

use super::Result;
use std::fmt;
use std::io::Write;

/// Prints a line to stdout, with an error instead of a panic where stdout is closed.
pub fn print(text: impl fmt::Display) -> Result {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

pub fn print_json(value: &impl serde::Serialize) -> Result {
    print(serde_json::to_string_pretty(value)?)
}

/// Prints a line to stderr; nothing where stderr is closed.
pub fn tell(text: impl fmt::Display) {
    // There is no other place to say it.
    let _ = writeln!(std::io::stderr(), "{text}");
}

pub fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
