//! The regret that `tilegemm bench` reports, on a record made up by hand.

use std::path::PathBuf;
use std::process::Command;

/// Four rows of three classes and one wrong row. `hot` and `sound-b` have the choice itself as the best arm.
const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/regret.json");

fn run(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tilegemm")).args(args).output().expect("tilegemm starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The cells of a line of a table, by the first cell, after the line that begins with `title`.
fn cells(text: &str, title: &str, class: &str) -> Vec<String> {
    let after = text.split_once(title).unwrap_or_else(|| panic!("no {title} in\n{text}")).1;
    let of_line = |line: &str| line.split('|').map(|cell| cell.trim().to_string()).collect::<Vec<_>>();
    let line = after.lines().map(of_line).find(|cells| cells.get(1).is_some_and(|cell| cell == class));
    line.unwrap_or_else(|| panic!("no {class} in\n{after}"))[2..8].to_vec()
}

const TUNED: &str = "regret of the dispatcher's choice, with its measured tables";
const UNTUNED: &str = "regret of the dispatcher's choice without measured tables";

#[test]
fn the_regret_of_a_record_is_what_a_hand_computes() {
    let text = run(&["bench", "--from", RECORD]);
    // decode-1: 12 us, best 10 (a kernel in another configuration): 1.2. decode-2: the choice is the best. Stock: 10 and 20 us.
    assert_eq!(cells(&text, TUNED, "decode"), ["2", "9.5 %", "20.0 %", "20.0 %", "decode-1", "1 of 2, 0.83 decode-1"]);
    // 50 us; stock's 25 us are inexact, cuBLASLt's 30 us and a second time of the choice are no choices: the best is 40.
    assert_eq!(cells(&text, TUNED, "unaligned"), ["1", "25.0 %", "25.0 %", "25.0 %", "odd", "1 of 1, 0.50 odd"]);
    // No stock; own-best is the best.
    assert_eq!(cells(&text, TUNED, "fused"), ["1", "10.0 %", "10.0 %", "10.0 %", "fused", "-"]);
    // (1.2 * 1.0 * 1.25 * 1.1) ^ (1/4) = 1.1334; the wrong row and the row with one arm do not count.
    assert_eq!(cells(&text, TUNED, "all"), ["4", "13.3 %", "25.0 %", "25.0 %", "odd", "2 of 3, 0.50 odd"]);
    // Without tables decode-1 takes 15 us: (1.5 * 1.0) ^ (1/2) = 1.2247.
    assert_eq!(cells(&text, UNTUNED, "all"), ["2", "22.5 %", "50.0 %", "50.0 %", "decode-1", "1 of 2, 0.67 decode-1"]);
}

#[test]
fn the_page_has_the_regret() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("regret.html");
    run(&["bench", "--from", RECORD, "--html", path.to_str().unwrap()]);
    let page = std::fs::read_to_string(&path).unwrap();
    assert_eq!(page.matches("<table class=\"regret\">").count(), 2);
    assert!(page.contains("<td class=\"text\">all</td><td>4</td><td>13.3 %</td><td>25.0 %</td>"), "the line of all");
    // Single kernels have no columns of their own.
    assert!(!page.contains("gemv_sm90_bf16_nt_8x2x512_1x1@1x2_k4_w4 us"));
}

#[test]
fn a_compact_record_has_the_same_medians() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compact.json");
    let whole = run(&["bench", "--from", RECORD, "--json", path.to_str().unwrap(), "--compact"]);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("us_p10") && text.contains("\"columns\": ["), "{text}");
    let compact = run(&["bench", "--from", path.to_str().unwrap()]);
    let regret = |text: &str| text.split_once(TUNED).unwrap().1.to_string();
    assert_eq!(regret(&whole), regret(&compact));
    let judged = |record: &str| run(&["fit", "--judge", record]).split_once('\n').unwrap().1.to_string();
    assert_eq!(judged(RECORD).replace(RECORD, ""), judged(path.to_str().unwrap()).replace(path.to_str().unwrap(), ""));
    // A compact record stays what it is, and a place outside of the table is an error.
    run(&["bench", "--from", path.to_str().unwrap(), "--json", path.to_str().unwrap(), "--compact"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    for (wrong, why) in [
        (text.replacen(",[0,", ",[999,", 1), "names arm 999, which the table lacks"),
        (text.replacen("]],", ",7]],", 1), "has an arm without a time"),
        (text.replacen("\"rows\": [", "\"rows\": [7,", 1), "7 is no row"),
        (text.replacen("\"schema\": 2", "\"schema\": 3", 1), "schema 3, this command reads 1 and 2"),
    ] {
        std::fs::write(&path, wrong).unwrap();
        let output =
            Command::new(env!("CARGO_BIN_EXE_tilegemm")).args(["bench", "--from", path.to_str().unwrap()]).output();
        let error = String::from_utf8(output.unwrap().stderr).unwrap();
        assert!(error.contains(why), "{error}");
    }
}

/// In schema 1 the rows of a compact record are objects, and its arms are pairs.
#[test]
fn a_compact_record_of_schema_1_is_read() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compact-1.json");
    let mut record: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(RECORD).unwrap()).unwrap();
    let mut table = Vec::new();
    for row in record["rows"].as_array_mut().unwrap() {
        let mut pairs = Vec::new();
        for (name, arm) in row["arms"].as_object().unwrap() {
            pairs.push(serde_json::json!([table.len(), arm["us"]]));
            let mut entry = serde_json::json!({ "arm": name, "kernel": arm["kernel"] });
            if let Some(config) = arm.get("config") {
                entry["config"] = config.clone();
            }
            table.push(entry);
        }
        row["arms"] = pairs.into();
    }
    record["arms"] = table.into();
    std::fs::write(&path, record.to_string()).unwrap();
    let [whole, compact] = [RECORD, path.to_str().unwrap()].map(|record| run(&["bench", "--from", record]));
    assert_eq!(whole.split_once(TUNED).unwrap().1, compact.split_once(TUNED).unwrap().1);
}

/// `fit --judge` judges what this build would choose on the same measurements.
#[test]
fn a_record_with_every_kernel_judges_other_builds() {
    let text = run(&["fit", "--judge", RECORD]);
    assert!(text.contains("this build with its measured tables:") && text.contains("this build:"), "{text}");
    // The choice on copies takes 50 us, the best arm 38; stock's 25 us are no time of the vendor's row.
    assert_eq!(
        cells(&text, "this build:", "unaligned"),
        ["1", "31.6 %", "31.6 %", "31.6 %", "odd", "1 of 1, 0.50 odd"]
    );
    assert!(text.contains("the choice was not measured: decode-1"), "{text}");
}

/// Products of seeds 1, 2, 11 and 16 on H100s, which `tilegemm fit` has not read; docs/benchmarks.md says how far they are unseen.
#[test]
fn the_regret_on_products_that_nobody_fitted_stays_small() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut fitted = 0;
    for folder in ["fit", "trees"] {
        for entry in std::fs::read_dir(format!("{root}/tuning/h100/{folder}")).unwrap() {
            let path = entry.unwrap().path();
            let file: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
            let seeds = file.get("provenance").and_then(|provenance| provenance.get("seeds")?.as_array());
            let Some(seeds) = seeds.filter(|seeds| !seeds.is_empty()) else { continue };
            let is_for_judging = |seed: &toml::Value| [1, 2, 11, 16].map(Some).contains(&seed.as_integer());
            assert!(!seeds.iter().any(is_for_judging), "{} was fitted to them", path.display());
            fitted += 1;
        }
    }
    assert!(fitted > 10, "{fitted} files name the seeds that they were fitted to");
    // Of each seed: products, the most of mean, 95th percentile and worst in per cent, products slower than stock.
    let records = [
        ("random-1", 295, 1.2, 8.5, 30.0, 12),
        ("random-2", 295, 1.7, 9.5, 57.0, 13),
        ("random-11", 290, 1.2, 6.5, 70.0, 14),
        ("random-16", 290, 1.9, 11.0, 66.0, 11),
    ];
    for (name, products, mean, p95, worst, slower) in records {
        let text = run(&["fit", "--judge", &crate::records::path(&format!("h100/2026-11-25-{name}.json"))]);
        let all = cells(&text, "this build:", "all");
        let percent = |cell: &str| cell.trim_end_matches(" %").parse::<f64>().unwrap();
        assert!(all[0].parse::<usize>().unwrap() >= products, "{name}: {all:?}");
        assert!(percent(&all[1]) < mean && percent(&all[2]) < p95 && percent(&all[3]) < worst, "{name}: {all:?}");
        let slower_here: usize = all[5].split_once(" of ").unwrap().0.parse().unwrap();
        assert!(slower_here <= slower, "{name}: {all:?}");
    }
}
