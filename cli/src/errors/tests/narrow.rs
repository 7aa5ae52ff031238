//! The tables of a record.

use crate::errors::narrow;
use crate::errors::record::Record;
use serde_json::{json, Map, Value};

fn errors(a: &str, formats: &str, data: &str, rows: usize, arms: &[(&str, [f64; 2])]) -> Value {
    let of = |(name, [max, rms]): &(&str, [f64; 2])| {
        (name.to_string(), json!({ "max": max, "rms": rms, "kernel": format!("{name}_{rows}") }))
    };
    let arms: Map<String, Value> = arms.iter().map(of).collect();
    json!({ "a": a, "b": "f8e4m3", "formats": formats, "layout": "nt", "m": rows, "n": 256, "k": 4096, "data": data, "arms": arms })
}

fn weights(data: &str, rows: usize, bf16: [f64; 2], ours: [f64; 2]) -> Value {
    errors("bf16", "bf16 x f8e4m3 row -> bf16", data, rows, &[("bf16", bf16), ("ours", ours)])
}

fn bytes(rows: usize, arms: &[(&str, [f64; 2])]) -> Value {
    errors("f8e4m3", "f8e4m3 row x f8e4m3 row -> f32", "0 ... 1", rows, arms)
}

fn record(errors: &[Value]) -> Record {
    let record = json!({
        "schema": 2, "of": "narrow", "version": "0.1.0", "errors": errors,
        "machine": { "gpu": "NVIDIA H200", "sms": 132, "driver": "580.1", "cuda": "13.0 (driver), 13.5 (kernels)", "cublas": "13.1.0",
                     "git": "abc", "date": "2026-11-30T10:00:00Z", "clocks_mhz": { "sm": 1980, "memory": 3201 }, "power_w": 700.0 },
    });
    serde_json::from_value(record).unwrap()
}

#[test]
fn bold_is_beyond_the_bounds_of_both_kinds_of_products() {
    let unit = 2f64.powi(-13);
    let tables = narrow::tables(&record(&[
        // 1.04 and 1.06 times the errors of bf16.
        weights("N(0, 1)", 8, [2e-3, 1e-4], [2.08e-3, 1.06e-4]),
        weights("N(0, 1)", 256, [2e-3, 1e-4], [2.12e-3, 1.04e-4]),
        weights("0 ... 1", 8, [0.0, 0.0], [0.0, 0.0]),
        bytes(8, &[("cublaslt", [2.0 * unit, unit]), ("ours", [0.5 * unit, 0.25 * unit])]),
        bytes(256, &[("ours", [4.0 * unit, 2.0 * unit])]),
    ]));
    for line in [
        "| product | data | bf16, 8 rows | ours, 8 rows | bf16, 256 rows | ours, 256 rows |",
        "| bf16 x f8e4m3 row -> bf16 | N(0, 1) | 2.0e-3/1.0e-4 | 2.1e-3/**1.1e-4** | 2.0e-3/1.0e-4 | **2.1e-3**/1.0e-4 |",
        "| bf16 x f8e4m3 row -> bf16 | 0 ... 1 | 0/0 | 0/0 | - | - |",
        "Ours is beyond 1.05 times bf16 in 1 of 3 largest errors and 1 root mean squares.",
        "| product | data | cublaslt, 8 rows | ours, 8 rows | cublaslt, 256 rows | ours, 256 rows |",
        "| f8e4m3 row x f8e4m3 row -> f32 | 0 ... 1 | **2.0e0**/1.0e0 | 5.0e-1/2.5e-1 | - | **4.0e0**/2.0e0 |",
        "Ours is beyond 2^-13 in 1 of 2 largest errors; the largest is 4.0e0 of these units.",
        "ours, 8 rows: `ours_8`. ours, 256 rows: `ours_256`.",
    ] {
        assert!(tables.lines().any(|have| have == line), "no line '{line}' in\n{tables}");
    }
    assert!(tables.starts_with("**Errors of products with narrow weights** (NVIDIA H200, driver 580.1,"), "{tables}");
}

#[test]
fn a_record_without_ours_or_its_comparison_is_not_published() {
    let whole = [weights("N(0, 1)", 8, [1e-3; 2], [1e-3; 2]), bytes(8, &[("ours", [1e-4; 2])])];
    assert_eq!(narrow::flaw(&record(&whole)), None, "cuBLASLt has not every product");
    for (row, arm) in [(0, "bf16"), (0, "ours"), (1, "ours")] {
        let mut without = whole.clone();
        without[row]["arms"].as_object_mut().unwrap().remove(arm);
        assert_eq!(narrow::flaw(&record(&without)), Some("an arm has no errors"), "row {row} without {arm}");
    }
    assert!(narrow::flaw(&record(&[])).is_some());
}

#[cfg(feature = "bench")]
#[test]
fn the_columns_are_arms_of_the_benchmark() {
    for names in [narrow::WEIGHTS, narrow::BYTES] {
        let arms = crate::bench::Args::of(&["--arms", &names.join(",")]).arms();
        assert_eq!(arms.iter().map(|arm| arm.name()).collect::<Vec<_>>(), names);
    }
}
