//! `tilegemm bench` without a GPU: suites, records and what it says where it cannot measure.

use crate::support::{file, stderr, stdout, tilegemm};
use std::path::PathBuf;
use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    tilegemm(&[&["bench"], args].concat())
}

/// A record of rows (id, microseconds of ours, of candle), each with a spread of 1 %.
fn record(name: &str, rows: &[(&str, f64, f64)]) -> PathBuf {
    let arm =
        |us: f64| format!(r#"{{"us":{us},"us_p10":{},"us_p90":{},"kernel":"k","err":0.001}}"#, us * 0.995, us * 1.005);
    let row = |(id, ours, candle): &(&str, f64, f64)| {
        format!(
            r#"{{"id":"{id}","class":"c","m":16,"n":64,"k":64,"batch":1,"layout":"nt","dtype":"bf16","roof_us":1.0,
            "arms":{{"ours":{},"candle":{}}},"flags":[]}}"#,
            arm(*ours),
            arm(*candle)
        )
    };
    let rows: Vec<String> = rows.iter().map(row).collect();
    let text = format!(
        r#"{{"schema":1,"machine":{{"gpu":"G","sms":132,"driver":"d","cuda":"c","cublas":"b","git":"g","date":"2026-11-21T00:00:00Z",
        "clocks_mhz":{{"sm":1980,"memory":2619}},"power_w":700.0}},
        "settings":{{"mode":"cold","samples":31,"pause":2.0,"seconds":1.0}},
        "ceilings":{{"hbm_gbps":3000.0,"tflops":{{"bf16":800.0}}}},"rows":[{}]}}"#,
        rows.join(",")
    );
    file(name, &text)
}

#[test]
fn without_a_gpu_it_says_so_and_exits_2() {
    if Command::new("nvidia-smi").arg("-L").output().is_ok_and(|output| output.status.success()) {
        return; // the GPU trials measure there
    }
    let output = bench(&["--only", "rope"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("no CUDA device") || said.contains("cannot measure"), "{said}");
    assert!(said.contains("--from") && said.contains("--compare"), "it says what works without one: {said}");
}

#[test]
fn a_bad_suite_is_told_with_line_field_and_expectation() {
    let row = "[[shape]]\nid = \"a\"\nclass = \"c\"\nm = 1\nn = 1\nk = 1\nlayout = \"nt\"\n";
    for (name, text, expected) in [
        ("dtype", format!("{row}dtype = \"bf17\"\n"), ["line 8", "bf17", "bf16"]),
        ("zero", row.replace("m = 1", "m = 0") + "dtype = \"bf16\"\n", ["line 4", "m = 0", "expected 1 to"]),
        ("field", format!("{row}dtype = \"bf16\"\nstride = 3\n"), ["line 9", "stride", "expected one of"]),
    ] {
        let path = file(name, &text);
        let output = bench(&["--suite", path.to_str().unwrap()]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(path.to_str().unwrap()), "the file is named: {said}");
        for part in expected {
            assert!(said.contains(part), "'{part}' is missing in: {said}");
        }
    }
    let output = bench(&["--only", "no such row"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no such row"));
}

#[test]
fn a_regression_beyond_noise_fails_the_comparison() {
    let first = record("first.json", &[("a", 10.0, 12.0), ("b", 20.0, 20.0), ("only-first", 5.0, 5.0)]);
    let same = record("same.json", &[("a", 10.2, 12.1), ("b", 19.8, 20.1)]);
    let slower = record("slower.json", &[("a", 11.0, 12.0), ("b", 18.0, 20.0)]);
    let compare = |second: &PathBuf| bench(&["--compare", first.to_str().unwrap(), second.to_str().unwrap()]);

    let output = compare(&same);
    assert!(output.status.success(), "2 % is noise: {}", stdout(&output));
    assert!(stdout(&output).contains("2 rows (100 %) agree within 3 %"), "{}", stdout(&output));
    assert!(stdout(&output).contains("only in one record: only-first"), "{}", stdout(&output));

    let output = compare(&slower);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let said = stdout(&output);
    assert!(said.contains("1 slower, 1 faster, of 2 rows"), "{said}");
    assert!(said.contains("+10.0 %") && said.contains("-10.0 %"), "{said}");
}

#[test]
fn the_drift_of_the_card_is_no_regression() {
    let ids = ["a", "b", "c", "d", "e", "f"];
    let rows = |scale: f64, last: f64| -> Vec<(&str, f64, f64)> {
        ids.iter().map(|id| (*id, 10.0 * scale * if *id == "f" { last } else { 1.0 }, 12.0 * scale)).collect()
    };
    let first = record("drift-first.json", &rows(1.0, 1.0));
    let warm = record("drift-warm.json", &rows(1.08, 1.0));
    let worse = record("drift-worse.json", &rows(1.08, 1.1));
    let output = bench(&["--compare", first.to_str().unwrap(), warm.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stdout(&output));
    assert!(stdout(&output).contains("drift (+8.0 %"), "{}", stdout(&output));
    let output = bench(&["--compare", first.to_str().unwrap(), worse.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stdout(&output).contains("1 slower, 0 faster"), "{}", stdout(&output));
}

#[test]
fn a_record_is_summed_up() {
    let path = record("sum.json", &[("a", 10.0, 12.0), ("b", 20.0, 20.0)]);
    let output = bench(&["--from", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stdout(&output);
    // sqrt(1.2 * 1.0)
    assert!(said.contains("1.095"), "the geometric mean of ours over candle: {said}");
    assert!(said.contains("1.00 b"), "the worst row: {said}");
}

#[test]
fn records_without_a_common_product_are_an_error_that_says_what_they_hold() {
    let first = record("common-first.json", &[("a", 10.0, 12.0), ("b", 20.0, 20.0)]);
    let other = record("common-other.json", &[("x", 10.0, 12.0)]);
    let moved = file("common-moved.json", &std::fs::read_to_string(&first).unwrap().replace("\"m\":16", "\"m\":32"));
    let [first, other, moved] = [first, other, moved].map(|path| path.to_str().unwrap().to_string());
    for second in [&other, &moved] {
        let output = bench(&["--compare", &first, second]);
        let said = stderr(&output);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""), "{said}");
        let rows = if *second == other { 1 } else { 2 };
        for words in [
            "no product has a time of ours in both records".to_string(),
            format!("{first}: 2 rows; classes: c; arms: candle, ours"),
            format!("{second}: {rows} rows; classes: c; arms: candle, ours"),
        ] {
            assert!(said.contains(&words), "no '{words}' in: {said}");
        }
    }
    let output = bench(&["--compare", &first, &first, "--arms", "own"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no row has a time of the arm own"), "{}", stderr(&output));
}

#[test]
fn only_and_arms_pick_from_a_record() {
    let path = record("pick.json", &[("first", 10.0, 12.0), ("second", 20.0, 20.0)]);
    let path = path.to_str().unwrap();
    let written = path.replace("pick", "picked");
    let output = bench(&["--from", path, "--only", "SECOND", "--arms", "Ours", "--json", &written]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stdout(&output).contains("1.095"), "{}", stdout(&output));
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(written).unwrap()).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!((&rows[0]["id"], rows[0]["arms"].as_object().unwrap().len()), (&"second".into(), 1));

    let slower = record("pick-slower.json", &[("first", 10.0, 12.0), ("second", 20.0, 30.0)]);
    let compare = |more: &[&str]| bench(&[&["--compare", path, slower.to_str().unwrap()], more].concat());
    assert!(compare(&[]).status.success());
    assert_eq!(compare(&["--arms", "ours,candle"]).status.code(), Some(1));
    assert!(compare(&["--arms", "ours,candle", "--only", "first"]).status.success());

    for (more, expected) in [(["--only", "third"], "contains third"), (["--arms", "own-best"], "the arm own-best")] {
        let output = bench(&[&["--from", path], &more[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains(expected) && said.contains("2 rows; classes: c; arms: candle, ours"), "{said}");
    }
}

#[test]
fn options_that_would_change_nothing_are_refused() {
    let path = record("idle.json", &[("a", 10.0, 12.0)]);
    let path = path.to_str().unwrap();
    let cases: [(&[&str], &str); 9] = [
        (&["--from", path, "--samples", "5"], "'--samples' cannot be used with '--from', which reads a record"),
        (&["--from", path, "--pause", "1"], "'--pause' cannot be used with '--from'"),
        (&["--from", path, "--warm-up", "1s"], "'--warm-up' cannot be used with '--from'"),
        (&["--compare", path, path, "--json", "x"], "'--json' cannot be used with '--compare'"),
        (&["--ladder", "--only", "decode"], "'--only' cannot be used with '--ladder'"),
        (&["--model", "tiny", "--arms", "ours"], "'--arms' cannot be used with '--model'"),
        (&["--model", "tiny-bert", "--decode", "3"], "an encoder decodes nothing"),
        (&["--batch", "3"], "'--batch' needs '--model'"),
        (&["--from", path, "--ladder"], "'--ladder' cannot be used with '--from'"),
    ];
    for (args, expected) in cases {
        let output = bench(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "no '{expected}' in: {}", stderr(&output));
    }
    let elsewhere = [
        ("suite --toml --device h100", "cannot be used with"),
        ("suite --toml --json", "cannot be used with"),
        ("kernels --names --json", "cannot be used with"),
        ("fit --judge x.json --write", "required"),
        ("fit --judge x.json --only gemv", "required"),
        ("fit x.json --out y", "required"),
        ("toolchain --env cutlass", "cannot be used with"),
        ("explain 8 8 8 --f32 tf32", "--f32 is about operands in f32; these are in bf16"),
    ];
    for (line, expected) in elsewhere {
        let output = tilegemm(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{line}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{line}: no '{expected}' in: {}", stderr(&output));
    }
}

#[test]
fn a_record_of_another_schema_is_refused() {
    let path = file("old.json", r#"{"schema":0,"rows":[]}"#);
    let output = bench(&["--from", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("schema 0, this command reads 1"), "{}", stderr(&output));
}
