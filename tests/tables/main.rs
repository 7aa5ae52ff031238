//! Files that the crate reads, or makes at build time: the kernel table, what the kernels' own checks say of it, measured tables, suites.

mod builds;
mod cards;
#[cfg(feature = "cuda")]
mod contract;
mod edges;
mod hashes;
mod kernels;
mod refused_tables;
mod suite;
mod tuning;
