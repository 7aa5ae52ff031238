//! Weights of both kinds: dense ones of a `VarBuilder`, and the blocks of a GGUF file.

mod dense;
mod gguf;
mod source;
mod tokens;

pub(crate) use dense::Dense;
pub(crate) use gguf::Gguf;
pub(crate) use source::{Norm, Source};
pub(crate) use tokens::{Head, Table};
