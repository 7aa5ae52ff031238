//! The command `tilegemm`, its readers of suites and records, and its pages.

#[path = "../../../tests/support/records.rs"]
mod records;
mod support;

mod bench;
mod command;
mod decoder;
mod errors;
mod fit;
mod gguf;
mod layout;
mod learn;
mod machine;
mod mistakes;
mod narrow;
mod random;
mod readers;
mod regret;
mod report;
mod routing;
#[cfg(unix)]
mod tracing;
mod tune;
