//! `tilegemm bench --decoder` without a GPU: tiny decoders on the CPU, records, and what it says where it cannot measure.

use crate::support::{file, stderr, stdout, tilegemm};
use std::process::Output;

fn bench(args: &[&str]) -> Output {
    tilegemm(&[&["bench"], args].concat())
}

/// A record with one prompt and one step.
fn record(schema: u32) -> String {
    let timed = |ms: f64| format!(r#"{{"ms":{ms},"ms_min":{ms},"ms_max":{ms},"runs":3,"tokens_per_s":{}}}"#, 1e3 / ms);
    format!(
        r#"{{"schema":1,"machine":{{"gpu":"G"}},"decoder":{{"schema":{schema},"gpu":"G","model":"llama3-8b","weights":"random weights in bf16","weights_gb":15.01,
        "limits":{{"hbm_gbps":3120.0,"tflops":800.0}},"starts":{{"ours":{{"load_s":3.0,"first_token_ms":90.0,"prompt":128}}}},
        "prefill":[{{"tokens":2048,"roof_ms":36.0,"arms":{{"ours":{},"stock":{}}}}}],
        "decode":[{{"context":2048,"sequences":1,"roof_ms":4.9,"arms":{{"captured":{},"stock":{},"torch-plain":{}}}}}],"left_out":{{"stock, context 8192, sequences 32":"takes 90.0 GiB"}}}}}}"#,
        timed(50.0),
        timed(250.0),
        timed(5.0),
        timed(20.0),
        timed(8.0)
    )
}

#[test]
fn a_record_shows_its_tables() {
    let path = file("decoder.json", &record(1));
    let output = bench(&["--from", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stdout(&output);
    let line = |words: &[&str]| said.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(line(&["2048", "ours", "50.000", "5.00"]), "{said}");
    assert!(line(&["2048", "captured", "5.000", "200.0", "4.00"]), "{said}");
    assert!(line(&["torch-plain", "8.000", "2.50"]) && line(&["roofline", "4.900"]), "{said}");
    assert!(said.contains("3120 GB/s") && said.contains("takes 90.0 GiB"), "{said}");

    let output = bench(&["--from", path.to_str().unwrap(), "--html", "page.html"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("a record of --decoder"), "{}", stderr(&output));

    let path = file("decoder-old.json", &record(7));
    let output = bench(&["--from", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("schema 7, this command reads 1"), "{}", stderr(&output));
}

#[test]
fn options_of_other_tasks_are_refused() {
    for (args, expected) in [
        (&["--decoder", "tiny", "--batch", "1"][..], "'--batch' cannot be used with '--decoder', which runs a decoder"),
        (&["--context", "7"], "'--context' needs '--decoder'"),
        (&["--decoder", "llama4"], "llama3-8b-q4_k_m"),
        (&["--decoder", "tiny", "--sequences", "65"], "65"),
    ] {
        let output = bench(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "no '{expected}' in: {}", stderr(&output));
    }
}

#[cfg(not(feature = "models"))]
#[test]
fn without_the_feature_it_says_how_to_get_it() {
    let output = bench(&["--decoder", "tiny"]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("--features cuda,sm90,full,bench,models") && said.contains("--from"), "{said}");
}

#[cfg(feature = "models")]
#[test]
fn a_tiny_decoder_runs_on_the_cpu() {
    let path = file("decoder-tiny.json", "");
    let sizes = ["--prefill", "6,9", "--context", "7", "--sequences", "1,2", "--decode", "3", "--runs", "2"];
    let of_blocks = if cfg!(feature = "interpose-kernels") { "our kernels in candle's place" } else { "relative L2" };
    let narrow = "reads no such weights";
    for (model, expected) in [("tiny", "relative L2"), ("Tiny-Q4-K-M", of_blocks), ("tiny-gpt-oss", narrow)] {
        let output = bench(&[&["--decoder", model, "--json", path.to_str().unwrap()], &sizes[..]].concat());
        assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
        let said = stdout(&output);
        assert!(said.contains("graphs need a GPU") && said.contains(expected), "{said}");
        let from = bench(&["--from", path.to_str().unwrap()]);
        assert_eq!(stdout(&from), said);
    }
    let output = bench(&["--decoder", "tiny", "--arms", "eager,ours"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("stock, eager, captured, and no arm 'ours'"), "{}", stderr(&output));
}

#[cfg(all(feature = "models", not(feature = "bench")))]
#[test]
fn without_a_build_for_gpus_it_says_so() {
    let output = bench(&["--decoder", "llama3-8b"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--features cuda,sm90,full,bench,models"), "{}", stderr(&output));
}
