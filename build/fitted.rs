//! Turns `src/family/<family>.toml` into constants: each family as its fitted numbers.

use super::table::Kernel;
use std::collections::BTreeMap;
use std::path::Path;

/// A data file.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The origin of the values, for readers.
    #[serde(rename = "provenance")]
    _provenance: toml::Table,
    values: BTreeMap<String, toml::Value>,
}

/// A static for each family of the table. The compiler checks that the names of a file are those of its family.
pub fn rust(kernels: &[Kernel], folder: &Path) -> Result<String, String> {
    let statics = super::table::families(kernels).into_iter().map(|family| {
        let path = folder.join(format!("{family}.toml"));
        let file: File = read(&path)?;
        let field = |(name, value): (&String, &toml::Value)| Ok(format!("{name}: {}, ", literal(value)?));
        let fields: Result<String, String> = file.values.iter().map(field).collect();
        let (name, kind) = (family.to_uppercase(), super::table::camel_case(family));
        Ok(format!(
            "pub(super) static {name}: {family}::{kind} = {family}::{kind} {{ {} }};\n",
            fields.map_err(|message| wrong(&path, message))?
        ))
    });
    statics.collect()
}

/// Reads a data file.
pub fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, String> {
    let text = std::fs::read_to_string(path).map_err(|e| wrong(path, e))?;
    toml::from_str(&text).map_err(|e| wrong(path, e))
}

fn wrong(path: &Path, message: impl std::fmt::Display) -> String {
    format!("{}: {message}", path.display())
}

fn literal(value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::Float(number) => Ok(format!("{number:?}")),
        toml::Value::Array(values) => {
            Ok(format!("[{}]", values.iter().map(literal).collect::<Result<Vec<_>, _>>()?.join(", ")))
        }
        other => Err(format!("{other} is no value; expected a number with a decimal point, or a list of such")),
    }
}
