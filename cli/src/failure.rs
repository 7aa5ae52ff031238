//! Why a command failed.

use std::fmt;

/// Why a command failed.
pub enum Failure {
    /// The command line is invalid: exit code 2, as for errors of clap.
    Usage(String),
    /// The command line was valid and the command failed: exit code 1.
    Error(Box<dyn std::error::Error>),
    /// Like `Error`, with all messages already printed.
    Silent,
    /// The command needs a GPU that this machine lacks, or a build for a GPU: exit code 2.
    NoDevice(String),
    /// Ctrl-C ended the command: exit code 130.
    #[cfg(feature = "bench")]
    Interrupted,
    /// The traced program ended with this exit code.
    Exit(u8),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(message) | Failure::NoDevice(message) => f.write_str(message),
            Failure::Error(error) => error.fmt(f),
            Failure::Silent => f.write_str("failed, as said before"),
            #[cfg(feature = "bench")]
            Failure::Interrupted => f.write_str("interrupted"),
            Failure::Exit(code) => write!(f, "the program ended with exit code {code}"),
        }
    }
}

pub type Result<T = ()> = std::result::Result<T, Failure>;

impl<E: Into<Box<dyn std::error::Error>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Error(error.into())
    }
}
