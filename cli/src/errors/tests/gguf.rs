//! The tables of a record.

use crate::errors::gguf;
use crate::errors::record::Record;
use serde_json::{json, Value};

fn errors(format: &str, data: &str, rows: usize, candle: [f64; 2], ours: [f64; 2]) -> Value {
    let of = |[max, rms]: [f64; 2], kernel: String| json!({ "max": max, "rms": rms, "kernel": kernel });
    let arms = json!({ "candle": of(candle, "c".into()), "ours": of(ours, format!("gguf_{rows}")) });
    json!({ "b": format, "layout": "nt", "m": rows, "n": 256, "k": 4096, "data": data, "arms": arms })
}

fn record(errors: &[Value]) -> Record {
    let record = json!({
        "schema": 2, "of": "gguf", "version": "0.1.0", "errors": errors,
        "machine": { "gpu": "NVIDIA H100", "sms": 132, "driver": "580.1", "cuda": "13.0 (driver), 13.5 (kernels)", "cublas": "13.1.0",
                     "git": "abc", "date": "2026-11-26T10:00:00Z", "clocks_mhz": { "sm": 1980, "memory": 2619 }, "power_w": 700.0 },
    });
    serde_json::from_value(record).unwrap()
}

#[test]
fn a_line_has_all_rows_of_a_kind_of_data_and_bold_is_worse_than_candle() {
    let tables = gguf::tables(&record(&[
        errors("q4_0", "N(0, 1)", 8, [2e-3, 2e-4], [1e-3, 1e-4]),
        errors("q4_0", "N(0, 1)", 256, [2e-3, 2e-4], [3e-3, 1e-4]),
        errors("q4_0", "0 ... 1", 8, [2e-3, 2e-4], [1e-3, 3e-4]),
        errors("q6k", "N(0, 1)", 256, [2e-3, 2e-4], [0.0, 0.0]),
    ]));
    for line in [
        "| weights | data | candle, 8 rows | ours, 8 rows | candle, 256 rows | ours, 256 rows |",
        "| q4_0 | N(0, 1) | 2.0e-3/2.0e-4 | 1.0e-3/1.0e-4 | 2.0e-3/2.0e-4 | **3.0e-3**/1.0e-4 |",
        "| q4_0 | 0 ... 1 | 2.0e-3/2.0e-4 | 1.0e-3/**3.0e-4** | - | - |",
        "| q6k | N(0, 1) | - | - | 2.0e-3/2.0e-4 | 0/0 |",
        "Ours is worse than candle in 1 of 4 largest errors and 1 root mean squares. Our largest error is 3.0e-3; the bound is 2^-8, 3.9e-3.",
        "ours, 8 rows: `gguf_8`. ours, 256 rows: `gguf_256`.",
    ] {
        assert!(tables.lines().any(|have| have == line), "no line '{line}' in\n{tables}");
    }
    assert!(
        tables.starts_with("**Errors** (NVIDIA H100, driver 580.1,") && tables.contains("commit abc): largest"),
        "{tables}"
    );
}

#[test]
fn a_record_without_an_arm_is_not_published() {
    let whole = errors("q4k", "N(0, 1)", 8, [2e-3, 2e-4], [1e-3, 1e-4]);
    assert_eq!(gguf::flaw(&record(std::slice::from_ref(&whole))), None);
    let mut without = whole.clone();
    without["arms"].as_object_mut().unwrap().remove("candle");
    assert_eq!(gguf::flaw(&record(&[whole, without])), Some("an arm has no errors"));
    assert!(gguf::flaw(&record(&[])).is_some());
}

#[cfg(feature = "bench")]
#[test]
fn the_columns_are_arms_of_the_benchmark() {
    let arms = crate::bench::Args::of(&["--arms", &gguf::ARMS.join(",")]).arms();
    assert_eq!(arms.iter().map(|arm| arm.name()).collect::<Vec<_>>(), gguf::ARMS);
}
