//! Where the record comes from, and where record and tables go; the parts of a table.

use super::record::{ErrorsOf, Record, Subject};
use crate::{Failure, Result};
use std::path::{Path, PathBuf};

/// An error with two significant digits.
pub fn digits(error: f64) -> String {
    if error == 0.0 {
        "0".into()
    } else {
        format!("{error:.1e}")
    }
}

/// The errors of an arm; bold where they are above those of `limit`.
pub fn cell(errors: Option<&ErrorsOf>, limit: Option<&ErrorsOf>) -> String {
    let Some(errors) = errors else { return "-".into() };
    let number = |of: fn(&ErrorsOf) -> f64| match limit {
        Some(limit) if of(errors) > of(limit) => format!("**{}**", digits(of(errors))),
        _ => digits(of(errors)),
    };
    format!("{} / {}", number(|of| of.max), number(|of| of.rms))
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
    /// Put the tables into this document, between its lines `<!-- tilegemm errors PRODUCTS -->` and `<!-- end of tilegemm errors PRODUCTS -->`
    #[arg(long, value_name = "FILE")]
    update: Option<PathBuf>,
}

impl Files {
    /// Measures or reads a record, and prints and writes as the arguments say.
    pub fn run(&self, of: Subject, measured: impl FnOnce() -> Result<Record>) -> Result {
        if let Some(path) = &self.update {
            updated(of, path, "")?; // reports a wrong document before the measurement
        }
        let record = match &self.from {
            Some(path) => load(of, path)?,
            None => measured()?,
        };
        if let Some(path) = &self.json {
            save(&record, path)?;
        }
        let tables = record.tables();
        crate::print(format_args!("\n{}", tables.trim_end()))?;
        #[cfg(feature = "bench")]
        if super::measure::interrupted() {
            return Err(Failure::Interrupted);
        }
        if let Some(flaw) = record.flaw() {
            let kept = |path: &PathBuf| format!("; {} stays as it is", path.display());
            return Err(format!("{flaw}{}", self.update.as_ref().map_or(String::new(), kept)).into());
        }
        if let Some(path) = &self.update {
            let text = updated(of, path, &tables)?;
            std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        }
        Ok(())
    }
}

fn load(of: Subject, path: &Path) -> Result<Record> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|e| Failure::Usage(format!("cannot read {}: {e}", path.display())))?;
    let json = serde_json::from_str(&text).map_err(|e| e.to_string());
    Ok(json.and_then(|json| Record::of_json(json, Some(of))).map_err(|e| format!("{}: {e}", path.display()))?)
}

fn save(record: &Record, path: &Path) -> Result {
    let text = serde_json::to_string_pretty(record)?;
    Ok(std::fs::write(path, text + "\n").map_err(|e| format!("cannot write {}: {e}", path.display()))?)
}

/// The lines that enclose the tables in a document.
pub fn markers(of: Subject) -> [String; 2] {
    ["", "end of "].map(|end| format!("<!-- {end}tilegemm errors {} -->", of.name()))
}

/// The document with these tables between its two markers; `None` without them.
pub fn insert(document: &str, [begin, end]: &[String; 2], tables: &str) -> Option<String> {
    let (before, rest) = document.split_once(begin.as_str())?;
    let (_, after) = rest.split_once(end.as_str())?;
    Some(format!("{before}{begin}\n\n{}\n\n{end}{after}", tables.trim()))
}

/// A document with these tables.
fn updated(of: Subject, path: &Path, tables: &str) -> Result<String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|e| Failure::Usage(format!("cannot read {}: {e}", path.display())))?;
    let markers = markers(of);
    insert(&text, &markers, tables).ok_or_else(|| {
        let [begin, end] = markers;
        Failure::Usage(format!("{} has no line '{begin}' with '{end}' after it", path.display()))
    })
}
