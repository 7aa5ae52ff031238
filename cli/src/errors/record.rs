//! The record of `tilegemm errors`.

use crate::bench::report::{Machine, Report};
use candle_tilegemm::{Format, Layout};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the format.
pub const SCHEMA: u32 = 2;

/// What the products of a record are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// Products of f32 numbers, in all modes.
    F32,
    /// Products with the quantised weights of GGUF files.
    Gguf,
    /// Products with narrow weights, and of 8 bits by 8 bits.
    Narrow,
}

impl Subject {
    pub const ALL: [Self; 3] = [Self::F32, Self::Gguf, Self::Narrow];

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Gguf => "gguf",
            Self::Narrow => "narrow",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub schema: u32,
    pub of: Subject,
    /// Version of this crate.
    pub version: String,
    pub machine: Machine,
    pub errors: Vec<Errors>,
    /// Times of f32 products, in the format of `tilegemm bench`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bench: Option<Report>,
}

/// The errors of one product.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// The format of A, where it is not f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub a: Option<Format>,
    pub b: Format,
    /// The formats with their factors, of products with narrow operands: `bf16 x u4 g128 -> bf16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formats: Option<String>,
    pub layout: Layout,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// The distribution of the data.
    pub data: String,
    /// Errors by name of the arm of `tilegemm bench`.
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
    #[cfg(feature = "bench")]
    pub fn new(of: Subject, machine: Machine, errors: Vec<Errors>, bench: Option<Report>) -> Self {
        Self { schema: SCHEMA, of, version: candle_tilegemm::internal::VERSION.into(), machine, errors, bench }
    }

    /// The record in this JSON, of the asked products.
    pub fn of_json(mut json: serde_json::Value, asked: Option<Subject>) -> Result<Self, String> {
        if let Some(schema) =
            json.get("schema").and_then(serde_json::Value::as_u64).filter(|of| *of != u64::from(SCHEMA))
        {
            return Err(format!("schema {schema}, this command reads {SCHEMA}"));
        }
        let bench = json.get_mut("bench").map(|bench| Report::from_json(bench.take())).transpose()?;
        let record = serde_json::from_value(json).map_err(|e| format!("no record of `tilegemm errors --json`: {e}"))?;
        let record = Self { bench, ..record };
        match asked.filter(|asked| *asked != record.of) {
            Some(asked) => Err(format!("it has errors of {}, not of {}", record.of.name(), asked.name())),
            None => Ok(record),
        }
    }

    /// The machine, the versions and the date of the measurement, for the head of a table.
    pub fn place(&self) -> String {
        let Machine { gpu, driver, cuda, cublas, git, date, .. } = &self.machine;
        let (date, version) = (date.split('T').next().unwrap_or_default(), &self.version);
        format!("{gpu}, driver {driver}, CUDA {cuda}, cuBLAS {cublas}, {date}, candle-tilegemm {version}, commit {git}")
    }
}
