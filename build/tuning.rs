//! The measured tables that ship.

use std::path::{Path, PathBuf};

/// The constant that `src/tuning.rs` includes: the files of the folder `tables`.
pub fn rust(tables: &Path) -> Result<String, String> {
    let entries = std::fs::read_dir(tables).map_err(|e| format!("cannot list {}: {e}", tables.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    let shipped = files.iter().map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        format!("    ({:?}, include_str!({:?})),\n", format!("tuning/{name}"), path.display().to_string())
    });
    Ok(format!(
        "/// The tables of the folder `tuning`: name and text.\n#[rustfmt::skip]\n\
         static SHIPPED: &[(&str, &str)] = &[\n{}];\n",
        shipped.collect::<String>()
    ))
}
