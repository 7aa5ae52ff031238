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

/// The data of a plot: all that its selector offers.
fn plots(page: &str, id: &str) -> Vec<Value> {
    let (_, rest) = page.split_once(&format!("id=\"plot-{id}-data\">")).expect(id);
    serde_json::from_str(rest.split("</script>").next().unwrap()).unwrap()
}

/// The labels of a heat map's cells.
fn labels(map: &Value) -> Vec<&str> {
    map["data"][1]["text"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

/// A row of experts, with the kernels that such products have.
fn experts(id: &str, arms: &[(&str, f64)]) -> Value {
    let mut row = row(id, arms);
    row["class"] = json!("experts");
    row["groups"] = json!({ "experts": 128, "top_k": 8, "routing": "uniform", "seed": 1, "scaled": false });
    for (arm, kernel) in [
        ("ours", "sm90_grouped_gemm_bf16_nt_32x128x64_1x1"),
        ("own-best", "sm90_grouped_gemm_bf16_nt_32x128x64_1x1"),
        ("candle", "moe_gemm_wmma"),
        ("cublas-loop", "cublasGemmStridedBatchedEx for each expert"),
    ] {
        if row["arms"].get(arm).is_some() {
            row["arms"][arm]["kernel"] = json!(kernel);
        }
    }
    row
}

/// A row with quantised weights.
fn quantised(format: &str, kernel: &str, us: [f64; 2]) -> Value {
    let mut row = row(&format!("{format}-{kernel}"), &[("ours", us[0]), ("candle", us[1])]);
    (row["dtype"], row["b"]) = (json!("f32"), json!(format));
    row["arms"]["ours"]["kernel"] = json!(kernel);
    row["arms"]["candle"]["kernel"] = json!("launch_mmq_gguf");
    row
}

#[test]
fn stock_is_named_by_what_it_ran() {
    let dense = row("dense", &[("ours", 20.0), ("candle", 40.0)]);
    let moe = experts("moe", &[("ours", 20.0), ("candle", 40.0), ("cublas-loop", 30.0)]);
    let cases = [
        (vec![dense.clone()], "stock candle (cuBLAS)<"),
        (vec![moe.clone()], "stock candle (its own kernels)<"),
        (vec![quantised("q4k", "k", [1.0, 2.0])], "stock candle (its own kernels)<"),
        (vec![dense, moe], "stock candle (cuBLAS and its own kernels)<"),
    ];
    for (at, (rows, name)) in cases.iter().enumerate() {
        let page = page(&format!("stock-{at}"), &record(rows));
        assert!(page.contains(&format!("speed-up of ours over {name}")), "no '{name}'");
        let of_others = cases.iter().filter(|(_, other)| other != name).any(|(_, other)| page.contains(other));
        assert!(!of_others, "another name than {name}");
    }
}

#[test]
fn the_fastest_arm_of_experts_may_be_cublas_expert_by_expert() {
    let row =
        |id, loop_us| experts(id, &[("ours", 20.0), ("own-best", 20.0), ("candle", 90.0), ("cublas-loop", loop_us)]);
    // Our kernel in a configuration that `own-best` passed over is our kernel all the same.
    let mut ahead = row("d", 25.0);
    ahead["arms"]["own-best"]["us"] = json!(21.0);
    let page = page("loop", &record(&[row("a", 25.0), row("b", 25.0), row("c", 10.0), ahead]));
    assert!(page.contains("<b>75\u{a0}%</b> best own kernel, 3 "), "the winners");
    assert!(page.contains("<b>25\u{a0}%</b> cuBLAS, expert by expert, 1 "), "the winners");
    // (25/20)^(3/4) * (10/20)^(1/4)
    assert_eq!(card(&page, "geomean-cublas-loop"), "0.99\u{d7}");
    assert!(!page.contains("cuBLASLt<"), "an arm that the record does not have");
}

#[test]
fn a_heat_map_is_of_one_format_and_a_cell_names_no_kernel_for_several() {
    let (gemv, gemm) = ("gguf_gemv_sm90_f32_q4k_nt_16x16x4096_1x1", "sm90_gguf_gemm_f32_q6k_nt_64x32x256_1x1");
    let rows = [
        quantised("q4k", gemv, [10.0, 20.0]),
        quantised("q6k", gemm, [10.0, 40.0]),
        quantised("q8_0", gemv, [10.0, 20.0]),
        quantised("q8_0", gemm, [10.0, 20.0]),
    ];
    let page = page("formats", &record(&rows));
    let maps = plots(&page, "heat");
    let expected = [
        "<b>2.00</b><br>gguf_gemv<br>16x16x4096",
        "<b>4.00</b><br>sm90_gguf_<br>gemm<br>64x32x256",
        "<b>2.00</b><br>2 kernels",
    ];
    assert_eq!(maps.iter().map(|map| labels(map)).collect::<Vec<_>>(), expected.map(|label| vec![label]));
    for format in ["f32 x q4k", "f32 x q6k", "f32 x q8_0"] {
        assert!(page.contains(&format!("<span>{format} against candle</span>")), "{format}");
    }
}

#[test]
fn experts_have_a_heat_map() {
    let page = page("experts", &record(&[experts("moe", &[("ours", 20.0), ("candle", 40.0)])]));
    let maps = plots(&page, "heat");
    assert_eq!(labels(&maps[0]), ["<b>2.00</b><br>sm90_grouped_<br>gemm<br>32x128x64"]);
    assert_eq!(maps[0]["data"][0]["x"][0], "N 4096<br>K 4096<br>128 experts");
}

#[test]
fn the_axis_of_speed_ups_holds_every_bar_and_every_worst_row() {
    let rows = [("a", 79.0), ("b", 79.0)].map(|(id, candle)| row(id, &[("ours", 10.0), ("candle", candle)]));
    let mut slow = row("slow", &[("ours", 10.0), ("candle", 4.0)]);
    slow["class"] = json!("slow");
    let page = page("axis", &record(&[&rows[..], &[slow]].concat()));
    let plot = &plots(&page, "classes-candle")[0];
    let axis = &plot["layout"]["xaxis"];
    let [low, high] = [0, 1].map(|end| axis["range"][end].as_f64().unwrap());
    assert_eq!(axis["type"], "log");
    for trace in plot["data"].as_array().unwrap() {
        let base = trace["base"].as_f64().unwrap_or(0.0);
        for x in trace["x"].as_array().unwrap() {
            let end = (base + x.as_f64().unwrap()).log10();
            assert!((low..high).contains(&end), "{end} is not in {low}..{high}: {trace}");
        }
    }
    let ours = plot["data"].as_array().unwrap().iter().find(|trace| trace["name"] == "ours").unwrap();
    assert!((ours["x"][0].as_f64().unwrap() + 1.0 - 7.9).abs() < 1e-9 && ours["text"][0] == "7.90", "{ours}");
    let ticks: Vec<f64> = axis["tickvals"].as_array().unwrap().iter().map(|tick| tick.as_f64().unwrap()).collect();
    assert!(ticks.len() > 3 && ticks.iter().all(|tick| (low..high).contains(&tick.log10())), "{ticks:?}");
}

#[test]
fn each_number_says_whether_more_is_better() {
    let page = page("sense", &record(&[row("first", &[("ours", 20.0), ("candle", 40.0)])]));
    let below = |id: &str| {
        let (_, rest) = page.split_once(&format!("<b id=\"{id}\">")).expect(id);
        rest.split("</small>").next().unwrap().to_string()
    };
    assert!(below("geomean-candle").contains("more is better"));
    assert!(below("geomean-roof").contains("less is better"));
    let (_, table) = page.split_once("<h2>All rows</h2>").unwrap();
    let (legend, _) = table.split_once("<table").unwrap();
    for words in ["<b>vs</b>: speed of ours over the arm, more is better", "<b>over roof</b>", "less is better"] {
        assert!(legend.contains(words), "no '{words}' in {legend}");
    }
    let from = folder("sense").join("record.json");
    let output = Command::new(env!("CARGO_BIN_EXE_tilegemm")).args(["bench", "--from"]).arg(from).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("more is better") && text.contains("less is better"), "{text}");
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
