//! Files that the crate reads, or makes at build time: the kernel table, what the kernels' own checks say of it, measured tables, suites.

#![allow(clippy::duplicate_mod)] // two tests read build/table.rs, one of them with the feature `cli` only

#[cfg(feature = "cli")]
#[path = "../support/records.rs"]
mod records;

#[cfg(feature = "cuda")]
mod contract;
mod hashes;
mod kernels;
#[cfg(feature = "cli")]
mod mistakes;
mod refused_tables;
#[cfg(any(feature = "cli", feature = "interpose"))]
mod suite;
mod tuning;
