//! The quantized example, as its users run it on the CPU. In a build with `cuda` the example needs a GPU.
#![cfg(not(feature = "cuda"))]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn quantized(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quantized")).args(["--runs", "1", "--decode", "4"]).args(args).output().unwrap()
}

/// The JSON that the example prints.
fn json(args: &[&str]) -> Value {
    let output = quantized(&[&["--json", "--prompt", "12"], args].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("--json prints JSON and nothing else on stdout")
}

fn error(args: &[&str]) -> String {
    let output = quantized(args);
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A new, empty folder.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quantized").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn a_file_that_was_written_is_read_again() {
    let dir = scratch("written");
    let [model, logits] = ["model.gguf", "logits.safetensors"].map(|name| dir.join(name).display().to_string());
    let several = ["--gguf", &model, "--sequences", "3"];
    json(&[&several[..], &["--write", "--save-logits", &logits]].concat());
    let again = json(&[&several[..], &["--compare", &logits]].concat());
    let to_file = &again["arms"][0]["to_file"];
    assert_eq!((&to_file["max_abs"], &to_file["steps"]), (&0.0.into(), &5.into()), "{again}");
    assert!(to_file["max_stock"].as_f64().unwrap() > 0.1, "{again}");
    // Logits of other tokens are no reference.
    let other = error(&["--gguf", &model, "--prompt", "11", "--compare", &logits]);
    assert!(other.contains("this run is of"), "{other}");
}

#[test]
fn the_blocks_of_a_file_are_seeded() {
    let dir = scratch("seeded");
    let model = dir.join("model.gguf").display().to_string();
    json(&["--gguf", &model, "--write"]);
    let bytes = std::fs::read(&model).unwrap();
    json(&["--gguf", &model, "--write"]);
    assert_eq!(bytes, std::fs::read(&model).unwrap(), "blocks are seeded");
}

#[test]
fn what_cannot_be_read_is_named() {
    let dir = scratch("errors");
    let path = dir.join("model.gguf");
    let model = path.display().to_string();
    assert!(error(&["--gguf", &model]).contains(&model));
    std::fs::write(&path, b"GGUF and nothing else").unwrap();
    assert!(error(&["--gguf", &model]).contains(&model));
    assert!(error(&["--write"]).contains("--gguf"));
    assert!(error(&["--prompt", "4096"]).contains("takes 4096"));
}
