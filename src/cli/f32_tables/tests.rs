//! The tables of a record, and the distributions of the data.

use super::data::{Kind, SIZE};
use super::markdown;
use super::record::{Record, ARMS};
use serde_json::{json, Value};

fn errors(layout: &str, k: usize, sgemm: [f64; 2], accurate: [f64; 2]) -> Value {
    let of = |[max, rms]: [f64; 2], kernel: &str| json!({ "max": max, "rms": rms, "kernel": kernel });
    json!({ "layout": layout, "k": k, "data": "N(0, 1)",
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
    let record = json!({
        "version": "0.1.0", "errors": errors,
        "bench": {
            "schema": 1,
            "machine": { "gpu": "NVIDIA H100", "sms": 132, "driver": "580.1", "cuda": "13.0 (driver), 13.5 (kernels)", "cublas": "13.1.0",
                         "git": "abc", "date": "2026-11-21T10:00:00Z", "clocks_mhz": { "sm": 1980, "memory": 2619 }, "power_w": 700.0 },
            "settings": { "mode": "cold", "samples": 31, "pause": 2.0, "seconds": 60.0, "f32": "accurate" },
            "ceilings": { "hbm_gbps": 3000.0, "tflops": { "f32": 120.0 } }, "rows": rows, "left_out": {},
        },
    });
    serde_json::from_value(record).unwrap()
}

#[test]
fn every_table_says_where_and_when_it_was_measured() {
    let of = |layout| errors(layout, 64, [2e-7, 2e-8], [1e-7, 1e-8]);
    let tables = markdown::tables(&record(&[of("nt"), of("nt"), of("tn")], &[row("r", 1, [1.0; 5], &[])]));
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
    ];
    let tables = markdown::tables(&record(&rows, &[]));
    for line in [
        "| K | data | cuBLAS SGEMM | ours, strict | ours, accurate | cuBLAS TF32 | ours, TF32 |",
        "| 64 | N(0, 1) | 2.6e-7 / 2.8e-8 | 0 / 0 | 1.0e-7 / 1.0e-8 | - | - |",
        "| 96 | N(0, 1) | 2.0e-7 / 2.0e-8 | 0 / 0 | 2.0e-7 / **2.0e-8** | - | - |",
        "| 128 | N(0, 1) | 2.0e-7 / 2.0e-8 | 0 / 0 | **3.0e-7** / 1.0e-8 | - | - |",
        "Accurate is worse than SGEMM in 1 of 3 largest errors and 1 of 3 root mean squares.",
        "ours, strict: `simt`. ours, accurate: `x6`.",
    ] {
        assert!(tables.lines().any(|have| have == line), "no line '{line}' in\n{tables}");
    }
}

#[test]
fn times_come_with_gains_over_cublas_in_the_same_arithmetic() {
    let sound = row("sound", 8, [2725.4, 2725.4, 1362.7, 400.0, 320.0], &["spread own-strict"]);
    let other = row("other", 1, [8.04, 4.02, 1.005, 8.0, 10.0], &[]);
    let wrong = row("bad", 1, [1.0, 1.0, 1000.0, 1.0, 1000.0], &["wrong own-accurate"]);
    let record = record(&[], &[sound, other, wrong]);
    let tables = markdown::tables(&record);
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
    assert_eq!(record.flaw(), Some("a result is wrong"));
}

#[test]
fn tables_go_between_the_markers_and_nowhere_else() {
    let document = "before\n<!-- tilegemm f32 -->\nold\n<!-- end of tilegemm f32 -->\nafter\n";
    let once = markdown::insert(document, "\n| new |\n").unwrap();
    assert_eq!(once, "before\n<!-- tilegemm f32 -->\n\n| new |\n\n<!-- end of tilegemm f32 -->\nafter\n");
    assert_eq!(markdown::insert(&once, "| new |").unwrap(), once);
    assert_eq!(markdown::insert("<!-- end of tilegemm f32 --> <!-- tilegemm f32 -->", ""), None);
    assert!(markdown::insert(include_str!("../../../docs/f32.md"), "").is_some(), "docs/f32.md has a place for them");
}

#[test]
fn numbers_are_what_their_kind_says() {
    let all = |kind: Kind, side| -> Vec<f64> {
        (0..SIZE).flat_map(|index| kind.vector(side, 64, index)).map(f64::from).collect()
    };
    let within = |kind, least: f64, most: f64| all(kind, 0).iter().all(|x| (least..=most).contains(x));
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    for kind in Kind::ALL {
        let values = all(kind, 0);
        assert_eq!(values.len(), SIZE * 64);
        assert!(values.iter().all(|x| x.is_finite()), "{kind}");
        assert_eq!(values, all(kind, 0), "{kind} is the same every time");
        assert_ne!(values, all(kind, 1), "{kind} in A and B");
    }
    let normal = all(Kind::Normal, 1);
    let squares: Vec<f64> = normal.iter().map(|x| x * x).collect();
    assert!(mean(&normal).abs() < 0.03 && (mean(&squares) - 1.0).abs() < 0.05);
    assert!(within(Kind::Positive, 0.0, 1.0) && (mean(&all(Kind::Positive, 0)) - 0.5).abs() < 0.02);
    assert!(within(Kind::Narrow, 1.003, 1.004) && within(Kind::Integers, -30.0, 30.0));
    for kind in [Kind::Integers, Kind::LargeIntegers] {
        assert!(all(kind, 0).iter().all(|x| x.fract() == 0.0), "{kind}");
    }
    for kind in [Kind::Wide, Kind::Scaled] {
        let sizes: Vec<f64> = all(kind, 0).iter().map(|x| x.abs().log10()).collect();
        let spread = |least, most| sizes.iter().any(|size| *size < least) && sizes.iter().any(|size| *size > most);
        assert!(if kind == Kind::Wide { spread(-13.0, 13.0) } else { spread(-28.0, 28.0) }, "{kind}");
    }
    let (a, b) = (Kind::Cancelling.vector(0, 64, 3), Kind::Cancelling.vector(1, 64, 5));
    let products: Vec<f64> = a.iter().zip(&b).map(|(&x, &y)| f64::from(x) * f64::from(y)).collect();
    assert!(products.chunks(2).all(|pair| (pair[0] + pair[1]).abs() <= 2e-5 * pair[0].abs()), "{products:?}");
}

#[test]
fn errors_are_over_the_sum_of_absolute_products() {
    let exact = [(1.0, 2.0), (-3.0, 3.0), (0.0, 0.0)];
    let [max, rms] = Kind::Normal.errors(&[1.5, -3.0, 0.0], exact);
    assert_eq!(max, 0.25);
    assert!((rms - (0.25f64 * 0.25 / 3.0).sqrt()).abs() < 1e-15);
    assert_eq!(Kind::Normal.errors(&[f32::NAN, -3.0, 0.0], exact)[0], 1.0, "NaN is as large as can be");
    assert_eq!(
        Kind::Scaled.errors(&[7.0], [(0.0, 1e-31)]),
        [0.0, 0.0],
        "too small a result of scaled data counts for nothing"
    );
}

#[cfg(feature = "bench")]
#[test]
fn the_columns_are_arms_of_the_benchmark() {
    let arms = crate::cli::bench::Args::of(&["--arms", &ARMS.join(","), "--samples", "31"]).arms();
    assert_eq!(arms.iter().map(|arm| arm.name()).collect::<Vec<_>>(), ARMS);
}
