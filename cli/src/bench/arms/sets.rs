//! The arms of runs.

/// The arms of a run without `--arms`.
pub const DEFAULT: [&str; 7] = ["ours", "own", "own-best", "candle", "cublaslt", "cublaslt-any", "cublaslt-top1"];

/// The arms of a run over random products without `--arms`.
pub const RANDOM: [&str; 5] = ["ours", "ours-untuned", "own", "candle", "every"];

/// The arms of a run over products of experts without `--arms`.
pub const EXPERTS: [&str; 5] = ["ours", "own", "own-best", "candle", "cublas-loop"];
/// The same with quantised weights.
pub const GGUF_EXPERTS: [&str; 3] = ["ours", "own-best", "candle"];

/// The arms of a run over products with narrow weights without `--arms`.
pub const NARROW: [&str; 4] = ["ours", "own-best", "cublaslt", "bf16"];
/// The same over experts with narrow weights.
pub const NARROW_EXPERTS: [&str; 3] = ["ours", "own-best", "bf16"];

/// The arms of a run over products with quantised weights without `--arms`.
pub const GGUF: [&str; 4] = ["ours", "own-best", "candle", "bf16"];
