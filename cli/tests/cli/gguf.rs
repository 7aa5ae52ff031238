//! Rows of suites with quantised weights, the class `gguf`, and `tilegemm errors gguf`, without a GPU.

use crate::support::{drawn, file, lines_of, stderr, stdout, tilegemm};
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::internal::suite::{self, Shape, Size};
use candle_tilegemm::internal::trace::class_of;
use candle_tilegemm::kernel::Fusion;
use candle_tilegemm::problem::Epilogue;
use candle_tilegemm::{Activation, Format, Layout, Problem};
use serde_json::{json, Value};
use std::collections::HashSet;
use tilegemm::lists::{experts, gguf};

/// One row; ten lines.
const ROW: &str = r#"[[shape]]
id = "x"
class = "c"
m = 3
n = 24
k = 512
layout = "nt"
dtype = "f32"
b = "q4k"
out = "bf16"
"#;

fn parse(text: &str) -> Vec<Shape> {
    suite::parse("suite.toml", text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn a_row_has_the_blocks_of_b() {
    let row = parse(ROW).remove(0);
    let expected = Problem::dense(3, 24, 512, 1, Layout::NT, Format::F32)
        .with(|p| (p.b.format, p.d.format) = (Format::Q4K, Format::BF16));
    assert_eq!(row.problem(), expected);
    assert_eq!(parse(&suite::to_toml(std::slice::from_ref(&row))), std::slice::from_ref(&row));
    // A trace writes such rows.
    assert_eq!(Shape::of(&expected, row.id.clone(), row.class.clone()), Some(row));
    assert_eq!(class_of(&expected), gguf::CLASS);
    for format in Format::blocks() {
        let row = parse(&ROW.replace("q4k", format.name())).remove(0);
        assert_eq!((row.b, row.problem().b.format), (Some(format), format));
    }
}

#[test]
fn what_is_wrong_with_blocks_is_said_with_its_line_and_its_field() {
    let with = |old: &str, new: &str| ROW.replace(old, new);
    let and = |more: &str| format!("{ROW}{more}\n");
    let cases = [
        (with("q4k", "q9"), ["line 9", "'q9'", "expected q4_0, q4_1,"]),
        (with("q4k", "bf16"), ["line 9", "'bf16'", "expected q4_0, q4_1,"]),
        (with("k = 512", "k = 480"), ["line 9", "field b", "a block of q4k has 256 numbers"]),
        (with("\"nt\"", "\"nn\""), ["line 9", "field b", "expected layout = \"nt\""]),
        (and("b_stride = 1024"), ["line 9", "field b", "no strides"]),
        (and("f32 = \"tf32\""), ["line 11", "field f32", "the product is in bf16"]),
    ];
    for (text, expected) in cases {
        let said = suite::parse("suite.toml", &text).expect_err(&text).to_string();
        for part in expected {
            assert!(said.contains(part), "'{part}' is missing in: {said}\n{text}");
        }
    }
    assert_eq!(parse(&with("q4k", "q8_0").replace("k = 512", "k = 480"))[0].k.get(), 480);
}

#[test]
fn the_class_has_each_product_of_each_model() {
    let rows = gguf::products();
    // Llama's q and output of attention have the same shape. The head has up to 8 rows.
    assert_eq!(rows.len(), 4 * ((4 + 5) * 12 + 2 * 4));
    let ids: HashSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids.len(), rows.len());
    assert_eq!(parse(&suite::to_toml(&rows)), rows);
    let row = |id: &str| rows.iter().find(|row| row.id == id).unwrap_or_else(|| panic!("no {id} in {ids:?}"));
    let sizes = |id: &str| [row(id).m, row(id).n, row(id).k].map(Size::get);
    assert_eq!(sizes("llama3-8b-ffn_gate-q4k-m4096"), [4096, 14336, 4096]);
    assert_eq!(sizes("llama3-8b-ffn_down-q6k-m1"), [1, 4096, 14336]);
    assert_eq!(sizes("qwen3-4b-attn_k-q8_0-m16"), [16, 1024, 2560]);
    assert_eq!(sizes("qwen3-4b-output-q4_0-m8"), [8, 151_936, 2560]);
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    for row in &rows {
        let problem = row.problem();
        let plan = dispatcher.plan(&problem, Policy::default()).unwrap_or_else(|error| panic!("{}: {error}", row.id));
        let on_copies = plan.packing.is_some_and(|packing| packing.b);
        assert!(plan.kernel.family.contains("gguf") || on_copies, "{}: {}", row.id, plan.name());
        assert_eq!((problem.a.format, problem.d.format), (Format::F32, Format::F32));
        assert_eq!((problem.layout(), row.class.as_str()), (Layout::NT, gguf::CLASS));
    }
}

#[test]
fn gates_of_c_are_fused_with_few_rows_and_a_kernel_of_their_own_elsewhere() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    let gated = |m, b| {
        Problem::dense(m, 14336, 4096, 1, Layout::NT, Format::F32).with(|p| {
            p.b.format = b;
            p.epilogue = Epilogue::new(1.0, 1.0);
            (p.epilogue.activation, p.epilogue.gates_c, p.epilogue.c) = (Activation::Silu, true, Some(p.d));
        })
    };
    for (m, b, fused) in [
        (1, Format::Q4K, true),
        (8, Format::Q8_0, true),
        (512, Format::Q4K, false),
        (1, Format::F32, false),
        (512, Format::F32, false),
    ] {
        let problem = gated(m, b);
        let fusion = dispatcher.fuse(&problem, Policy::default()).unwrap();
        assert_eq!(fusion == Fusion::Full, fused, "{problem}: {fusion:?}");
        let (kept, kernels) = problem.epilogue.keep(fusion);
        assert_eq!((kept.gates_c, kernels), (fused, usize::from(!fused)), "{problem}");
        let rest = problem.epilogue.rest(fusion);
        assert_eq!(rest.is_some_and(|rest| rest.gates_c && rest.reads_c()), !fused, "{problem}");
        dispatcher.plan(&problem.with(|p| p.epilogue = kept), Policy::default()).unwrap();
        assert!(problem.to_string().ends_with(" Silu * 1 C"), "{problem}");
        // A row of a suite has no gates.
        assert_eq!(Shape::of(&problem, "x".into(), "c".into()), None);
    }
    // Without a C, nothing is gated.
    let none = gated(1, Format::Q4K).with(|p| p.epilogue = Epilogue::default()).with(|p| p.epilogue.gates_c = true);
    assert!(!none.canonical().problem.epilogue.gates_c);
}

#[test]
fn the_command_takes_the_class() {
    let output = tilegemm(&["suite", "--class", "gguf", "--only", "attn_k-q4k"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let table = stdout(&output);
    assert_eq!(table.lines().count(), 24 + 2, "{table}");
    assert!(table.contains("1x1024x4096 nt f32 x q4k -> f32"), "{table}");
    let output = tilegemm(&["suite", "--class", "gguf", "--toml"]);
    assert_eq!(parse(&stdout(&output)), gguf::products());
    let output = tilegemm(&["suite", "--class", "gguf,experts"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("or is `gguf` or `gguf-experts` alone"), "{}", stderr(&output));
}

/// The products of experts with quantised weights run on the kernels for groups of blocks.
#[test]
fn experts_with_blocks_have_a_class() {
    let rows = experts::gguf_products();
    let ids: HashSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    // Two models in two formats, two products, six numbers of tokens, two kinds of routing.
    assert_eq!((rows.len(), ids.len()), (96, 96));
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    for row in &rows {
        let problem = row.problem();
        let plan = dispatcher.plan(&problem, Policy::default()).unwrap_or_else(|error| panic!("{}: {error}", row.id));
        assert!(plan.kernel.family.contains("gguf_grouped"), "{}: {}", row.id, plan.name());
        assert_eq!((problem.a.format, problem.d.format), (Format::F32, Format::F32));
    }
    let output = tilegemm(&["suite", "--class", "gguf-experts", "--toml"]);
    assert_eq!(parse(&stdout(&output)), rows);
}

/// A record with a row of quantised weights and one of f32.
fn record() -> Value {
    let arm = |us: f64, kernel: &str| json!({ "us": us, "us_p10": us, "us_p90": us, "kernel": kernel, "err": 0.01 });
    json!({
        "schema": 1,
        "machine": {
            "gpu": "NVIDIA H100 80GB HBM3", "sms": 132, "driver": "580.1", "cuda": "13.0", "cublas": "13.1", "git": "abc",
            "date": "2026-11-26", "clocks_mhz": { "sm": 1980, "memory": 2619 }, "power_w": 700.0,
        },
        "settings": { "mode": "cold", "samples": 9, "pause": 2.0, "seconds": 60.0, "classes": ["gguf"] },
        "ceilings": { "hbm_gbps": 3000.0, "tflops": { "bf16": 790.0 } },
        "rows": [{
            "id": "llama3-8b-ffn_gate-q4k-m16", "class": "gguf", "m": 16, "n": 14336, "k": 4096, "batch": 1,
            "layout": "nt", "dtype": "f32", "b": "q4k", "roof_us": 11.4,
            "arms": {
                "ours": arm(22.0, "gguf_gemv"), "own-best": arm(20.0, "sm90_gguf_gemm"),
                // Too fast to be true: neither is a choice of a dispatcher.
                "candle": arm(11.0, "launch_mmq_gguf_q4_k"), "bf16": arm(10.0, "sm90_few_rows"),
            },
            "flags": [],
        }, {
            "id": "plain", "class": "f32", "m": 16, "n": 64, "k": 64, "batch": 1, "layout": "nt", "dtype": "f32",
            "roof_us": 1.0, "arms": { "ours": arm(2.0, "k"), "candle": arm(3.0, "c") }, "flags": [],
        }],
        "left_out": {},
    })
}

#[test]
fn a_record_keeps_the_blocks() {
    let [said, page] = drawn("gguf.json", &record());
    // Stock is candle's kernel, and the regret is over our own kernels: 22 over 20.
    let [summary, regret] = lines_of(&said, "gguf")[..] else { panic!("{said}") };
    assert!(summary.contains(" 0.500 |") && regret.contains(" 10.0 % |") && regret.contains("0.50 llama3"), "{said}");
    for words in ["f32 x q4k", "<span>f32 x q4k against candle</span>", "dense product in bf16"] {
        assert!(page.contains(words), "no '{words}' on the page");
    }
    let mut wrong = record();
    wrong["rows"][0]["b"] = json!("q9");
    let path = file("gguf-wrong.json", &wrong.to_string());
    let output = tilegemm(&["bench", "--from", path.to_str().unwrap()]);
    assert!(stderr(&output).contains("q9"), "{}", stderr(&output));
}

/// A fit estimates the product of the row with the row's kernel; kernels of other products do not count.
#[test]
fn a_fit_takes_rows_with_blocks() {
    let shape = gguf::products().into_iter().find(|shape| shape.id == "llama3-8b-ffn_gate-q4k-m16").unwrap();
    let plan = Dispatcher::hypothetical(DeviceInfo::h100()).plan(&shape.problem(), Policy::own()).unwrap();
    let mut record = record();
    record["rows"].as_array_mut().unwrap().truncate(1);
    record["rows"][0]["arms"]["ours"]["kernel"] = json!(plan.kernel.name);
    let dense = Problem::dense(16, 14336, 4096, 1, Layout::NT, Format::BF16).with(|p| p.d.format = Format::F32);
    let dense = Dispatcher::hypothetical(DeviceInfo::h100()).plan(&dense, Policy::own()).unwrap();
    record["rows"][0]["arms"]["bf16"]["kernel"] = json!(dense.kernel.name);
    let (from, csv) = (file("gguf-fit.json", &record.to_string()), file("gguf-fit.csv", ""));
    let [from, to] = [&from, &csv].map(|path| path.to_str().unwrap());
    let output = tilegemm(&["fit", "--judge", from, "--measurements", to]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(&csv).unwrap();
    let rows: Vec<&str> = text.lines().skip(1).collect();
    assert!(rows.len() == 1 && rows[0].contains(plan.kernel.name), "one arm is a kernel of the product: {text}");
}

#[test]
fn the_tables_of_a_record_go_into_a_document() {
    let arm = |rms: f64| json!({ "max": 2.0 * rms, "rms": rms, "kernel": "k" });
    let errors = json!([{ "b": "q4k", "layout": "nt", "m": 8, "n": 256, "k": 4096, "data": "N(0, 1)", "arms": { "candle": arm(2e-4), "ours": arm(5e-5) } }]);
    let record =
        json!({ "schema": 2, "of": "gguf", "version": "0.1.0", "machine": record()["machine"], "errors": errors });
    let path = file("gguf-errors.json", &record.to_string());
    let document = file("gguf.md", "text\n<!-- tilegemm errors gguf -->\nold\n<!-- end of tilegemm errors gguf -->\n");
    let [from, to] = [&path, &document].map(|path| path.to_str().unwrap());
    let output = tilegemm(&["errors", "gguf", "--from", from, "--update", to]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(&document).unwrap();
    assert!(
        text.contains("| q4k | N(0, 1) | 4.0e-4/2.0e-4 | 1.0e-4/5.0e-5 | - | - |") && !text.contains("\nold\n"),
        "{text}"
    );
    let output = tilegemm(&["errors", "gguf", "--from", from, "--json", "x.json"]);
    assert!(stderr(&output).contains("cannot be used with"), "{}", stderr(&output));
    let help = stdout(&tilegemm(&["errors", "--help"])).split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["--json", "--from", "--update", "sum |a| |b|", "f64", "interpose-kernels", "Ctrl-C"] {
        assert!(help.contains(words), "no '{words}' in\n{help}");
    }
}
