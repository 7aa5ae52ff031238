//! Decoders on the CPU: random models against candle_transformers and against the dequantised weights.

#[path = "../common/mod.rs"]
mod common;
mod families;
mod gpt_oss;
mod names;
mod narrow;
mod ranks_narrow;
mod refusals;
mod steps;
