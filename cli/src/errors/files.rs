//! Where the record comes from, and where record and tables go.

use super::record::{Record, Subject};
use super::{f32, gguf, narrow};
use crate::{Failure, Result};
use std::path::{Path, PathBuf};

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
        let text = tables(&record);
        crate::print(format_args!("\n{}", text.trim_end()))?;
        #[cfg(feature = "bench")]
        if super::measure::interrupted() {
            return Err(Failure::Interrupted);
        }
        if let Some(flaw) = flaw(&record) {
            let kept = |path: &PathBuf| format!("; {} stays as it is", path.display());
            return Err(format!("{flaw}{}", self.update.as_ref().map_or(String::new(), kept)).into());
        }
        if let Some(path) = &self.update {
            let document = updated(of, path, &text)?;
            std::fs::write(path, document).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        }
        Ok(())
    }
}

/// The tables of a document.
pub fn tables(record: &Record) -> String {
    match record.of {
        Subject::F32 => f32::tables(record),
        Subject::Gguf => gguf::tables(record),
        Subject::Narrow => narrow::tables(record),
    }
}

/// The flaw that forbids publishing the record, if there is one.
pub fn flaw(record: &Record) -> Option<&'static str> {
    match record.of {
        Subject::F32 => f32::flaw(record),
        Subject::Gguf => gguf::flaw(record),
        Subject::Narrow => narrow::flaw(record),
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
