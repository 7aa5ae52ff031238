//! Records of decoders.

use super::record::{DecoderReport, SCHEMA};
use crate::Result;
use std::path::Path;

/// The record of a decoder in a file; none where the file holds something else.
pub fn read(path: &Path) -> Result<Option<DecoderReport>> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let Ok(mut json) = serde_json::from_str::<serde_json::Value>(&text) else { return Ok(None) };
    let Some(decoder) = json.get_mut("decoder") else { return Ok(None) };
    if decoder["schema"] != SCHEMA {
        return Err(format!(
            "{}: a decoder of schema {}, this command reads {SCHEMA}",
            path.display(),
            decoder["schema"]
        )
        .into());
    }
    let report = serde_json::from_value(decoder.take()).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Some(report))
}
