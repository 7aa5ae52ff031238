//! The compact form of a record, for thousands of products. Kernels and configurations stand in a table of the record. A row is a list: the values
//! of the record's columns, a list of places in the table, each followed by the median time, and an object of the row's other fields, if any.
//! Percentiles, errors, the card's state, remarks about the spread and the products after an interruption are left out.
//!
//! The compact form of schema 1 has rows that are objects, and arms that are pairs.

use serde_json::{json, Map, Value};
use std::collections::BTreeMap;

/// The schema of a compact record.
pub const SCHEMA: u32 = 2;
/// The field of a compact record that holds the arms of all rows.
pub const TABLE: &str = "arms";
/// The field that holds the names of the columns.
const COLUMNS: &str = "columns";
/// The fields that every row has.
const OF_EVERY_ROW: [&str; 9] = ["id", "class", "m", "n", "k", "batch", "layout", "dtype", "roof_us"];

/// Makes a record compact.
pub fn compact(report: &mut Value) {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut table: Vec<Value> = Vec::new();
    for row in report["rows"].as_array_mut().into_iter().flatten() {
        let arms = row["arms"].take();
        let mut times = Vec::new();
        for (name, arm) in arms.as_object().into_iter().flatten() {
            let entry = entry(name, arm);
            let place = *places.entry(entry.to_string()).or_insert(table.len());
            if place == table.len() {
                table.push(entry);
            }
            times.extend([json!(place), arm["us"].clone()]);
        }
        let mut cells: Vec<Value> = OF_EVERY_ROW.iter().map(|column| row[*column].take()).collect();
        cells.push(times.into());
        cells.extend(others(row));
        *row = cells.into();
    }
    report[TABLE] = table.into();
    report[COLUMNS] = json!(OF_EVERY_ROW);
    report["schema"] = SCHEMA.into();
    // An interrupted survey leaves out thousands.
    if let Some(left_out) = report["left_out"].as_object_mut() {
        left_out.retain(|_, reason| reason != "interrupted");
    }
}

/// The arm's place in the table holds its name, where that is the kernel's, with or without `@` and the configuration.
fn entry(name: &str, arm: &Value) -> Value {
    let (kernel, config) = (arm["kernel"].as_str().unwrap_or_default(), arm["config"].as_str());
    let is_named_by_kernel = match name.split_once('@') {
        Some(parts) => (parts.0, Some(parts.1)) == (kernel, config),
        None => (name, None) == (kernel, config),
    };
    match config {
        _ if is_named_by_kernel => name.into(),
        Some(config) => json!({ "arm": name, "kernel": kernel, "config": config }),
        None => json!({ "arm": name, "kernel": kernel }),
    }
}

/// The fields of a row that are neither a column nor its arms.
fn others(row: &Value) -> Option<Value> {
    let mut others = Map::new();
    for (field, value) in row.as_object().into_iter().flatten() {
        let mut value = value.clone();
        if let Some(flags) = value.as_array_mut().filter(|_| field == "flags") {
            flags.retain(|flag| !flag.as_str().is_some_and(|flag| flag.starts_with("spread ")));
        }
        let is_elsewhere = OF_EVERY_ROW.contains(&field.as_str()) || [TABLE, "card"].contains(&field.as_str());
        if !is_elsewhere && value != json!([]) {
            others.insert(field.clone(), value);
        }
    }
    (!others.is_empty()).then(|| others.into())
}

/// Gives the rows of a compact record their fields, and their arms, each with the median as its percentiles. A whole record stays as it is.
///
/// # Errors
/// A row that names no arm of the table, or is none.
pub fn expand(report: &mut Value) -> Result<(), String> {
    let Some(Value::Array(table)) = report.get_mut(TABLE).map(Value::take) else { return Ok(()) };
    let columns = report.get_mut(COLUMNS).map(Value::take);
    let columns: Option<Vec<&str>> =
        columns.as_ref().and_then(|columns| columns.as_array()?.iter().map(Value::as_str).collect());
    for row in report["rows"].as_array_mut().into_iter().flatten() {
        if let Some(columns) = &columns {
            *row = fields(row.take(), columns)?;
        }
        let times = row.get_mut("arms").map(Value::take).unwrap_or_default();
        let Some(row) = row.as_object_mut() else { return Err(format!("{row} is no row")) };
        let times = times.as_array().map_or(&[][..], |times| times);
        let flat: Vec<&Value> = times
            .iter()
            .flat_map(|time| time.as_array().map_or_else(|| vec![time], |pair| pair.iter().collect()))
            .collect();
        let mut arms = Map::new();
        for pair in flat.chunks(2) {
            let id = row.get("id").unwrap_or(&Value::Null);
            let &[place, us] = pair else { return Err(format!("row {id} has an arm without a time")) };
            let entry = place.as_u64().and_then(|place| table.get(place as usize));
            let entry = entry.ok_or_else(|| format!("row {id} names arm {place}, which the table lacks"))?;
            let (name, kernel, config) = named(entry);
            let mut arm = json!({ "us": us, "us_p10": us, "us_p90": us, "kernel": kernel });
            if let Some(config) = config {
                arm["config"] = config.into();
            }
            arms.insert(name.into(), arm);
        }
        row.insert("arms".into(), arms.into());
    }
    Ok(())
}

/// The name, kernel and configuration of an entry of the table.
fn named(entry: &Value) -> (&str, &str, Option<&str>) {
    match entry.as_str().map(|name| (name, name.split_once('@'))) {
        Some((name, Some((kernel, config)))) => (name, kernel, Some(config)),
        Some((name, None)) => (name, name, None),
        None => {
            let field = |field: &str| entry.get(field).and_then(Value::as_str);
            (field("arm").unwrap_or_default(), field("kernel").unwrap_or_default(), field("config"))
        }
    }
}

/// The fields of a row that is a list.
fn fields(row: Value, columns: &[&str]) -> Result<Value, String> {
    let Value::Array(mut cells) = row else { return Err(format!("{row} is no row")) };
    if cells.len() <= columns.len() {
        return Err(format!("{} is no row", Value::from(cells)));
    }
    let others = cells.split_off(columns.len() + 1);
    let names = columns.iter().chain(&[TABLE]);
    let mut fields: Map<String, Value> = names.map(|name| name.to_string()).zip(cells).collect();
    fields.insert("flags".into(), json!([]));
    fields.extend(others.into_iter().filter_map(|others| others.as_object().cloned()).flatten());
    Ok(fields.into())
}
