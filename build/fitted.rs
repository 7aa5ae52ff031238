//! Reads `tuning/<card>/fit/<family>.toml`: the fitted numbers of a family.

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

/// The numbers as fields of the family's type.
pub fn fields(path: &Path) -> Result<String, String> {
    let file: File = read(path)?;
    let field = |(name, value): (&String, &toml::Value)| Ok(format!("{name}: {}, ", literal(value)?));
    file.values.iter().map(field).collect::<Result<_, String>>().map_err(|message| wrong(path, message))
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
