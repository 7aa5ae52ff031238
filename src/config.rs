//! How a kernel runs one problem, where its family leaves that open.

/// The configuration of a launch: chosen with the plan, passed to the kernel, which refuses one that it does not have.
///
/// Zeros where a family chooses for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize)]
pub struct Config {
    /// Rows and columns of D that a thread block computes.
    pub tile: [u32; 2],
    /// Parts of K that are computed side by side, and added up in the end.
    pub split: u32,
}
