//! The fitted numbers of the families: their files, and the regret of the estimates alone on the committed records.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::{self, KERNELS};
use candle_tilegemm::internal::fit::{self, Refit};
use candle_tilegemm::{F32Mode, Format, Layout, Problem};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn families() -> Vec<&'static str> {
    let mut names: Vec<_> = KERNELS.iter().map(|kernel| kernel.family).collect();
    names.dedup();
    names
}

/// The files in a folder of `tuning/<card>`, with the card.
fn files(kind: &str) -> Vec<(DeviceInfo, PathBuf, toml::Table)> {
    let tuning = Path::new(env!("CARGO_MANIFEST_DIR")).join("tuning");
    let cards = std::fs::read_dir(tuning).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let of_card = |folder: PathBuf| {
        let card = DeviceInfo::by_name(folder.file_name().unwrap().to_str().unwrap()).expect("a card's short name");
        let paths = std::fs::read_dir(folder.join(kind)).into_iter().flatten().map(|entry| entry.unwrap().path());
        let parse = |path: &PathBuf| std::fs::read_to_string(path).unwrap().parse().unwrap();
        paths.map(|path| (card.clone(), path.clone(), parse(&path))).collect::<Vec<_>>()
    };
    cards.flat_map(of_card).collect()
}

fn family_of(path: &Path) -> &str {
    path.file_stem().unwrap().to_str().unwrap()
}

#[test]
fn every_number_has_a_meaning_a_range_and_an_origin() {
    let files = files("fit");
    assert!(families().iter().all(|family| files.iter().any(|(_, path, _)| family_of(path) == *family)));
    for (card, path, file) in files {
        let (family, name) = (family_of(&path), path.display());
        let parameters = fit::parameters(family, &card);
        assert!(!parameters.is_empty(), "{name}");
        for parameter in &parameters {
            let [least, most] = parameter.range;
            assert!((least..=most).contains(&parameter.value), "{name}: {parameter:?}");
            assert!(parameter.meaning.len() > 10 && !parameter.meaning.starts_with(' '), "{name}: {parameter:?}");
        }
        let provenance = file["provenance"].as_table().unwrap();
        for key in ["gpu", "records", "seeds", "measurements", "note"] {
            assert!(provenance.contains_key(key), "{name}: no {key}");
        }
        let numbers = |value: &toml::Value| value.to_string().split(',').count();
        assert_eq!(file["values"].as_table().unwrap().values().map(numbers).sum::<usize>(), parameters.len(), "{name}");
    }
    assert!(fit::parameters("no_family", &DeviceInfo::h100()).is_empty());
}

#[test]
fn trees_explain_errors_and_have_an_origin() {
    let files = files("trees");
    assert!(files.len() > 10);
    for (_, path, file) in files {
        let (family, name) = (family_of(&path), path.display());
        let provenance = file["provenance"].as_table().unwrap();
        for key in ["gpu", "records", "seeds", "measurements", "mean_error_without", "mean_error_with"] {
            assert!(provenance.contains_key(key), "{name}: trees without {key}");
        }
        let error = |key: &str| provenance[key].as_float().unwrap();
        assert!(error("mean_error_with") < error("mean_error_without"), "{name}: trees that explain nothing");
        let kernels = file["kernels"].as_array().unwrap();
        let is_of_family = |name: &toml::Value| family::by_name(name.as_str().unwrap()).unwrap().family == family;
        assert!(!kernels.is_empty() && kernels.iter().all(is_of_family), "{name}: {kernels:?}");
    }
}

#[test]
fn a_refit_changes_the_estimates_of_its_family_alone() {
    let device = DeviceInfo::h100();
    let problem = Problem::dense(16, 4096, 4096, 1, Layout::NT, Format::BF16).canonical().problem;
    let kernel = family::by_name("sm90_few_rows_bf16_nt_128x64x128_1x1_s8").unwrap();
    let other = family::by_name("cublas_bf16_nt").unwrap();
    let parameters = fit::parameters(kernel.family, &device);
    let place = parameters.iter().position(|parameter| parameter.name == "launch_us").unwrap();
    let mut values: Vec<f64> = parameters.iter().map(|parameter| parameter.value).collect();
    let same = Refit::default().with(kernel.family, &values);
    values[place] += 1.0;
    let later = Refit::default().with(kernel.family, &values);
    let us = Refit::default().estimate_us(kernel, &problem, &device, None);
    assert_eq!(same.estimate_us(kernel, &problem, &device, None), us);
    assert!((later.estimate_us(kernel, &problem, &device, None) - us - 1.0).abs() < 1e-9);
    let vendor = Refit::default().estimate_us(other, &problem, &device, None);
    assert_eq!(later.estimate_us(other, &problem, &device, None), vendor);
    // The dispatcher chooses by them.
    values[place] += 100.0;
    let slow = Refit::default().with(kernel.family, &values);
    let chosen = |dispatcher: Dispatcher| dispatcher.plan(&problem, Policy::own()).unwrap().kernel.name;
    let dispatcher = || Dispatcher::hypothetical(device.clone()).without_tuning();
    assert_eq!(chosen(dispatcher()), kernel.name);
    assert_ne!(chosen(dispatcher().with_refit(slow)), kernel.name);
}

/// The regret of the estimates alone: for each product the time of their choice over the least measured time of our kernels and of stock's
/// call. Where the record lacks the choice, a measured table decided instead: its gain is the regret, as long as
/// the table's entry is valid. Other products do not count.
struct Regret {
    rows: Vec<(String, f64)>,
    unmeasured: usize,
}

fn regret(device: &DeviceInfo, record: &str) -> Regret {
    let record: Value = serde_json::from_str(record).unwrap();
    let suite: toml::Table = include_str!("../../benches/suite.toml").parse().unwrap();
    let shapes = suite["shape"].as_array().unwrap();
    let tuned = Dispatcher::hypothetical(device.clone());
    let estimates = Dispatcher::hypothetical(device.clone()).without_tuning();
    let mut regret = Regret { rows: Vec::new(), unmeasured: 0 };
    // The record is compact: a row is a list of its columns, then of times, each after its arm's place in the table.
    let columns = record["columns"].as_array().unwrap();
    for row in record["rows"].as_array().unwrap() {
        let column = |name: &str| &row[columns.iter().position(|column| column == name).unwrap()];
        let id = column("id").as_str().unwrap();
        let shape = shapes.iter().find(|shape| shape["id"].as_str() == Some(id)).unwrap();
        let [m, n, k, batch] = ["m", "n", "k", "batch"].map(|key| column(key).as_u64().unwrap() as usize);
        let text = |key: &str| column(key).as_str().unwrap();
        let (layout, dtype): (Layout, Format) = (text("layout").parse().unwrap(), text("dtype").parse().unwrap());
        let mut problem = Problem::dense(m, n, k, batch, layout, dtype);
        problem.f32_mode = F32Mode::Accurate;
        if shape.get("epilogue").is_some() {
            continue; // stock has no one call
        }
        if let Some(stride) = shape.get("b_batch_stride") {
            problem.b.batch_stride[1] = stride.as_integer().unwrap();
        }
        let folded = problem.canonical().problem.m != m;
        let vendor = format!("cublas_{dtype}_{layout}");
        let times = row[columns.len()].as_array().unwrap().chunks(2).filter_map(|time| {
            let arm = &record["arms"][time[0].as_u64()? as usize];
            let name = arm["kernel"].as_str()?;
            let counts = ["ours", "own", "own-best", "candle"].contains(&arm["arm"].as_str()?);
            let is_vendors = name == "cublasGemmStridedBatchedEx";
            (counts && (!is_vendors || !folded))
                .then_some((if is_vendors { vendor.clone() } else { name.into() }, time[1].as_f64()?))
        });
        let times: Vec<(String, f64)> = times.collect();
        let best = times.iter().map(|time| time.1).fold(f64::INFINITY, f64::min);
        let choice = estimates.plan(&problem, Policy::default()).unwrap();
        let us = times.iter().filter(|time| time.0 == choice.kernel.name).map(|time| time.1).reduce(f64::min);
        let gain = || tuned.explain(&problem, Policy::default()).tuned.first().map(|tuned| tuned.entry.gain);
        match us.map(|us| us / best).or_else(gain) {
            Some(ratio) => regret.rows.push((id.into(), ratio)),
            None => regret.unmeasured += 1,
        }
    }
    regret.rows.sort_by(|x, y| y.1.total_cmp(&x.1));
    regret
}

fn mean(rows: &[(String, f64)]) -> f64 {
    (rows.iter().map(|row| row.1.ln()).sum::<f64>() / rows.len() as f64).exp()
}

#[test]
fn the_regret_of_the_estimates_alone_is_small() {
    let [h100, h200] = ["h100", "h200"].map(|card| crate::records::text(&format!("{card}/2026-11-22.json")));
    for (device, record, most_mean, most, unmeasured) in
        [(DeviceInfo::h100(), h100, 1.0025, 1.06, 11), (DeviceInfo::h200(), h200, 1.0055, 1.09, 20)]
    {
        let regret = regret(&device, &record);
        let rows = &regret.rows;
        println!(
            "{}: {} products, mean {:.4}, worst {:?}, unmeasured {}",
            device.name,
            rows.len(),
            mean(rows),
            &rows[..4],
            regret.unmeasured
        );
        assert!(rows.len() > 120 && regret.unmeasured <= unmeasured, "{}: {} rows", device.name, rows.len());
        assert!(mean(rows) < most_mean, "{}: mean {}", device.name, mean(rows));
        for (id, ratio) in rows {
            assert!(*ratio < most, "{}: {id} {ratio}", device.name);
        }
    }
}
