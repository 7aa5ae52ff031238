//! Weights of both kinds: dense ones of a `VarBuilder`, and the blocks of a GGUF file.

mod dense;
mod gguf;
mod product;
mod source;

pub(crate) use dense::Dense;
pub(crate) use gguf::Gguf;
pub(crate) use product::{Head, Product, Table};
pub(crate) use source::{Norm, Source};
