//! Weights of both kinds: dense ones of a `VarBuilder`, and the blocks of a GGUF file.

mod dense;
mod experts;
mod gguf;
mod source;
mod tokens;

pub(crate) use dense::{cuts_experts, Dense};
pub(crate) use gguf::{cuts_experts_of_file, Gguf};
pub(crate) use source::{Norm, Source};
pub(crate) use tokens::{Head, Table};
