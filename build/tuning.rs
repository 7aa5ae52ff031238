//! What measured tables depend on: the hash of the kernels' code that they are verified with, and the tables that ship.
//! Used by build.rs, and by a test.

use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The constants that `src/tuning.rs` includes. `rows` are the kernels of the table, as text.
pub fn rust(rows: &str, csrc: &Path, tables: &Path) -> Result<String, String> {
    let hash = kernels_hash(rows, csrc)?;
    let shipped = files(tables, &["json"])?.into_iter().map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        format!("    ({:?}, include_str!({:?})),\n", format!("tuning/{name}"), path.display().to_string())
    });
    Ok(format!(
        "/// Hash of the code of the kernels: a table holds what was measured of exactly this code.\n\
         pub const KERNELS_HASH: &str = {hash:?};\n\n\
         /// The tables of the folder `tuning`: name and text.\n#[rustfmt::skip]\n\
         static SHIPPED: &[(&str, &str)] = &[\n{}];\n",
        shipped.collect::<String>()
    ))
}

/// Over the table's rows and the sources without their comments: what of csrc/ can change a time. Names alone would not
/// tell when a kernel's code changes; the plain files would tell at every comment, and a measurement takes a GPU.
pub fn kernels_hash(rows: &str, csrc: &Path) -> Result<String, String> {
    let mut hash = Sha256::new();
    hash.update(rows);
    for path in files(csrc, &["cpp", "cu", "cuh", "h", "hpp"])? {
        let source = std::fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        hash.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        hash.update([0]);
        hash.update(code(&source));
        hash.update([0]);
    }
    Ok(hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect())
}

/// C++ without comments and with single blanks.
pub fn code(source: &str) -> String {
    let mut code = String::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let upto = |end: &str| rest[2..].find(end).map_or(rest.len(), |at| 2 + at + end.len());
        let (length, is_blank) = match first {
            '/' if rest.starts_with("//") => (upto("\n"), true),
            '/' if rest.starts_with("/*") => (upto("*/"), true),
            '"' | '\'' => (literal(rest), false),
            _ => (first.len_utf8(), first.is_whitespace()),
        };
        match is_blank {
            true if code.ends_with(' ') => {}
            true => code.push(' '),
            false => code.push_str(&rest[..length]),
        }
        rest = &rest[length..];
    }
    code.trim().into()
}

/// Length of the string or character that `text` begins with: to its closing quote, or the end of the line, as for the
/// apostrophe of 1'000.
fn literal(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut escaped = false;
    for (at, &byte) in text.as_bytes().iter().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'\n' => return at,
            _ if byte == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The files of a folder with one of these endings, sorted.
fn files(folder: &Path, endings: &[&str]) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("cannot list {}: {e}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|ending| endings.iter().any(|known| ending == *known)));
    files.sort();
    Ok(files)
}
