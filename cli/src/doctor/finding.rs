//! A line of the report.

use serde::Serialize;
use std::fmt::{self, Display};

/// The rating of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Ok,
    /// The component works, but not as expected.
    Warn,
    /// The component is absent.
    Missing,
    /// The component is present and does not work.
    Broken,
}

impl Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Missing => "missing",
            Status::Broken => "broken",
        })
    }
}

/// One line of the report.
#[derive(Serialize)]
pub struct Finding {
    pub status: Status,
    pub subject: &'static str,
    pub what: String,
    /// What to do; absent where there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    pub fn ok(subject: &'static str, what: impl Into<String>) -> Self {
        Self { status: Status::Ok, subject, what: what.into(), remedy: None }
    }

    pub fn problem(status: Status, subject: &'static str, what: impl Display, remedy: impl Into<String>) -> Self {
        Self { status, subject, what: what.to_string(), remedy: Some(remedy.into()) }
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {:<8} {:<12} {}", self.status, self.subject, self.what)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n{:24}-> {remedy}", ""),
            None => Ok(()),
        }
    }
}

/// The features of this build, and whether they are on.
pub const FEATURES: [(&str, bool); 7] = [
    ("candle", cfg!(feature = "candle")),
    ("cuda", cfg!(feature = "cuda")),
    ("cutile", cfg!(feature = "cutile")),
    ("experts", cfg!(feature = "experts")),
    ("gguf", cfg!(feature = "gguf")),
    ("interpose", cfg!(feature = "interpose")),
    ("interpose-kernels", cfg!(feature = "interpose-kernels")),
];
