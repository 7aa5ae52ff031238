//! The order in which kernels add up the products of an element of D.

use crate::config::Config;
use std::fmt;

/// The order in which a kernel adds up the products of an element of D, where neither M nor the element's place decides. Kernels of one
/// order give the same bits for the same row of A and column of B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SumOrder {
    /// Hopper's tensor cores add up 16 products of 16-bit operands at a time, from the first K to the last.
    Wgmma,
    /// The same with 8 products of operands in TF32.
    WgmmaTf32,
    /// Hopper's tensor cores add up six products of bf16 parts; K alone decides where sums leave the tensor cores.
    WgmmaBf16x6,
    /// One chain of fused multiply-adds, from the first K to the last.
    Chain,
    /// Chains of 64 fused multiply-adds, whose sums are added up.
    Chains64,
    /// Tensor cores add up the products of an instruction of `mma.sync` at a time: the last, incomplete block of K first, the others in
    /// order.
    Mma {
        /// K of a block.
        block: u32,
    },
    /// Tensor cores add up the products of an instruction of `mma.sync` at a time, 16 of 16-bit operands, from the first K to the last.
    MmaInOrder,
    /// The order of one row of the table.
    Row {
        /// The row's kernel.
        kernel: &'static str,
        /// The part of the configuration that decides.
        config: Config,
    },
}

impl fmt::Display for SumOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SumOrder::Wgmma => f.write_str("16 products at a time, on tensor cores"),
            SumOrder::WgmmaTf32 => f.write_str("8 products at a time, on tensor cores in TF32"),
            SumOrder::WgmmaBf16x6 => f.write_str("products of bf16 parts, on tensor cores"),
            SumOrder::Mma { block } => write!(f, "in blocks of {block} on tensor cores"),
            SumOrder::MmaInOrder => f.write_str("16 products at a time, by mma.sync"),
            SumOrder::Chain => f.write_str("in one chain of fused multiply-adds"),
            SumOrder::Chains64 => f.write_str("in chains of 64 fused multiply-adds"),
            SumOrder::Row { kernel, config } if config.is_default() => write!(f, "in the order of {kernel}"),
            SumOrder::Row { kernel, config } => write!(f, "in the order of {kernel}@{config}"),
        }
    }
}
