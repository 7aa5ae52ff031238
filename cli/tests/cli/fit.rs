//! `tilegemm fit`: numbers that made a record are found again, and what is refused.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::internal::fit::{self, Refit};
use candle_tilegemm::{family, Format, Layout, Problem};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Output;

const FAMILY: &str = "gevm";

fn fit(args: &[&str]) -> Output {
    crate::support::tilegemm(&[&["fit"], args].concat())
}

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fit").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A card's files of numbers and of trees.
fn data(folder: &Path, card: &str) -> [PathBuf; 2] {
    ["fit", "trees"].map(|kind| {
        std::fs::create_dir_all(folder.join(card).join(kind)).unwrap();
        folder.join(card).join(kind).join("gevm.toml")
    })
}

/// A record as `tilegemm bench --random` writes it, of a card whose gevm has these numbers.
fn record(path: &Path, values: &[f64], seed: u64) {
    let mut products = Vec::new();
    for (i, n) in [512, 1024, 2048, 4096, 6144, 8192].into_iter().enumerate() {
        for m in 1..=4 {
            // One time in eight is wrong by half.
            let error = if (4 * i + m) % 8 == 0 { 1.5 } else { 1.0 };
            products.push((m, n, 1024 * (1 + (seed as usize + 3 * i + m) % 11), error));
        }
    }
    record_of(path, values, seed, &products);
}

/// The same of products of M, N and K that take this multiple of the estimate.
fn record_of(path: &Path, values: &[f64], seed: u64, products: &[(usize, usize, usize, f64)]) {
    let device = DeviceInfo::h100();
    let refit = Refit::default().with(FAMILY, values);
    let mut rows = Vec::new();
    let kernel = family::by_name("gevm_sm90_bf16_nn_4x64x32_1x1").unwrap();
    for &(m, n, k, error) in products {
        let problem = Problem::dense(m, n, k, 1, Layout::NN, Format::BF16);
        let us = error * refit.estimate_us(kernel, &problem.canonical().problem, &device, None);
        let arm = json!({ "us": us, "us_p10": us, "us_p90": us, "kernel": kernel.name });
        rows.push(json!({
            "id": format!("random-{seed}-{}", rows.len()), "class": "decode", "m": m, "n": n, "k": k, "batch": 1, "layout": "nn",
            "dtype": "bf16", "roof_us": 1.0, "arms": { "own": arm }, "flags": [],
        }));
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
    let shipped: Vec<f64> =
        fit::parameters(FAMILY, &DeviceInfo::h100()).iter().map(|parameter| parameter.value).collect();
    // The other numbers are of many small blocks, which these products do not have.
    let mut truth = shipped.clone();
    (truth[0], truth[1], truth[2]) = (shipped[0] + 0.6, 0.75 * shipped[1], 1.5 * shipped[2]);
    record(&first, &truth, 1);
    record(&second, &truth, 2);
    let [data, trees] = data(&folder, "h100");
    let shipped_data = concat!(env!("CARGO_MANIFEST_DIR"), "/../tuning/h100/fit/gevm.toml");
    std::fs::copy(shipped_data, &data).unwrap();
    let before = std::fs::read_to_string(&data).unwrap();

    let text = |path: &Path| path.display().to_string();
    let args = [text(&first), "--judge".into(), text(&second), "--write".into(), "--out".into(), text(&folder)];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = fit(&args[..3]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for words in ["| gevm ", "judged", "regret on", "fitted:", "decode"] {
        assert!(printed.contains(words), "no {words} in:\n{printed}");
    }
    for file in [&data, Path::new(shipped_data)] {
        assert_eq!(std::fs::read_to_string(file).unwrap(), before, "nothing is written without --write");
    }

    std::fs::write(&trees, "").unwrap();
    assert!(fit(&args).status.success());
    assert!(!trees.exists(), "24 measurements make no trees, and those of other numbers do not hold");
    let file: toml::Table = std::fs::read_to_string(&data).unwrap().parse().unwrap();
    for (parameter, truth) in fit::parameters(FAMILY, &DeviceInfo::h100()).iter().zip(truth).take(3) {
        let value = file["values"][parameter.name].as_float().unwrap();
        // The price of moves pulls the numbers a little towards their present values.
        assert!((value - truth).abs() < 0.05 * truth.abs().max(0.5), "{}: {value}, made with {truth}", parameter.name);
    }
    let provenance = file["provenance"].as_table().unwrap();
    assert_eq!(provenance["records"].as_array().unwrap()[0].as_str(), Some("seed-1.json"));
    assert_eq!(provenance["seeds"].as_array().unwrap()[0].as_integer(), Some(1));
    assert_eq!(provenance["measurements"].as_integer(), Some(24));
}

/// Errors that no number of the family explains: a quarter more from K = 3000 on.
#[test]
fn errors_that_the_numbers_leave_are_learned_as_trees() {
    let folder = folder("trees");
    let values: Vec<f64> =
        fit::parameters(FAMILY, &DeviceInfo::h100()).iter().map(|parameter| parameter.value).collect();
    let products = |first: usize, count: usize| {
        let product = |i: usize| {
            let k = 256 + (first + 7 * i) % 100 * 64;
            (1 + i % 4, 512 * (1 + i % 13), k, if k > 3000 { 1.25 } else { 1.0 })
        };
        (0..count).map(product).collect::<Vec<_>>()
    };
    let [first, second, few] = ["seed-1.json", "seed-2.json", "few.json"].map(|name| folder.join(name));
    record_of(&first, &values, 1, &products(0, 400));
    record_of(&second, &values, 2, &products(3, 100));
    record_of(&few, &values, 3, &products(5, 100));
    let text = |path: &Path| path.display().to_string();
    let run = |record: &Path| {
        let args = [text(record), "--judge".into(), text(&second), "--out".into(), text(&folder)];
        let args: Vec<&str> = args.iter().map(String::as_str).chain(["--only-trees", "--write"]).collect();
        let output = fit(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let [numbers, data] = data(&folder, "h100");
    let _ = std::fs::remove_file(&data);
    assert!(!run(&few).contains("trees of") && !data.exists(), "100 measurements are too few");

    let printed = run(&first);
    let line = printed.lines().find(|line| line.starts_with("| gevm ")).unwrap_or_else(|| panic!("{printed}"));
    let cells: Vec<f64> = line.split('|').filter_map(|cell| cell.trim().trim_end_matches(" %").parse().ok()).collect();
    let [_, count, without, with, judged_without, judged_with] = cells[..] else { panic!("{line}") };
    assert_eq!(count, 400.0);
    assert!(without > 10.0 && with < 2.0 && judged_without > 10.0 && judged_with < 3.0, "{line}");
    let file: toml::Table = std::fs::read_to_string(&data).unwrap().parse().unwrap();
    let kernels: Vec<_> = file["kernels"].as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
    // f16 has the same kernel.
    assert_eq!(kernels, ["gevm_sm90_bf16_nn_4x64x32_1x1", "gevm_sm90_f16_nn_4x64x32_1x1"]);
    let tree = file["trees"].as_array().unwrap()[0].as_array().unwrap();
    assert_eq!((tree[0].as_array().unwrap().len(), tree[1].as_array().unwrap().len()), (6, 64));
    assert!(!numbers.exists(), "--only-trees keeps the numbers");
}

/// The numbers of a card that has none yet begin with those of the H100.
#[test]
fn a_card_gets_numbers_of_its_own() {
    let folder = folder("cards");
    let [[shipped, _], [own, _]] = ["h100", "h200"].map(|card| data(&folder, card));
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/../tuning/h100/fit/gevm.toml"), &shipped).unwrap();
    let _ = std::fs::remove_file(&own);
    let before = std::fs::read_to_string(&shipped).unwrap();
    let [h100, h200] = ["h100.json", "h200.json"].map(|name| folder.join(name));
    let mut truth: Vec<f64> = fit::parameters(FAMILY, &DeviceInfo::h200()).iter().map(|p| p.value).collect();
    truth[0] += 0.6;
    record(&h100, &truth, 1);
    let text = std::fs::read_to_string(&h100).unwrap();
    std::fs::write(&h200, text.replace("NVIDIA H100 80GB HBM3", "NVIDIA H200")).unwrap();

    let text = |path: &Path| path.display().to_string();
    let (h100, h200, out) = (text(&h100), text(&h200), text(&folder));
    let output = fit(&[&h100, &h200, "--write", "--out", &out]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains("NVIDIA H200") && !own.exists(), "{error}");

    let output = fit(&[&h200, "--write", "--out", &out]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_to_string(&shipped).unwrap(), before, "the H100's numbers stay");
    let file = |path: &Path| std::fs::read_to_string(path).unwrap().parse::<toml::Table>().unwrap();
    let (own, shipped) = (file(&own), file(&shipped));
    let names = |file: &toml::Table| file["values"].as_table().unwrap().keys().cloned().collect::<Vec<_>>();
    assert!(names(&own) == names(&shipped) && own["values"] != shipped["values"]);
    assert_eq!(own["provenance"]["gpu"].as_str(), Some("NVIDIA H200"));
}

/// A card without numbers of its own keeps the H100's trees, and gets some more, of the errors that those leave.
#[test]
fn a_card_without_numbers_continues_the_trees_of_the_h100() {
    let folder = folder("continued");
    let [numbers, trees] = data(&folder, "h200").map(|path| path.with_file_name("split_k.toml"));
    let _ = std::fs::remove_file(&trees);
    let output = fit(&[
        &crate::records::path("h200/2026-11-26-random-1.json"),
        "--judge",
        &crate::records::path("h200/2026-11-26-random-2.json"),
        "--only",
        "split_k",
        "--only-trees",
        "--write",
        "--out",
        &folder.display().to_string(),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let line = printed.lines().find(|line| line.starts_with("| split_k ")).unwrap_or_else(|| panic!("{printed}"));
    let cells: Vec<f64> = line.split('|').filter_map(|cell| cell.trim().trim_end_matches(" %").parse().ok()).collect();
    let [all, _, without, with, judged_without, judged_with] = cells[..] else { panic!("{line}") };
    assert!(with < 0.6 * without && judged_with < 0.8 * judged_without, "{line}");
    let file: toml::Table = std::fs::read_to_string(&trees).unwrap().parse().unwrap();
    let [own, kernels] = ["trees", "kernels"].map(|list| file[list].as_array().unwrap().len());
    let shipped = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../tuning/h100/trees/split_k.toml"));
    let shipped: toml::Table = shipped.unwrap().parse().unwrap();
    let [first, shipped] = ["trees", "kernels"].map(|list| shipped[list].as_array().unwrap().len());
    assert!(file["continues"].as_bool() == Some(true) && own == 16 && kernels == shipped, "{own} trees, {kernels}");
    assert!(all == (first + own) as f64 && !numbers.exists(), "{line}");
}

#[test]
fn what_proves_the_estimates_is_not_fitted_to() {
    let suite = &crate::records::path("h200/2026-11-22.json");
    let output = fit(&[suite, "--write"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("benches/suite.toml"), "{error}");
    assert_eq!(fit(&[]).status.code(), Some(2), "no record");
    assert_eq!(fit(&["--only", "no_family", suite]).status.code(), Some(2));
    assert_eq!(fit(&["no-such-record.json"]).status.code(), Some(1));
}
