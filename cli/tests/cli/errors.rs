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
    let output = errors_of_f32(&[]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("no CUDA device") || said.contains("cannot measure"), "{said}");
    assert!(said.contains("--from"), "it says what works without one: {said}");
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
    let output = tilegemm(&["errors", "gguf", "--from", record.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("it has errors of f32, not of gguf"), "{}", stderr(&output));
}

#[test]
fn options_that_would_change_nothing_are_refused() {
    for option in [["--layout", "tn"], ["--samples", "9"], ["--pause", "1"]] {
        let output = tilegemm(&[&["errors", "gguf"], &option[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{option:?}");
        assert!(stderr(&output).contains("are for f32"), "{}", stderr(&output));
    }
}
