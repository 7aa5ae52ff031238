//! The formats of results of a row.

use super::{dtype_bytes, Row};
use serde::Deserialize;

/// The formats of results.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Out {
    One(String),
    Each(Vec<String>),
}

impl Row {
    /// The formats of results that are not those of A by themselves.
    pub fn named_outs(&self) -> impl Iterator<Item = &String> {
        let list = match &self.out {
            None => &[],
            Some(Out::One(out)) => std::slice::from_ref(out),
            Some(Out::Each(list)) => &list[..],
        };
        list.iter().filter(|out| *out != "own")
    }

    /// The formats of results of an A of `dtype`; `None`: A's.
    pub fn outs(&self, dtype: &str) -> Vec<Option<&String>> {
        let Some(Out::Each(list)) = &self.out else { return vec![self.named_outs().next()] };
        let mut outs: Vec<_> = list.iter().map(|out| Some(out).filter(|out| *out != "own" && *out != dtype)).collect();
        outs.dedup();
        outs
    }

    /// Whether operands of each dtype have results in these formats.
    pub fn check_outs(&self) -> Result<(), String> {
        let checks = self.dtype.iter().flat_map(|dtype| self.outs(dtype).into_iter().map(move |out| (dtype, out)));
        checks.into_iter().try_for_each(|(dtype, out)| check(dtype, out.map(String::as_str)))
    }
}

/// Whether operands of `dtype` have results in this format.
fn check(dtype: &str, out: Option<&str>) -> Result<(), String> {
    match (dtype_bytes(dtype), out) {
        (1, Some("f16" | "bf16" | "f32")) | (2, Some("f32")) | (2.., None) => Ok(()),
        (1, _) => Err(format!("field `out`: {dtype} has results in \"f16\", \"bf16\" or \"f32\"; name one")),
        _ => Err("field `out`: expected \"f32\", for 16-bit operands; remove it".into()),
    }
}
