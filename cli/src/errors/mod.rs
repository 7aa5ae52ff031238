//! The part that commands with tables of errors have in common: the data, the errors of an arm, the record, and the place of the tables in a document.

#[cfg(any(feature = "bench", test))]
pub mod data;
#[cfg(feature = "bench")]
pub mod measure;
#[cfg(test)]
mod tests;

use crate::bench::report::{Machine, SCHEMA};
use crate::{Failure, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// An error over the sum of |a| |b|, against f64.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorsOf {
    pub max: f64,
    /// Root mean square.
    pub rms: f64,
    pub kernel: String,
}

/// An error with two significant digits.
pub fn digits(error: f64) -> String {
    if error == 0.0 {
        "0".into()
    } else {
        format!("{error:.1e}")
    }
}

/// The record of a command.
pub trait Record: Serialize + DeserializeOwned {
    /// The command, as in `tilegemm f32`.
    const COMMAND: &'static str;

    /// The record's version.
    fn schema(&self) -> u32;

    /// The flaw that forbids publishing the record, if there is one.
    fn flaw(&self) -> Option<&'static str>;

    /// The tables of a document.
    fn tables(&self) -> String;
}

/// The machine, the versions and the date of a measurement, for the head of a table.
pub fn machine(machine: &Machine, version: &str) -> String {
    let date = machine.date.split('T').next().unwrap_or_default();
    let Machine { gpu, driver, cuda, cublas, git, .. } = machine;
    format!("{gpu}, driver {driver}, CUDA {cuda}, cuBLAS {cublas}, {date}, candle-tilegemm {version}, commit {git}")
}

/// A line of a table.
pub fn line(cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().collect();
    format!("| {} |\n", cells.join(" | "))
}

/// The head of a table.
pub fn head<'a>(titles: impl IntoIterator<Item = &'a str>) -> String {
    let titles: Vec<String> = titles.into_iter().map(String::from).collect();
    let rule = "|".to_string() + &"---|".repeat(titles.len()) + "\n";
    line(titles) + &rule
}

/// The different kernels among these, in order of appearance, behind the title of their column; nothing without kernels.
pub fn kernels<'a>(title: &str, all: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut names: Vec<String> = Vec::new();
    for name in all.map(|name| format!("`{name}`")) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    (!names.is_empty()).then(|| format!("{title}: {}.", names.join(", ")))
}

/// Where the record comes from, and where record and tables go.
#[derive(clap::Args)]
pub struct Files {
    /// Write the record here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Read a record instead of measuring
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    from: Option<PathBuf>,
    /// Put the tables into this document, between its lines `<!-- tilegemm COMMAND -->` and `<!-- end of tilegemm COMMAND -->`, with the name of this command
    #[arg(long, value_name = "FILE")]
    update: Option<PathBuf>,
}

impl Files {
    /// Measures or reads a record, and prints and writes as the arguments say.
    pub fn run<R: Record>(&self, measured: impl FnOnce() -> Result<R>) -> Result {
        if let Some(path) = &self.update {
            updated::<R>(path, "")?; // reports a wrong document before the measurement
        }
        let record = match &self.from {
            Some(path) => load(path)?,
            None => measured()?,
        };
        if let Some(path) = &self.json {
            save(&record, path)?;
        }
        let tables = record.tables();
        crate::print(format_args!("\n{}", tables.trim_end()))?;
        #[cfg(feature = "bench")]
        if measure::interrupted() {
            return Err(Failure::Interrupted);
        }
        if let Some(flaw) = record.flaw() {
            let kept = |path: &PathBuf| format!("; {} stays as it is", path.display());
            return Err(format!("{flaw}{}", self.update.as_ref().map_or(String::new(), kept)).into());
        }
        if let Some(path) = &self.update {
            let text = updated::<R>(path, &tables)?;
            std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        }
        Ok(())
    }
}

fn load<R: Record>(path: &Path) -> Result<R> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|e| Failure::Usage(format!("cannot read {}: {e}", path.display())))?;
    let json = serde_json::from_str(&text).map_err(|e| e.to_string());
    Ok(json.and_then(from_json).map_err(|e| format!("{}: {e}", path.display()))?)
}

/// The record in this JSON.
pub fn from_json<R: Record>(json: serde_json::Value) -> std::result::Result<R, String> {
    let no_record = |e| format!("no record of `tilegemm {} --json`: {e}", R::COMMAND);
    let record: R = serde_json::from_value(json).map_err(no_record)?;
    match record.schema() {
        SCHEMA => Ok(record),
        other => Err(format!("schema {other}, this command reads {SCHEMA}")),
    }
}

fn save(record: &impl Record, path: &Path) -> Result {
    let text = serde_json::to_string_pretty(record)?;
    Ok(std::fs::write(path, text + "\n").map_err(|e| format!("cannot write {}: {e}", path.display()))?)
}

/// The lines that enclose a command's text in a document.
fn markers(command: &str) -> [String; 2] {
    ["", "end of "].map(|of| format!("<!-- {of}tilegemm {command} -->"))
}

/// The document with these tables between its two markers; `None` without them.
fn insert(document: &str, [begin, end]: &[String; 2], tables: &str) -> Option<String> {
    let (before, rest) = document.split_once(begin.as_str())?;
    let (_, after) = rest.split_once(end.as_str())?;
    Some(format!("{before}{begin}\n\n{}\n\n{end}{after}", tables.trim()))
}

/// A document with these tables.
fn updated<R: Record>(path: &Path, tables: &str) -> Result<String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|e| Failure::Usage(format!("cannot read {}: {e}", path.display())))?;
    let markers = markers(R::COMMAND);
    insert(&text, &markers, tables).ok_or_else(|| {
        let [begin, end] = markers;
        Failure::Usage(format!("{} has no line '{begin}' with '{end}' after it", path.display()))
    })
}
