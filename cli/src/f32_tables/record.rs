//! The record of `tilegemm f32`: errors, and times in the format of `tilegemm bench`.

use super::markdown;
use crate::bench::report::Report;
use crate::errors::{self, ErrorsOf};
use candle_tilegemm::Layout;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The compared arms of `tilegemm bench`: cuBLAS with candle's conventions, and ours.
pub const ARMS: [&str; 5] = ["candle-strict", "own-strict", "own-accurate", "candle-tf32", "own-tf32"];

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of this crate.
    pub version: String,
    pub errors: Vec<Errors>,
    /// Times, and the machine of the whole measurement.
    pub bench: Report,
}

/// The errors of one product.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    pub layout: Layout,
    pub k: usize,
    /// The distribution of the data.
    pub data: String,
    /// Errors by name of the arm.
    pub arms: BTreeMap<String, ErrorsOf>,
    /// Arms that do not run the product, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub absent: BTreeMap<String, String>,
}

impl errors::Record for Record {
    const COMMAND: &'static str = "f32";

    fn schema(&self) -> u32 {
        self.bench.schema
    }

    fn tables(&self) -> String {
        markdown::tables(self)
    }

    fn flaw(&self) -> Option<&'static str> {
        let left_out = |start: &str| self.bench.left_out.values().any(|reason| reason.starts_with(start));
        if self.bench.rows.iter().any(|row| row.is_wrong()) {
            Some("a result is wrong")
        } else if left_out("failed") {
            Some("a product failed")
        } else if left_out("interrupted") {
            Some("it was interrupted")
        } else {
            None
        }
    }
}
