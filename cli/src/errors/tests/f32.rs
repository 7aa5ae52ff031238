//! The tables of a record.

use crate::errors::f32::{self, ARMS};
use crate::errors::record::Record;
use serde_json::{json, Value};

fn errors(layout: &str, k: usize, sgemm: [f64; 2], accurate: [f64; 2]) -> Value {
    let of = |[max, rms]: [f64; 2], kernel: &str| json!({ "max": max, "rms": rms, "kernel": kernel });
    json!({ "b": "f32", "layout": layout, "m": 512, "n": 512, "k": k, "data": "N(0, 1)",
            "arms": { "candle-strict": of(sgemm, "cublas"), "own-strict": of([0.0, 0.0], "simt"), "own-accurate": of(accurate, "x6") },
            "absent": { "own-tf32": "no kernel" } })
}

/// A row with the times of [`ARMS`].
fn row(id: &str, batch: usize, us: [f64; 5], flags: &[&str]) -> Value {
    let arm = |us: f64| json!({ "us": us, "us_p10": us, "us_p90": us, "kernel": format!("k{us}"), "err": 1e-6 });
    let arms: serde_json::Map<_, _> = ARMS.iter().zip(us).map(|(name, us)| (name.to_string(), arm(us))).collect();
    json!({ "id": id, "class": "f32", "m": 64, "n": 32, "k": 16, "batch": batch, "layout": "nt", "dtype": "f32",
            "roof_us": 1.0, "arms": arms, "flags": flags })
}

fn record(errors: &[Value], rows: &[Value]) -> Record {
    let machine = json!({ "gpu": "NVIDIA H100", "sms": 132, "driver": "580.1", "cuda": "13.0 (driver), 13.5 (kernels)", "cublas": "13.1.0",
                         "git": "abc", "date": "2026-11-21T10:00:00Z", "clocks_mhz": { "sm": 1980, "memory": 2619 }, "power_w": 700.0 });
    let record = json!({
        "schema": 2, "of": "f32", "version": "0.1.0", "machine": machine, "errors": errors,
        "bench": {
            "schema": 1, "machine": machine,
            "settings": { "mode": "cold", "samples": 31, "pause": 2.0, "seconds": 60.0, "f32": "accurate" },
            "ceilings": { "hbm_gbps": 3000.0, "tflops": { "f32": 120.0 } }, "rows": rows, "left_out": {},
        },
    });
    serde_json::from_value(record).unwrap()
}

#[test]
fn every_table_says_where_and_when_it_was_measured() {
    let of = |layout| errors(layout, 64, [2e-7, 2e-8], [1e-7, 1e-8]);
    let tables = f32::tables(&record(&[of("nt"), of("nt"), of("tn")], &[row("r", 1, [1.0; 5], &[])]));
    let machine = "(NVIDIA H100, driver 580.1, CUDA 13.0 (driver), 13.5 (kernels), cuBLAS 13.1.0, 2026-11-21, \
                   candle-tilegemm 0.1.0, commit abc)";
    for title in ["**Errors, nt** ", "**Errors, tn** ", "**Times** "] {
        assert_eq!(tables.matches(&format!("{title}{machine}")).count(), 1, "{title} in\n{tables}");
    }
    // Each row has as many cells as its head.
    for table in tables.split("**").filter(|part| part.contains("|---|")) {
        let cells: Vec<usize> =
            table.lines().filter(|line| line.starts_with('|')).map(|line| line.matches('|').count()).collect();
        assert!(cells.len() > 2 && cells.iter().all(|count| *count == cells[0]), "{table}");
    }
}

#[test]
fn errors_above_sgemm_are_bold_and_counted() {
    let rows = [
        errors("nt", 64, [2.64e-7, 2.8e-8], [1e-7, 1e-8]),
        errors("nt", 96, [2e-7, 2e-8], [2e-7, 2.04e-8]),
        errors("nt", 128, [2e-7, 2e-8], [3e-7, 1e-8]),
        errors("nt", 256, [2e-7, 2e-8], [1e-7, 1e-8]),
    ];
    let tables = f32::tables(&record(&rows, &[]));
    for line in [
        "| K | data | cuBLAS SGEMM | ours, strict | ours, accurate | cuBLAS TF32 | ours, TF32 |",
        "| 64 | N(0, 1) | 2.6e-7/2.8e-8 | 0/0 | 1.0e-7/1.0e-8 | - | - |",
        "| 96 | N(0, 1) | 2.0e-7/2.0e-8 | 0/0 | 2.0e-7/**2.0e-8** | - | - |",
        "| 128 | N(0, 1) | 2.0e-7/2.0e-8 | 0/0 | **3.0e-7**/1.0e-8 | - | - |",
        "Accurate is worse than SGEMM in 1 of 4 largest errors and 1 of 4 root mean squares.",
        "ours, strict: `simt`. ours, accurate: `x6`.",
    ] {
        assert!(tables.lines().any(|have| have == line), "no line '{line}' in\n{tables}");
    }
    assert!(!tables.contains("| 256 |"), "a depth that is shown for no reason in\n{tables}");
}

#[test]
fn times_come_with_gains_over_cublas_in_the_same_arithmetic() {
    let sound = row("sound", 8, [2725.4, 2725.4, 1362.7, 400.0, 320.0], &["spread own-strict"]);
    let other = row("other", 1, [8.04, 4.02, 1.005, 8.0, 10.0], &[]);
    let wrong = row("bad", 1, [1.0, 1.0, 1000.0, 1.0, 1000.0], &["wrong own-accurate"]);
    let record = record(&[], &[sound, other, wrong]);
    let tables = f32::tables(&record);
    for line in [
        "| sound | 8 x 64 x 32 x 16 nt | 2725 | 2725 (1.00x) | 1363 (2.00x) | 400 | 320 (1.25x) |",
        "| other | 64 x 32 x 16 nt | 8.0 | 4.0 (2.00x) | 1.0 (8.00x) | 8.0 | 10.0 (0.80x) |",
        "| bad | 64 x 32 x 16 nt | 1.0 | 1.0 (1.00x) | wrong | 1.0 | 1000 (0.00x) |",
        // Without the wrong row: sqrt(1 * 2), sqrt(2 * 8), sqrt(1.25 * 0.8).
        "| geometric mean |  |  | 1.41x | 4.00x |  | 1.00x |",
        "To be read with care: sound (spread own-strict); bad (wrong own-accurate).",
    ] {
        assert!(tables.lines().any(|have| have == line), "no line '{line}' in\n{tables}");
    }
    assert_eq!(f32::flaw(&record), Some("a result is wrong"));
}

#[cfg(feature = "bench")]
#[test]
fn the_columns_are_arms_of_the_benchmark() {
    let arms = crate::bench::Args::of(&["--arms", &ARMS.join(","), "--samples", "31"]).arms();
    assert_eq!(arms.iter().map(|arm| arm.name()).collect::<Vec<_>>(), ARMS);
}
