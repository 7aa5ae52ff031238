//! Decoders of GGUF files on the CPU. Each test has candle dequantise all its weights, by a variable of the environment.

#[path = "../common/mod.rs"]
mod common;
mod decoders;
mod ranks;
