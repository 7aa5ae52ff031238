//! The measured tables that ship.

use std::path::{Path, PathBuf};

/// The constant that `src/tuning.rs` includes: `tuning/<card>/table.json` of each card that has one.
pub fn rust(tuning: &Path) -> Result<String, String> {
    let entries = std::fs::read_dir(tuning).map_err(|e| format!("cannot list {}: {e}", tuning.display()))?;
    let mut folders: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.retain(|folder| folder.join("table.json").exists());
    folders.sort();
    let shipped = folders.iter().map(|folder| {
        let (card, table) = (folder.file_name().unwrap_or_default().to_string_lossy(), folder.join("table.json"));
        format!("    ({:?}, include_str!({:?})),\n", format!("tuning/{card}/table.json"), table.display().to_string())
    });
    Ok(format!(
        "/// The tables of the folder `tuning`: name and text.\n#[rustfmt::skip]\n\
         static SHIPPED: &[(&str, &str)] = &[\n{}];\n",
        shipped.collect::<String>()
    ))
}
