//! The moe example, as its users run it on the CPU. In a build with `cuda` the example needs a GPU; scripts/start_without_gpu.sh holds its error.
#![cfg(not(feature = "cuda"))]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn moe(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_moe")).args(["--runs", "1"]).args(args).output().unwrap()
}

/// The JSON that the example prints.
fn json(args: &[&str]) -> Value {
    let output = moe(&[&["--json"], args].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("--json prints JSON and nothing else on stdout")
}

/// A file in a new, empty folder.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("moe").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir.join("logits.safetensors")
}

#[test]
fn logits_of_a_file_are_a_reference_of_the_same_model_alone() {
    let file = scratch("reference");
    let file = file.to_str().unwrap();
    let tokens = ["--prompt", "24", "--decode", "8"];
    let saved = json(&[&tokens[..], &["--save-logits", file]].concat());
    assert_eq!(
        (&saved["dtype"], &saved["device"], &saved["feature"]),
        (&"f32".into(), &"CPU".into(), &"candle".into())
    );
    assert_eq!(saved["arms"].as_array().unwrap().len(), 1);
    let times = &saved["arms"][0]["times"];
    assert!(times["prefill_tokens_per_s"].as_f64().unwrap() > 0.0);
    assert!(times["decode_tokens_per_s"].as_f64().unwrap() > 0.0);

    let distance =
        |args: &[&str]| json(&[&tokens[..], args, &["--compare", file]].concat())["arms"][0]["to_file"].clone();
    let same = distance(&[]);
    assert_eq!((same["relative"].as_f64(), same["same_token"].as_u64()), (Some(0.0), Some(9)));
    // The weights are numbers of bf16 in both types, so that only the rounding of activations differs.
    let rounded = distance(&["--dtype", "bf16"]);
    let median = rounded["relative_median"].as_f64().unwrap();
    assert!(median > 1e-4 && median < 0.05, "{rounded}");

    for (args, expected) in [
        (["--prompt", "25", "--decode", "7"], "24 + 8 tokens; this run is of"),
        (["--prompt", "24", "--layers", "1"], "2 layers"),
    ] {
        let output = moe(&[&args[..], &["--compare", file]].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && message.contains(expected), "{message}");
    }
}

#[test]
fn the_model_on_our_layer_has_the_logits_of_the_unmodified_model() {
    let file = scratch("fused");
    let file = file.to_str().unwrap();
    json(&["--prompt", "24", "--decode", "8", "--save-logits", file]);
    let ours = json(&["--model", "fused", "--prompt", "24", "--decode", "8", "--compare", file]);
    let arm = &ours["arms"][0];
    assert_eq!(arm["name"], "FusedMoe");
    assert!(arm["to_file"]["relative"].as_f64().unwrap() < 1e-5 && arm["to_file"]["same_token"] == 9, "{arm}");
}

#[test]
fn prints_the_arms_and_the_feature() {
    let output = moe(&["--prompt", "8", "--decode", "2"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["qwen3_moe tiny, 2 layers", "built with the feature candle", "| stock ", "prefill tokens/s"] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

#[test]
fn the_layer_does_what_a_loop_over_experts_does() {
    for row in json(&["--model", "mixtral", "--prompt", "40"]).as_array().unwrap() {
        assert!(row["relative"].as_f64().unwrap() < 1e-5, "{row}");
        assert!(row["loop_us"].as_f64().unwrap() > 0.0 && row["layer_us"].as_f64().unwrap() > 0.0);
    }
    // 16-bit sums round at other places in the loop.
    let row = &json(&["--model", "mixtral", "--prompt", "40", "--dtype", "bf16"])[0];
    assert!(row["relative"].as_f64().unwrap() < 0.02, "{row}");
}
