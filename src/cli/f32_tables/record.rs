//! The record of `tilegemm f32`: errors, and times in the format of `tilegemm bench`.

use crate::cli::bench::report::{Report, SCHEMA};
use crate::cli::{Failure, Result};
use crate::Layout;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

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

/// An error over the sum of |a| |b|, against f64.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorsOf {
    pub max: f64,
    /// Root mean square.
    pub rms: f64,
    pub kernel: String,
}

impl Record {
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|e| Failure::Usage(format!("cannot read {}: {e}", path.display())))?;
        let record: Self = serde_json::from_str(&text)
            .map_err(|e| format!("{} is no record of `tilegemm f32 --json`: {e}", path.display()))?;
        match record.bench.schema {
            SCHEMA => Ok(record),
            other => Err(format!("{}: schema {other}, this command reads {SCHEMA}", path.display()).into()),
        }
    }

    pub fn save(&self, path: &Path) -> Result {
        let text = serde_json::to_string_pretty(self)?;
        Ok(std::fs::write(path, text + "\n").map_err(|e| format!("cannot write {}: {e}", path.display()))?)
    }

    /// The flaw that forbids publishing the record, if there is one.
    pub fn flaw(&self) -> Option<&'static str> {
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
