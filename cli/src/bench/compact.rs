//! The compact form of a record, for thousands of products: the kernels and configurations stand in a table of the record, and a row has a list
//! of pairs, the place in the table and the median time. Percentiles, the card's state, remarks about the spread
//! and the products after an interruption are left out.

use serde_json::{json, Map, Value};
use std::collections::BTreeMap;

/// The field of a compact record that holds the arms of all rows.
pub const TABLE: &str = "arms";

/// Makes a record compact.
pub fn compact(report: &mut Value) {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut table: Vec<Value> = Vec::new();
    for row in report["rows"].as_array_mut().into_iter().flatten() {
        let arms = row["arms"].take();
        let pair = |(name, arm): (&String, &Value)| {
            let mut entry = json!({ "arm": name, "kernel": arm["kernel"] });
            if !arm["config"].is_null() {
                entry["config"] = arm["config"].clone();
            }
            let place = *places.entry(entry.to_string()).or_insert(table.len());
            if place == table.len() {
                table.push(entry);
            }
            json!([place, arm["us"]])
        };
        row["arms"] = arms.as_object().into_iter().flatten().map(pair).collect();
        if let Some(row) = row.as_object_mut() {
            row.remove("card");
        }
        if let Some(flags) = row["flags"].as_array_mut() {
            flags.retain(|flag| !flag.as_str().is_some_and(|flag| flag.starts_with("spread ")));
        }
    }
    report[TABLE] = table.into();
    // An interrupted survey leaves out thousands.
    if let Some(left_out) = report["left_out"].as_object_mut() {
        left_out.retain(|_, reason| reason != "interrupted");
    }
}

/// Gives the rows of a compact record their arms, each with the median as its percentiles. A whole record stays as it is.
///
/// # Errors
/// A row that names no arm of the table, or is none.
pub fn expand(report: &mut Value) -> Result<(), String> {
    let Some(Value::Array(table)) = report.get_mut(TABLE).map(Value::take) else { return Ok(()) };
    for row in report["rows"].as_array_mut().into_iter().flatten() {
        if !row.is_object() {
            return Err(format!("{row} is no row"));
        }
        let mut arms = Map::new();
        for pair in row["arms"].as_array().into_iter().flatten() {
            let entry = pair[0].as_u64().and_then(|place| table.get(place as usize));
            let entry =
                entry.ok_or_else(|| format!("row {} names arm {}, which the table lacks", row["id"], pair[0]))?;
            let us = &pair[1];
            let mut arm = json!({ "us": us, "us_p10": us, "us_p90": us, "kernel": entry["kernel"] });
            if let Some(config) = entry.get("config") {
                arm["config"] = config.clone();
            }
            arms.insert(entry["arm"].as_str().unwrap_or_default().into(), arm);
        }
        row["arms"] = arms.into();
    }
    Ok(())
}
