//! `tilegemm fit`: numbers that made a record are found again, and what is refused.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::internal::cost::{self, Refit};
use candle_tilegemm::{family, Format, Layout, Problem};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const FAMILY: &str = "gevm";

fn fit(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tilegemm")).arg("fit").args(args).output().expect("tilegemm starts")
}

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fit").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A record as `tilegemm bench --random` writes it, of a card whose gevm has these numbers.
fn record(path: &Path, values: &[f64], seed: u64) {
    let device = DeviceInfo::h100();
    let refit = Refit::default().with(FAMILY, values);
    let mut rows = Vec::new();
    for (i, n) in [512, 1024, 2048, 4096, 6144, 8192].into_iter().enumerate() {
        for m in 1..=4 {
            let k = 1024 * (1 + (seed as usize + 3 * i + m) % 11);
            let problem = Problem::dense(m, n, k, 1, Layout::NN, Format::BF16);
            let kernel = family::by_name("gevm_sm90_bf16_nn_4x64x128_1x1");
            let kernel = kernel.or_else(|| {
                family::KERNELS.iter().find(|kernel| {
                    kernel.family == FAMILY && kernel.arch.capability == 90 && kernel.types.a == Format::BF16
                })
            });
            let kernel = kernel.unwrap();
            // One time in eight is wrong by half.
            let us = refit.estimate_us(kernel, &problem.canonical().problem, &device, None);
            let us = if (4 * i + m) % 8 == 0 { 1.5 * us } else { us };
            let arm = json!({ "us": us, "us_p10": us, "us_p90": us, "kernel": kernel.name });
            rows.push(json!({
                "id": format!("random-{seed}-{}", rows.len()), "class": "decode", "m": m, "n": n, "k": k, "batch": 1, "layout": "nn",
                "dtype": "bf16", "roof_us": 1.0, "arms": { "own": arm }, "flags": [],
            }));
        }
    }
    let text = json!({
        "schema": 1,
        "machine": {
            "gpu": "NVIDIA H100 80GB HBM3", "sms": 132, "driver": "580.1", "cuda": "13.0", "cublas": "13.1", "git": "abc",
            "date": "2026-11-24T00:00:00Z", "clocks_mhz": { "sm": 1980, "memory": 2619 }, "power_w": 700.0,
        },
        "settings": { "mode": "cold", "samples": 31, "pause": 2.0, "seconds": 60.0, "seed": seed },
        "ceilings": { "hbm_gbps": 3000.0, "tflops": {} },
        "rows": rows,
    });
    std::fs::write(path, text.to_string()).unwrap();
}

#[test]
fn the_numbers_that_made_a_record_are_found_again() {
    let folder = folder("recover");
    let [first, second] = ["seed-1.json", "seed-2.json"].map(|name| folder.join(name));
    let shipped: Vec<f64> = cost::parameters(FAMILY).iter().map(|parameter| parameter.value).collect();
    let truth = [shipped[0] + 0.6, 0.75 * shipped[1], 1.5 * shipped[2]];
    record(&first, &truth, 1);
    record(&second, &truth, 2);
    let data = folder.join("gevm.toml");
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/src/family/gevm.toml"), &data).unwrap();
    let before = std::fs::read_to_string(&data).unwrap();

    let text = |path: &Path| path.display().to_string();
    let args = [text(&first), "--judge".into(), text(&second), "--out".into(), text(&folder)];
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = fit(&args);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for words in ["| gevm ", "judged", "regret on", "fitted:", "decode"] {
        assert!(printed.contains(words), "no {words} in:\n{printed}");
    }
    assert_eq!(std::fs::read_to_string(&data).unwrap(), before, "nothing is written without --write");

    args.push("--write");
    assert!(fit(&args).status.success());
    let file: toml::Table = std::fs::read_to_string(&data).unwrap().parse().unwrap();
    for (parameter, truth) in cost::parameters(FAMILY).iter().zip(truth) {
        let value = file["values"][parameter.name].as_float().unwrap();
        // The price of moves pulls the numbers a little towards their present values.
        assert!((value - truth).abs() < 0.05 * truth.abs().max(0.5), "{}: {value}, made with {truth}", parameter.name);
    }
    let provenance = file["provenance"].as_table().unwrap();
    assert_eq!(provenance["records"].as_array().unwrap()[0].as_str(), Some("seed-1.json"));
    assert_eq!(provenance["seeds"].as_array().unwrap()[0].as_integer(), Some(1));
    assert_eq!(provenance["measurements"].as_integer(), Some(24));
}

#[test]
fn what_proves_the_estimates_is_not_fitted_to() {
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/record/h200/2026-11-22.json");
    let output = fit(&[suite, "--write"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("benches/suite.toml"), "{error}");
    assert_eq!(fit(&[]).status.code(), Some(2), "no record");
    assert_eq!(fit(&["--only", "no_family", suite]).status.code(), Some(2));
    assert_eq!(fit(&["no-such-record.json"]).status.code(), Some(1));
}
