//! The page of `tilegemm bench --html`: that a record cannot inject anything, that wrong rows do not count, and that nothing
//! is loaded from elsewhere. What a browser makes of it is checked by scripts/check_report.sh.

use serde_json::{json, Value};
use std::path::PathBuf;
use std::process::Command;

const MARKUP: &str = r#"</script><script>alert(1)</script><img src="http://a.b/c"> {{js}} '"&"#;

/// A folder of its own for each test.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("report").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The page of a record.
fn page(name: &str, record: &Value) -> String {
    let (from, html) = (folder(name).join("record.json"), folder(name).join("page.html"));
    std::fs::write(&from, record.to_string()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tilegemm"))
        .args(["bench", "--from"])
        .arg(&from)
        .arg("--html")
        .arg(&html)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(html).unwrap()
}

fn record(rows: &[Value]) -> Value {
    json!({
        "schema": 1,
        "machine": {
            "gpu": "NVIDIA H100", "sms": 132, "driver": "580.1", "cuda": "13.0", "cublas": "13.1", "git": "abc", "date": "2026-11-21",
            "clocks_mhz": { "sm": 1980, "memory": 2619 }, "power_w": 700.0,
        },
        "settings": { "mode": "cold", "samples": 31, "pause": 2.0, "seconds": 60.0 },
        "ceilings": { "hbm_gbps": 3000.0, "tflops": { "bf16": 790.0 } },
        "rows": rows,
        "left_out": {},
    })
}

/// A row with these arms: (name, microseconds).
fn row(id: &str, arms: &[(&str, f64)]) -> Value {
    let arm = |us: f64| json!({ "us": us, "us_p10": us, "us_p90": us, "kernel": "tile_gemm_sm90_bf16_nt_64x64x64_1x1", "err": 0.01 });
    let arms: serde_json::Map<_, _> = arms.iter().map(|(name, us)| (name.to_string(), arm(*us))).collect();
    json!({
        "id": id, "class": "decode", "m": 16, "n": 4096, "k": 4096, "batch": 1, "layout": "nt", "dtype": "bf16", "roof_us": 11.3,
        "arms": arms, "flags": [],
    })
}

/// The page without the script of Plotly, which is not ours to judge.
fn without_plotly(page: &str) -> String {
    let start = page.find("plotly.js v").expect("Plotly is embedded");
    let end = start + page[start..].find("</script>").unwrap();
    [&page[..start], &page[end..]].concat()
}

/// What a card at the top of the page says.
fn card<'a>(page: &'a str, id: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("<b id=\"{id}\">")).expect(id);
    rest.split('<').next().unwrap()
}

/// Stock adds partial sums of unaligned 16-bit operands in 16 bits: that is told, and the row counts.
#[test]
fn an_inexact_arm_is_told_with_its_error_and_counts() {
    let mut inexact = row("odd", &[("ours", 20.0), ("candle", 40.0)]);
    inexact["flags"] = json!(["inexact candle"]);
    inexact["arms"]["candle"]["err"] = json!(0.31);
    let record = record(&[inexact]);
    let page = page("inexact", &record);
    assert!(page.contains("<span class=\"badge\">inexact candle</span>") && !page.contains("has a wrong result"));
    let from = folder("inexact").join("record.json");
    let output = Command::new(env!("CARGO_BIN_EXE_tilegemm")).args(["bench", "--from"]).arg(from).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        text.contains("INEXACT: candle in odd: error 3.10e-1 of the result's mean") && text.contains("2.000"),
        "{text}"
    );
}

#[test]
fn geomeans_leave_out_wrong_rows_and_missing_arms() {
    let mut wrong = row("third", &[("ours", 1.0), ("candle", 1000.0), ("cublaslt", 1000.0)]);
    wrong["flags"] = json!(["spread candle", "wrong ours"]);
    wrong["arms"]["ours"]["err"] = json!(1e300);
    let mut partial = row("second", &[("ours", 20.0), ("candle", 25.0)]);
    partial["absent"] = json!({ "cublaslt": "no algorithm" });
    let page = page(
        "wrong",
        &record(&[row("first", &[("ours", 20.0), ("candle", 40.0), ("cublaslt", 30.0)]), partial, wrong]),
    );
    // sqrt(2.0 * 1.25); only the first row has cuBLASLt; sqrt((20 / 11.3) ^ 2)
    assert_eq!(card(&page, "geomean-candle"), "1.58\u{d7}");
    assert_eq!(card(&page, "geomean-cublaslt"), "1.50\u{d7}");
    assert_eq!(card(&page, "geomean-roof"), "1.77\u{d7}");
    assert_eq!(card(&page, "worst-row"), "1.25\u{d7}");
    // The row is shown, marked, and in no plot.
    assert_eq!(page.matches("<tr class=\"wrong\">").count(), 1);
    assert!(page.contains("1 row has a wrong result"));
    assert!(page.contains("not a number"));
    assert!(!page.contains("<b>third</b>") && page.contains("\\u003cb>first\\u003c/b>"));
    assert!(!page.contains("\\u003cb>third\\u003c/b>"));
    assert!(page.contains("title=\"no algorithm\""));
}

#[test]
fn a_record_cannot_inject_markup() {
    let rows = |text: &str| {
        let mut row = row(text, &[("ours", 20.0), ("candle", 25.0), ("cublaslt", 22.0), (text, 21.0)]);
        row["class"] = json!(text);
        row["arms"]["ours"]["kernel"] = json!(text);
        row["flags"] = json!([text, format!("wrong {text}")]);
        row["absent"] = json!({ "own-best": text });
        let mut sound = row.clone();
        sound["flags"] = json!([text]);
        let mut record = record(&[row, sound]);
        for fact in ["gpu", "driver", "cuda", "cublas", "git", "date"] {
            record["machine"][fact] = json!(text);
        }
        record["settings"]["mode"] = json!(text);
        record["left_out"] = json!({ text: text });
        record
    };
    let (plain, marked) = (page("plain", &rows("plain")), page("marked", &rows(MARKUP)));
    let (plain, marked) = (without_plotly(&plain), without_plotly(&marked));
    for tag in ["<script", "</script", "<img", "<a ", "\"use strict\""] {
        assert_eq!(plain.matches(tag).count(), marked.matches(tag).count(), "{tag}");
    }
    assert!(marked.contains("&lt;script&gt;alert(1)"), "the text itself is still shown");
}

#[test]
fn the_page_needs_nothing_else() {
    let page = page("alone", &record(&[row("first", &[("ours", 20.0), ("candle", 40.0), ("cublaslt", 30.0)])]));
    assert_eq!(page.matches("* plotly.js v").count(), 1);
    assert!(!page.contains("MathJax ="), "formulas are not set, and their script is larger than the page");
    let own = without_plotly(&page);
    for load in ["src=", "href=", "url(", "@import", "http://", "https://", "fetch("] {
        assert!(!own.contains(load), "{load}");
    }
    assert!(own.contains("default-src 'none'"));
}

#[test]
fn partial_records_have_pages() {
    let mut bare = row("bare", &[("ours", 20.0)]);
    bare["roof_us"] = json!(0.0);
    bare["arms"]["ours"].as_object_mut().unwrap().remove("err");
    let mut record = record(&[bare]);
    record["ceilings"] = json!({ "hbm_gbps": 0.0, "tflops": {} });
    record["settings"]["mode"] = json!("eager");
    let one = page("bare", &record);
    assert_eq!(card(&one, "geomean-candle"), "\u{2013}");
    assert_eq!(card(&one, "geomean-roof"), "\u{2013}");
    record["rows"] = json!([]);
    let none = without_plotly(&page("empty", &record));
    assert!(none.contains("no rows for this plot") && !none.contains("NaN"), "an empty record");
}
