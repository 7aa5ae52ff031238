//! The command `tilegemm`, its readers of suites and records, and its pages.

#![cfg(feature = "cli")]

#[path = "../support/records.rs"]
mod records;
#[path = "../support/mod.rs"]
mod support;

mod bench;
mod command;
mod f32_tables;
mod fit;
mod gguf;
mod layout;
mod machine;
mod random;
mod regret;
mod report;
mod routing;
#[cfg(unix)]
mod tracing;
mod tune;
