//! The embed example, as its users run it.

#[path = "../embed/notice.rs"]
mod notice;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The example on the CPU.
fn embed(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_embed"));
    command.args(["--device", "cpu", "--runs", "1"]).args(args).env("TILEGEMM_MODEL_DIR", model_dir());
    command
}

fn model_dir() -> PathBuf {
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../third_party/dist/model/all-MiniLM-L6-v2");
    let own = std::env::var_os("TILEGEMM_MODEL_DIR").filter(|dir| !dir.is_empty());
    let dir = own.map_or(fetched, PathBuf::from);
    assert!(dir.is_dir(), "there is no model in {}; run `third_party/fetch.sh model`", dir.display());
    dir
}

/// A new, empty folder.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("embed").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The JSON that it prints for a text.
fn json(text: Option<&[u8]>, args: &[&str]) -> Value {
    let output = run(text, &[&["--json"], args].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("--json prints JSON and nothing else on stdout")
}

/// Runs it, with a text on stdin.
fn run(text: Option<&[u8]>, args: &[&str]) -> Output {
    let mut command = embed(args);
    let Some(text) = text else { return command.output().unwrap() };
    let pipes = command.args(["--sentences", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text).unwrap();
    child.wait_with_output().unwrap()
}

/// Runs it and expects exit code 1, nothing on stdout, and all of `expected` in the message.
fn fails(mut command: Command, expected: &[&str]) {
    let output = command.output().unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(output.stdout.is_empty());
    for part in expected {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
}

fn embeddings(report: &Value) -> Vec<Vec<f64>> {
    serde_json::from_value(report["embeddings"].clone()).unwrap()
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

#[test]
fn agrees_with_stock_on_the_built_in_sentences() {
    let report = json(None, &[]);
    assert!(report["max_abs_diff"].as_f64().unwrap() <= 1e-5, "{}", report["max_abs_diff"]);
    assert_eq!(report["device"], "CPU");
    for ms in ["stock_ms", "ours_ms"] {
        assert!(report[ms].as_f64().unwrap() > 0.0);
    }
    let embeddings = embeddings(&report);
    assert_eq!(embeddings.len(), 8);
    for (index, embedding) in embeddings.iter().enumerate() {
        assert_eq!(embedding.len(), 384);
        assert!((dot(embedding, embedding) - 1.0).abs() < 1e-5);
        let others = (0..embeddings.len()).filter(|other| *other != index);
        let cosine = |other: &usize| dot(embedding, &embeddings[*other]);
        let nearest = others.max_by(|x, y| cosine(x).total_cmp(&cosine(y)));
        assert_eq!(nearest, Some(index ^ 1), "the built-in sentences come in pairs");
    }
}

#[test]
fn counts_the_products_of_one_pass() {
    let report = json(None, &[]);
    let gemms = report["gemms"].as_array().unwrap();
    let calls = gemms.iter().map(|gemm| gemm["calls"].as_u64().unwrap());
    assert_eq!(calls.sum::<u64>(), 36, "6 layers with qkv, scores, context, output and two of the feed-forward");
    for gemm in gemms {
        for size in ["m", "n", "k", "batch"] {
            assert!(gemm[size].as_u64().unwrap() > 0);
        }
        assert_eq!(gemm["dtype"], "f32");
        assert_eq!(gemm["kernel"], "candle_cpu");
        assert!(gemm["layout"].is_string());
    }
}

#[test]
fn runs_in_half_precision() {
    for (dtype, tolerance) in [("f16", 2e-3), ("bf16", 2e-2)] {
        let report = json(None, &["--dtype", dtype]);
        assert!(report["max_abs_diff"].as_f64().unwrap() <= tolerance, "{dtype}: {}", report["max_abs_diff"]);
        assert!(report["gemms"].as_array().unwrap().iter().all(|gemm| gemm["dtype"] == dtype));
    }
}

#[test]
fn padding_does_not_change_an_embedding() {
    let text = b"Short.\n\n  A sentence of a few more words than that.  \r\nYet another one, which is the longest of these three.";
    let padded = embeddings(&json(Some(text), &[]));
    let alone = embeddings(&json(Some(text), &["--batch-size", "1"]));
    assert_eq!((padded.len(), alone.len()), (3, 3), "blank lines are no sentences");
    for (padded, alone) in padded.iter().zip(&alone) {
        assert!(padded.iter().zip(alone).all(|(x, y)| (x - y).abs() < 1e-5));
    }
}

#[test]
fn prints_tables() {
    let output = run(None, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["on CPU", "#2 (0.", "largest difference to stock", "milliseconds per batch", "candle_cpu"] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

#[test]
fn cuts_a_long_sentence_and_says_so() {
    let text = format!("Fine.\n{}", "word ".repeat(400));
    let output = run(Some(text.as_bytes()), &["--json"]);
    assert!(output.status.success());
    assert!(stderr(&output).contains("sentence 2 is longer than the model's 256 tokens"), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(embeddings(&report).len(), 2);
    assert!(report["max_abs_diff"].as_f64().unwrap() <= 1e-5);
    let cut = embeddings(&json(Some("word ".repeat(254).as_bytes()), &[]));
    assert!(dot(&embeddings(&report)[1], &cut[0]) > 0.99999, "it is cut behind 254 words, [CLS] and [SEP] stay");
}

#[test]
fn refuses_text_without_sentences() {
    let dir = scratch("text");
    for (name, text, expected) in [
        ("empty", &b""[..], "holds no sentences"),
        ("blank", b"\n \t\r\n", "holds no sentences"),
        ("mark", b"\xef\xbb\xbf\n", "holds no sentences"),
        ("latin1", b"A cafe.\nA caf\xe9.\n", "not UTF-8: line 2"),
    ] {
        let file = dir.join(name);
        std::fs::write(&file, text).unwrap();
        fails(embed(&["--sentences", file.to_str().unwrap()]), &[expected, name]);
    }
    let missing = dir.join("missing");
    fails(embed(&["--sentences", missing.to_str().unwrap()]), &["cannot read", "missing"]);
}

#[test]
fn says_how_to_get_the_model() {
    let missing = scratch("model").join("missing");
    let remedy = ["missing", "third_party/fetch.sh model", "TILEGEMM_MODEL_DIR"];
    fails(embed(&["--model", missing.to_str().unwrap()]), &remedy);
    let mut command = embed(&[]);
    command.env("TILEGEMM_MODEL_DIR", &missing);
    fails(command, &remedy);
}

#[test]
fn names_the_damaged_file() {
    let dir = scratch("damaged");
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let copy_of_all = || {
            for name in ["config.json", "tokenizer.json", "model.safetensors"] {
                std::fs::copy(model_dir().join(name), dir.join(name)).unwrap();
            }
        };
        let file = dir.join(name);
        let damages: [fn(&Path); 4] = [
            |file| std::fs::remove_file(file).unwrap(),
            |file| std::fs::write(file, "").unwrap(),
            |file| std::fs::write(file, [b'?'; 100]).unwrap(),
            |file| {
                let bytes = std::fs::read(file).unwrap();
                std::fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
            },
        ];
        for damage in damages {
            copy_of_all();
            damage(&file);
            fails(embed(&["--model", dir.to_str().unwrap()]), &[name, "third_party/fetch.sh model"]);
        }
    }
    // A whole file, without one of the tensors.
    let file = dir.join("model.safetensors");
    let bytes = std::fs::read(model_dir().join("model.safetensors")).unwrap();
    let tensor = b"encoder.layer.3.output.dense.weight";
    let at = bytes.windows(tensor.len()).position(|window| window == tensor).unwrap();
    let renamed = [&bytes[..at], &b"E"[..], &bytes[at + 1..]].concat();
    std::fs::write(&file, renamed).unwrap();
    fails(embed(&["--model", dir.to_str().unwrap()]), &["model.safetensors", "encoder.layer.3.output.dense.weight"]);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn refuses_unknown_options() {
    let output = run(None, &["--dtype", "f8"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("f32, f16, bf16"), "{}", stderr(&output));
    assert_eq!(run(None, &["--batch-size", "0"]).status.code(), Some(2));
}

/// With the backtrace of a program that runs with RUST_BACKTRACE=1.
#[test]
fn a_notice_is_one_line() {
    let inner = Box::new(candle::Error::Msg("no device".into()).bt());
    let backtrace = Box::new(std::backtrace::Backtrace::force_capture());
    let error = candle::Error::WithBacktrace { inner, backtrace };
    assert!(error.to_string().lines().count() > 1, "{error}");
    assert_eq!(notice::text(&error), "no device");
}
