//! The JSON record of a benchmark run: schema 1, and schema 2 of the compact form.
//!
//! Times are microseconds of one product, median with 10th and 90th percentile. Fields that an older record's schema
//! lacks are empty. benches/README.md describes every field.

use super::compact;
use crate::{products, Result};
use candle_tilegemm::internal::suite::{ShapeEpilogue, ShapeGroups, Shared};
use candle_tilegemm::{Config, F32Mode, Format, Layout};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub const SCHEMA: u32 = 1;

/// How much of a record is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Whole,
    /// Without percentiles, errors and the card's state ([`compact`]).
    Compact,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: u32,
    pub machine: Machine,
    pub settings: Settings,
    pub ceilings: Ceilings,
    pub rows: Vec<Row>,
    /// Rows of the suite that were not measured, with the reason.
    #[serde(default)]
    pub left_out: BTreeMap<String, String>,
}

/// The machine of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub gpu: String,
    pub sms: u32,
    pub driver: String,
    /// The CUDA version of the driver, and of the toolkit that compiled the kernels.
    pub cuda: String,
    pub cublas: String,
    /// The commit of the binary.
    pub git: String,
    /// When the run began, UTC.
    pub date: String,
    pub clocks_mhz: Clocks,
    /// Power limit.
    pub power_w: f64,
}

/// Highest clocks of the card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Clocks {
    pub sm: u32,
    pub memory: u32,
}

/// The method of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// `cold`, `hot` or `eager`.
    pub mode: String,
    /// Samples of every arm of a row.
    pub samples: usize,
    /// Pause after a sample, as a multiple of its length.
    pub pause: f64,
    /// Seconds of warm-up for each arm, where that is not 0.3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_up: Option<f64>,
    pub seconds: f64,
    /// The f32 mode of every arm; absent without f32 rows, and in older records, whose mode was strict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f32: Option<F32Mode>,
    /// The seed of a suite of random products.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Shares of such a suite in per cent, before `classes` are picked.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shares: BTreeMap<String, u32>,
    /// The classes that were asked for; none: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// The measured tables of the dispatcher.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tuning: Vec<String>,
}

/// The card's limits, measured in the same run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    pub hbm_gbps: f64,
    /// In f32 in the mode of the run.
    pub tflops: BTreeMap<Format, f64>,
    /// In f32 in other modes, where rows have them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub f32_tflops: BTreeMap<F32Mode, f64>,
}

/// One product.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub id: String,
    pub class: String,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub batch: usize,
    pub layout: Layout,
    pub dtype: Format,
    /// The format of B, where B has blocks of a GGUF file or narrow weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b: Option<Format>,
    /// What shares a factor of narrow weights, where it is not what checkpoints have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Shared>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub zeros: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fast: bool,
    /// The format of the result; absent for `dtype`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<Format>,
    /// Elements between matrices of the batch, where they are not dense. Absent in records from before 2026-11-24, as is the epilogue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub a_batch_stride: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b_batch_stride: Option<u32>,
    /// Elements between lines of A and B, where they are not dense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub a_stride: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b_stride: Option<u32>,
    /// Elements before A, B and D, from an address of the largest alignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub a_offset: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b_offset: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub d_offset: Option<u32>,
    /// The f32 mode; absent for the mode of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f32: Option<F32Mode>,
    /// The epilogue, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epilogue: Option<ShapeEpilogue>,
    /// The groups of a product of experts, with the seed of the routing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<ShapeGroups>,
    /// The experts that have rows, and the rows of the expert that has most, in this routing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts_hit: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_group: Option<usize>,
    /// The least time by the ceilings.
    pub roof_us: f64,
    /// The measurements, by name of the arm.
    pub arms: BTreeMap<String, Arm>,
    /// Arms without a time, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub absent: BTreeMap<String, String>,
    /// What learning cost beyond the same calls of what was learned, as a number of such calls, where the arm `learned` was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_calls: Option<f64>,
    /// Warnings about the row: `spread ARM`, `wrong ARM`, `inexact ARM`, `eager ARM`, `unsettled learned` (there was more to learn), `clocks`, `hot`.
    pub flags: Vec<String>,
    /// The card before and after the row.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub card: Vec<Card>,
}

/// One arm of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    pub us: f64,
    pub us_p10: f64,
    pub us_p90: f64,
    /// Of calls whose time contains the host's work (the row has the flag `eager` and the arm): the time in kernels, by CUPTI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us_in_kernels: Option<f64>,
    /// In a program that keeps the GPU busy with calls of this product, where the run learned: its launches are not those of a graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us_in_program: Option<f64>,
    /// The kernel's name.
    pub kernel: String,
    /// The kernel's configuration. Absent where the kernel has no configuration, and in records from before 2026-11-23.
    #[serde(default, skip_serializing_if = "Config::is_default")]
    pub config: Config,
    /// Largest difference to the reference, over the reference's root mean square. Absent with `--no-check`. A number
    /// that JSON cannot hold (NaN, Inf) is written as 1e300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub err: Option<f64>,
}

/// NVML's readings of the card.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Card {
    pub sm_mhz: u32,
    pub power_w: f64,
    pub temperature_c: u32,
}

impl Report {
    /// Rows that count in averages: rows without a wrong arm.
    pub fn sound(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| !row.is_wrong())
    }

    /// The rows whose id or class contains one of the words, with these arms. No words: every row; no arms: every arm.
    ///
    /// # Errors
    /// Words that no row has, and an arm that no row has.
    pub fn pick(mut self, words: &[String], arms: &[String]) -> std::result::Result<Self, String> {
        let wanted = |row: &Row, word: &String| [&row.id, &row.class].iter().any(|text| products::has(text, word));
        let holds = self.contents();
        self.rows.retain(|row| words.is_empty() || words.iter().any(|word| wanted(row, word)));
        if self.rows.is_empty() && !words.is_empty() {
            return Err(format!("no id or class of the record contains {}; it holds {holds}", words.join(" or ")));
        }
        if let Some(arm) = arms.iter().find(|arm| !self.rows.iter().any(|row| row.arms.contains_key(*arm))) {
            return Err(format!("no row has a time of the arm {arm}; the record holds {holds}"));
        }
        if !arms.is_empty() {
            for row in &mut self.rows {
                row.arms.retain(|name, _| arms.contains(name));
                row.absent.retain(|name, _| arms.contains(name));
                let of_another = |flag: &str| {
                    flag.split_once(' ').is_some_and(|(kind, arm)| {
                        ["wrong", "inexact", "spread", "eager", "unsettled"].contains(&kind)
                            && !arms.iter().any(|name| name == arm)
                    })
                };
                row.flags.retain(|flag| !of_another(flag));
            }
        }
        Ok(self)
    }

    /// The contents in words: the number of rows, the classes, and the arms that are no single kernels.
    pub fn contents(&self) -> String {
        let classes: Vec<&str> = by_class(&self.rows).into_iter().map(|(class, _)| class).collect();
        let arms = self.rows.iter().flat_map(|row| row.arms.keys().filter(|arm| !row.is_kernel(arm)));
        let arms: BTreeSet<&str> = arms.map(String::as_str).collect();
        let list = |names: Vec<&str>| if names.is_empty() { "none".into() } else { names.join(", ") };
        format!("{} rows; classes: {}; arms: {}", self.rows.len(), list(classes), list(arms.into_iter().collect()))
    }

    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let json = serde_json::from_str(&text).map_err(|e| format!("{} is not JSON: {e}", path.display()))?;
        Self::from_json(json).map_err(|e| format!("{}: {e}", path.display()).into())
    }

    /// The record in this JSON, whole or compact ([`compact`]).
    pub fn from_json(mut json: serde_json::Value) -> std::result::Result<Self, String> {
        if json.get("of").is_some() {
            return Err("it is a record of errors; read it with `tilegemm errors --from`".into());
        }
        let schema = json["schema"].as_u64();
        if ![SCHEMA, compact::SCHEMA].map(|known| Some(known.into())).contains(&schema) {
            let have = schema.map_or("none".into(), |schema| schema.to_string());
            let known = format!("{SCHEMA} and {}", compact::SCHEMA);
            return Err(format!(
                "schema {have}, this command reads {known}; record it again with `tilegemm bench --json`"
            ));
        }
        compact::expand(&mut json)?;
        json["schema"] = SCHEMA.into();
        serde_json::from_value(json).map_err(|e| e.to_string())
    }

    /// Writes the record.
    pub fn save(&self, path: &Path, form: Form) -> Result {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
        }
        let mut json = serde_json::to_value(self)?;
        if form == Form::Compact {
            compact::compact(&mut json);
        }
        Ok(std::fs::write(path, text(json)?).map_err(|e| format!("cannot write {}: {e}", path.display()))?)
    }
}

/// The JSON of a record. Each row is one line, so that the file is small and a change of one row is a change of one line.
fn text(mut json: serde_json::Value) -> Result<String> {
    let mut lists = Vec::new();
    for list in [compact::TABLE, "rows"] {
        if let Some(serde_json::Value::Array(values)) = json.get_mut(list).map(serde_json::Value::take) {
            let place = format!("<{list}>");
            json[list] = place.clone().into();
            let lines: Vec<String> = values.iter().map(serde_json::Value::to_string).collect();
            lists.push((format!("\"{place}\""), format!("[\n    {}\n  ]", lines.join(",\n    "))));
        }
    }
    let frame = serde_json::to_string_pretty(&json)? + "\n";
    Ok(lists.iter().fold(frame, |text, (place, list)| text.replacen(place, list, 1)))
}

/// Rows by class, in the order of the classes' first rows.
pub fn by_class<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<(&'a str, Vec<&'a Row>)> {
    let mut classes: Vec<(&str, Vec<&Row>)> = Vec::new();
    for row in rows {
        match classes.iter_mut().find(|(class, _)| *class == row.class) {
            Some((_, rows)) => rows.push(row),
            None => classes.push((&row.class, vec![row])),
        }
    }
    classes
}

impl Row {
    /// Whether the arm is a kernel by name, with or without a configuration.
    pub fn is_kernel(&self, arm: &str) -> bool {
        self.arms.get(arm).is_some_and(|measured| arm.split('@').next() == Some(&measured.kernel))
    }

    /// Whether the result of an arm is not the product: such a row counts nowhere.
    pub fn is_wrong(&self) -> bool {
        self.flags.iter().any(|flag| flag.starts_with("wrong "))
    }

    /// Whether the other row, of another record, is of the same product.
    pub fn is_of_the_product(&self, other: &Row) -> bool {
        let product = |row: &Row| (row.m, row.n, row.k, row.batch, row.layout, row.dtype, row.b, row.groups);
        let factors = |row: &Row| (row.scale, row.zeros, row.fast);
        self.id == other.id && product(self) == product(other) && factors(self) == factors(other)
    }

    /// Speedup of `arm` over `other`, where both were measured.
    pub fn speedup(&self, arm: &str, other: &str) -> Option<f64> {
        Some(self.arms.get(other)?.us / self.arms.get(arm)?.us)
    }

    /// Time of `arm` over the roofline.
    pub fn over_roof(&self, arm: &str) -> Option<f64> {
        Some(self.arms.get(arm)?.us / self.roof_us)
    }

    /// Floating-point operations of the product.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64 * self.batch as f64
    }

    /// The format that the numbers of A and B have in multiplications.
    pub fn in_products(&self) -> Format {
        self.dtype.in_products_with(self.b.unwrap_or(self.dtype))
    }

    /// The formats of A and B: `bf16`, `f32 x q4k`.
    pub fn formats(&self) -> String {
        self.b.map_or_else(|| self.dtype.to_string(), |b| format!("{} x {b}", self.dtype))
    }

    /// FLOP per byte that must move, dense operands once each; of matrices of experts those that have rows.
    pub fn intensity(&self) -> f64 {
        let (m, n, k) = (self.m as f64, self.n as f64, self.k as f64);
        let rows_of_a = self.groups.map_or(m, |groups| m / groups.pairs_per_row() as f64);
        let matrices = self.experts_hit.unwrap_or(1) as f64;
        let bits = (rows_of_a * k + m * n) * self.dtype.bits() + matrices * k * n * self.b.unwrap_or(self.dtype).bits();
        2.0 * m * n * k / (bits / 8.0)
    }
}

/// A number, rounded to the digits that a measurement can have.
#[cfg(feature = "bench")]
pub fn digits(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

/// Geometric mean; `None` without values.
pub fn geomean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value.ln(), count + 1));
    (count > 0).then(|| (sum / f64::from(count)).exp())
}
