//! `tilegemm errors` without a GPU: help, refusals, and the tables of a record in a document.

use crate::support::{file, stderr, stdout, tilegemm};
use std::path::PathBuf;
use std::process::{Command, Output};

fn errors_of_f32(args: &[&str]) -> Output {
    tilegemm(&[&["errors", "f32"], args].concat())
}

/// A record of one product, with these flags and this schema.
fn record(name: &str, flags: &str, schema: u32) -> PathBuf {
    let arm = r#"{"us":10.0,"us_p10":10.0,"us_p90":10.0,"kernel":"k"}"#;
    let machine = r#"{"gpu":"G","sms":132,"driver":"d","cuda":"c","cublas":"b","git":"g","date":"2026-11-21T00:00:00Z",
        "clocks_mhz":{"sm":1980,"memory":2619},"power_w":700.0}"#;
    let text = format!(
        r#"{{"schema":{schema},"of":"f32","version":"0.1.0","machine":{machine},
        "errors":[{{"b":"f32","layout":"nt","m":512,"n":512,"k":64,"data":"0 ... 1",
        "arms":{{"candle-strict":{{"max":1e-6,"rms":1e-7,"kernel":"c"}}}}}}],"bench":{{"schema":1,"machine":{machine},
        "settings":{{"mode":"cold","samples":31,"pause":2.0,"seconds":1.0}},
        "ceilings":{{"hbm_gbps":3000.0,"tflops":{{"f32":100.0}}}},
        "rows":[{{"id":"square","class":"f32","m":16,"n":64,"k":64,"batch":1,"layout":"nt","dtype":"f32","roof_us":1.0,
        "arms":{{"candle-strict":{arm},"own-accurate":{arm}}},"flags":[{flags}]}}]}}}}"#
    );
    file(name, &text)
}

const PLACE: &str = "text\n<!-- tilegemm errors f32 -->\nold\n<!-- end of tilegemm errors f32 -->\n";

#[test]
fn help_says_what_is_measured() {
    let output = errors_of_f32(&["--help"]);
    assert!(output.status.success());
    let text = stdout(&output).split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["--layout", "--json", "--from", "--update", "sum |a| |b|", "f64", "cuBLAS SGEMM", "Ctrl-C"] {
        assert!(text.contains(words), "no '{words}' in\n{text}");
    }
}

#[test]
fn without_a_gpu_it_says_so_and_exits_2() {
    if Command::new("nvidia-smi").arg("-L").output().is_ok_and(|output| output.status.success()) {
        return; // it would measure there
    }
    for products in ["f32", "gguf", "narrow"] {
        let output = tilegemm(&["errors", products]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{products}: {said}");
        assert!(said.contains("no CUDA device") || said.contains("cannot measure"), "{products}: {said}");
        assert!(said.contains("--from"), "it says what works without one: {said}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_measured() {
    let bare = file("bare.md", "no place for tables\n");
    let bare = bare.to_str().unwrap();
    let cases: [(&[&str], &str); 6] = [
        (&["--layout", "xx"], "possible values: nn, nt, tn, tt"),
        (&["--samples", "1"], "1 is not in 5..=1000"),
        (&["--from", "x.json", "--json", "y.json"], "cannot be used with"),
        (&["--from", "no-such.json"], "cannot read no-such.json"),
        (&["--update", "no-such.md"], "cannot read no-such.md"),
        (
            &["--update", bare],
            "has no line '<!-- tilegemm errors f32 -->' with '<!-- end of tilegemm errors f32 -->' after it",
        ),
    ];
    for (args, expected) in cases {
        let output = errors_of_f32(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{args:?}: no '{expected}' in: {}", stderr(&output));
    }
}

#[test]
fn a_record_is_printed_and_put_into_a_document() {
    let (record, document) = (record("sound.json", "", 2), file("sound.md", PLACE));
    let output = errors_of_f32(&["--from", record.to_str().unwrap(), "--update", document.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(document).unwrap();
    for words in ["| 64 | 0 ... 1 | 1.0e-6/1.0e-7 |", "| square | 16 x 64 x 64 nt | 10.0 | - | 10.0 (1.00x) |"] {
        assert!(stdout(&output).contains(words) && text.contains(words), "no '{words}' in\n{text}");
    }
    assert!(
        text.starts_with("text\n<!-- tilegemm errors f32 -->\n\n**Errors, nt** (G, driver d,")
            && !text.contains("\nold\n")
    );
}

#[test]
fn a_wrong_result_is_not_published() {
    let (record, document) = (record("wrong.json", "\"wrong own-accurate\"", 2), file("wrong.md", PLACE));
    let output = errors_of_f32(&["--from", record.to_str().unwrap(), "--update", document.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("a result is wrong; "), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(document).unwrap(), PLACE);
}

#[test]
fn a_record_of_something_else_is_refused() {
    for (record, expected) in [
        (record("old.json", "", 0), "schema 0, this command reads 2"),
        (file("other.json", "{}"), "no record of `tilegemm errors --json`"),
    ] {
        let output = errors_of_f32(&["--from", record.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

#[test]
fn a_record_of_other_products_is_refused() {
    let record = record("f32.json", "", 2);
    for products in ["gguf", "narrow"] {
        let output = tilegemm(&["errors", products, "--from", record.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        let expected = format!("it has errors of f32, not of {products}");
        assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    }
}

/// Records from before there were narrow operands lack their fields; those with them keep them.
#[test]
fn the_tables_of_narrow_products_go_into_a_document() {
    let arm = |max: f64| format!(r#"{{"max":{max:e},"rms":1e-4,"kernel":"k"}}"#);
    let row = |a: &str, formats: &str, arms: &str| {
        format!(
            r#"{{"a":"{a}","b":"{}","formats":"{formats}","layout":"nt","m":8,"n":256,"k":4096,"data":"0 ... 1","arms":{{{arms}}}}}"#,
            if a == "i8" { "i8" } else { "u4" }
        )
    };
    let rows = [
        row("bf16", "bf16 x u4 g128 f16 -> bf16", &format!(r#""bf16":{},"ours":{}"#, arm(2e-3), arm(3e-3))),
        row("i8", "i8 row x i8 row -> bf16", &format!(r#""ours":{}"#, arm(2f64.powi(-14)))),
    ];
    let machine = r#"{"gpu":"G","sms":132,"driver":"d","cuda":"c","cublas":"b","git":"g","date":"2026-11-21T00:00:00Z",
        "clocks_mhz":{"sm":1980,"memory":2619},"power_w":700.0}"#;
    let text = |rows: &[String]| {
        format!(r#"{{"schema":2,"of":"narrow","version":"0.1.0","machine":{machine},"errors":[{}]}}"#, rows.join(","))
    };
    let place = "<!-- tilegemm errors narrow -->\nold\n<!-- end of tilegemm errors narrow -->\n";
    let (path, document) = (file("narrow-errors.json", &text(&rows)), file("narrow-errors.md", place));
    let [from, to] = [&path, &document].map(|path| path.to_str().unwrap());
    let output = tilegemm(&["errors", "narrow", "--from", from, "--update", to]);
    assert!(output.status.success(), "{}", stderr(&output));
    let written = std::fs::read_to_string(&document).unwrap();
    for line in [
        "| bf16 x u4 g128 f16 -> bf16 | 0 ... 1 | 2.0e-3/1.0e-4 | **3.0e-3**/1.0e-4 | - | - |",
        "| i8 row x i8 row -> bf16 | 0 ... 1 | - | 5.0e-1/8.2e-1 | - | - |",
    ] {
        assert!(written.contains(line) && !written.contains("\nold\n"), "no '{line}' in {written}");
    }
    // Without the arm that it is held to, nothing is published.
    let lone = row("bf16", "bf16 x u4 g128 f16 -> bf16", &format!(r#""ours":{}"#, arm(3e-3)));
    let (path, document) = (file("narrow-lone.json", &text(&[lone])), file("narrow-lone.md", place));
    let [from, to] = [&path, &document].map(|path| path.to_str().unwrap());
    let output = tilegemm(&["errors", "narrow", "--from", from, "--update", to]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("an arm has no errors"), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&document).unwrap(), place);
}

#[test]
fn options_that_would_change_nothing_are_refused() {
    for option in [["--layout", "tn"], ["--samples", "9"], ["--pause", "1"]] {
        for products in ["gguf", "narrow"] {
            let output = tilegemm(&[&["errors", products], &option[..]].concat());
            assert_eq!(output.status.code(), Some(2), "{products} {option:?}");
            assert!(stderr(&output).contains("are for f32"), "{}", stderr(&output));
        }
    }
}
