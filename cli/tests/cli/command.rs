//! The `tilegemm` command: what it prints, where, and with which exit code.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::problem::Epilogue;
use candle_tilegemm::{Format, Layout, Problem};
use serde_json::Value;
use std::process::Command;

pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `tilegemm` with these arguments and settings, and none from outside.
pub fn tilegemm_with(settings: &[(&str, &str)], args: &[&str]) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilegemm"));
    for name in ["", "_F32", "_FORCE", "_VENDOR", "_PDL", "_REQUIRE_GPU", "_TRACE", "_WORKSPACE"] {
        command.env_remove(format!("TILEGEMM{name}"));
    }
    command.env("TILEGEMM_TUNING", "off");
    let output = command.envs(settings.iter().copied()).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

pub fn tilegemm(args: &[&str]) -> Outcome {
    tilegemm_with(&[], args)
}

/// The output of a command that must succeed.
pub fn stdout(args: &[&str]) -> String {
    let Outcome { code, stdout, stderr } = tilegemm(args);
    assert_eq!((code, stderr.as_str()), (0, ""), "{args:?}");
    stdout
}

pub fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).unwrap()
}

#[test]
fn kernels_lists_the_table() {
    let rows = stdout(&["kernels"]);
    assert!(rows.contains(&format!("{} kernels", KERNELS.len())), "{rows}");
    for kernel in KERNELS.iter().filter(|kernel| kernel.tile[0] > 0) {
        let [m, n, k] = kernel.tile;
        assert!(rows.contains(&format!(" {m}x{n}x{k} ")), "{kernel} is not in\n{rows}");
    }
    assert!(rows.lines().all(|line| line.chars().count() <= 120), "{rows}");
    let names = stdout(&["kernels", "--names"]);
    assert!(KERNELS.iter().all(|kernel| names.contains(kernel.name)), "{names}");
}

#[test]
fn kernels_as_json_are_the_descriptors() {
    let all = json(&["kernels", "--json"]);
    let names: Vec<&str> = all.as_array().unwrap().iter().map(|kernel| kernel["name"].as_str().unwrap()).collect();
    assert_eq!(names, KERNELS.iter().map(|kernel| kernel.name).collect::<Vec<_>>());
    let kernel = all.as_array().unwrap().iter().find(|kernel| kernel["family"] == "sm90_gemm").unwrap();
    for (field, expected) in [("arch", "sm90a".into()), ("tile", Value::from(vec![128, 256, 64])), ("align", 16.into())]
    {
        assert_eq!(kernel[field], expected, "{field}");
    }
    for (operand, expected) in [("a", "bf16"), ("b", "bf16"), ("c", "bf16"), ("d", "bf16"), ("acc", "f32")] {
        assert_eq!(kernel["types"][operand], expected, "{operand}");
    }
    assert!(kernel["built"].is_boolean());
}

#[test]
fn kernels_are_filtered_by_where_they_run_and_what_they_compute() {
    for (arch, capability) in [("sm90", 90), ("sm_90a", 90), ("80", 80), ("sm86", 86), ("sm120", 120)] {
        let listed = json(&["kernels", "--json", "--arch", arch, "--dtype", "f32"]);
        let expected = KERNELS.iter().filter(|kernel| kernel.arch.runs_on(capability) && kernel.types.a == Format::F32);
        assert_eq!(listed.as_array().unwrap().len(), expected.count(), "{arch}");
    }
}

#[test]
fn explain_prints_what_the_dispatcher_says() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::a100());
    let problem = Problem::dense(300, 512, 256, 4, Layout::NN, Format::F16);
    let args = "explain 300 512 256 --batch 4 --layout nn --dtype f16 --device a100 --own";
    let expected = dispatcher.explain(&problem, Policy::own()).to_string();
    assert_eq!(stdout(&args.split(' ').collect::<Vec<_>>()).trim_end(), expected.trim_end());
}

#[test]
fn the_documentation_shows_what_explain_prints() {
    let page = include_str!("../../../docs/dispatch.md");
    let (_, example) = page.split_once("$ tilegemm explain 2048 28672 4096\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let printed = stdout(&["explain", "2048", "28672", "4096", "--device", "h100"]);
    assert_eq!(printed, example, "docs/dispatch.md has another example: copy what is printed, on the left, into it");
}

#[test]
fn explain_splits_an_epilogue_as_the_op_does() {
    // Where there are no copies, no fast kernel of ours takes an odd K, and cuBLAS fuses nothing. In 16 bits, D would be rounded in between.
    let explain = |more: &[&str]| {
        let args =
            [&["explain", "317", "4096", "4095", "--dtype", "f64", "--bias", "--activation", "silu"], more].concat();
        let Outcome { code, stdout, stderr } = tilegemm_with(&[("TILEGEMM_WORKSPACE", "0")], &args);
        assert_eq!((code, stderr.as_str()), (0, ""));
        stdout
    };
    let text = explain(&[]);
    assert!(text.contains("-> cublas_f64_nt") && text.contains("an elementwise kernel afterwards"), "{text}");
    let value: Value = serde_json::from_str(&explain(&["--json"])).unwrap();
    assert_eq!((&value["chosen"], &value["elementwise_kernels"]), (&"cublas_f64_nt".into(), &1.into()));
    assert_eq!(value["candidates"].as_array().unwrap().len(), KERNELS.len());
}

/// The residual of a layer: fused where a kernel does, else an elementwise kernel's.
#[test]
fn explain_knows_residuals() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    for ([m, n, k], dtype) in [([2048, 4096, 14336], Format::BF16), ([317, 4096, 4095], Format::F32)] {
        let problem = Problem::dense(m, n, k, 1, Layout::NT, dtype).with(|problem| {
            problem.epilogue = Epilogue::new(1.0, 1.0);
            problem.epilogue.c = Some(problem.d);
        });
        let (epilogue, passes) = problem.epilogue.keep(dispatcher.fuse(&problem, Policy::default()).unwrap());
        let asked = problem.with(|problem| problem.epilogue = epilogue).to_string();
        let [m, n, k] = [m, n, k].map(|size| size.to_string());
        let value = json(&["explain", &m, &n, &k, "--dtype", dtype.name(), "--residual", "--json"]);
        assert_eq!((&value["asked"], &value["elementwise_kernels"]), (&asked.into(), &passes.into()));
    }
    let text = stdout(&["explain", "2048", "4096", "14336", "--residual"]);
    assert!(text.contains("2048x4096x14336 nt bf16 + 1 C"), "{text}");
    for other in [&["--gate", "halves"][..], &["--experts", "8"]] {
        let refused = tilegemm(&[&["explain", "64", "64", "64", "--residual"], other].concat());
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(refused.stderr.contains("cannot be used with"), "{}", refused.stderr);
    }
}

#[test]
fn explain_says_which_operands_are_copied() {
    let text = stdout(&["explain", "2048", "4095", "4095", "--device", "h100"]);
    assert!(text.contains(" on copies of A, B, D: ") && text.contains(" us with the copies"), "{text}");
    let value = json(&["explain", "2048", "4095", "4095", "--device", "h100", "--json"]);
    assert_eq!(value["copies"]["operands"], "ABD");
    assert!(value["copies"]["estimate_us"].as_f64().unwrap() > 84.0, "{}", value["copies"]);
    assert_eq!(json(&["explain", "2048", "4096", "4096", "--json"])["copies"], Value::Null);
}

#[test]
fn the_f32_mode_is_that_of_the_option_else_of_the_environment() {
    let mode = |settings: &[(&str, &str)], options: &[&str]| {
        let args = [&["explain", "512", "512", "512", "--dtype", "f32", "--json"], options].concat();
        let Outcome { code, stdout, stderr } = tilegemm_with(settings, &args);
        assert_eq!((code, stderr.as_str()), (0, ""));
        serde_json::from_str::<Value>(&stdout).unwrap()["f32"].clone()
    };
    assert_eq!(mode(&[], &[]), "accurate");
    assert_eq!(mode(&[("TILEGEMM_F32", "")], &[]), "accurate");
    assert_eq!(mode(&[("TILEGEMM_F32", "strict")], &[]), "strict");
    assert_eq!(mode(&[("TILEGEMM_F32", "strict")], &["--f32", "tf32"]), "tf32");
    assert_eq!(mode(&[("TILEGEMM_F32", "nonsense")], &["--f32", "accurate"]), "accurate", "it does not count");
    assert_eq!(json(&["explain", "512", "512", "512", "--json"])["f32"], Value::Null, "bf16 has none");

    let text = stdout(&["explain", "512", "512", "512", "--dtype", "f32", "--f32", "tf32"]);
    assert!(text.contains("nt f32 tf32 on NVIDIA H100") && text.contains("f32 mode tf32: "), "{text}");
    for (name, value, expected) in [
        ("TILEGEMM_F32", "TF32", "TILEGEMM_F32=TF32 is not understood; expected accurate, strict or tf32"),
        ("TILEGEMM_F32", "fast", "TILEGEMM_F32=fast is not understood; expected accurate, strict or tf32"),
        ("TILEGEMM_WORKSPACE", "1G", "TILEGEMM_WORKSPACE=1G is not understood; expected a number of MiB, 0 for none"),
    ] {
        let refused = tilegemm_with(&[(name, value)], &["explain", "512", "512", "512", "--dtype", "f32"]);
        assert_eq!((refused.code, refused.stderr.trim_end()), (1, format!("error: {expected}").as_str()));
        let report = tilegemm_with(&[(name, value)], &["doctor"]);
        assert_eq!(report.code, 1);
        assert!(report.stdout.contains(&format!("{name}={value}")), "{}", report.stdout);
        assert!(report.stdout.contains("is not understood; expected"), "{}", report.stdout);
    }
}

#[test]
fn explain_folds_one_weight_for_a_batch() {
    let text = stdout(&["explain", "128", "4096", "1024", "--batch", "16", "--broadcast"]);
    assert!(text.contains("run as 2048x4096x1024 nt bf16"), "{text}");
}

#[test]
fn a_forced_kernel_that_cannot_run_is_explained_and_an_error() {
    const NAME: &str = "tile_gemm_sm90_bf16_nt_256x256x64_2x1_w8";
    let Outcome { code, stdout, stderr } = tilegemm(&["explain", "17", "4095", "4096", "--force", NAME]);
    assert_eq!(code, 1);
    assert!(stdout.contains("which was asked for by name"), "{stdout}");
    assert!(
        stderr.starts_with(&format!("error: {NAME} was asked for by name but cannot run 17x4095x4096")),
        "{stderr}"
    );
}

#[test]
fn a_command_line_that_makes_no_sense_is_refused_with_exit_code_2() {
    let cases = [
        ("", "Usage"),
        ("frobnicate", "unrecognized subcommand"),
        ("explain 1 2", "<K>"),
        ("explain 0 4096 4096", "0 is not in 1.."),
        ("explain -1 4096 4096", "invalid value '-1' for '<M>': -1 is not in 1.."),
        ("explain 4096 4096 99999999999", "99999999999 is not in 1.."),
        (
            "explain 4096 4096 x",
            "invalid value 'x' for '<K>': expected a whole number from 1 to 2147483647, such as 4096",
        ),
        ("explain 8 8 8 --batch 0", "0 is not in 1.."),
        ("explain 8 8 8 --layout xx", "possible values: nn, nt, tn, tt"),
        ("explain 8 8 8 --dtype int8", "possible values: f16, bf16, f32, f64"),
        ("explain 8 8 8 --f32 fast", "possible values: accurate, strict, tf32"),
        ("bench --from x.json --f32 tf32", "cannot be used with"),
        ("explain 8 8 8 --device v100", "possible values: a100, a10, rtx3090"),
        ("explain 8 8 8 --activation elu", "possible values: identity, relu, gelu-erf, gelu-tanh, silu"),
        ("explain 8 8 8 --force sm90_gemm", "no kernel is named 'sm90_gemm'; `tilegemm kernels` lists the names"),
        ("explain 8 8 8 --own --force cublas_bf16_nt", "cannot be used with"),
        ("explain 2000000 2000000 64", "GiB, but NVIDIA H100 80GB HBM3 has 80"),
        ("trace", "<PROGRAM>"),
        ("trace sleep", "unexpected argument"),
        ("kernels --arch hopper", "expected a compute capability such as sm90"),
        ("kernels --dtype int8", "possible values: f16, bf16, f32, f64, f8e4m3, i8"),
        ("kernels --family gemvv", "a similar value exists: 'gemv'"),
        ("suite --device v100", "possible values: a100, a10, rtx3090"),
        ("completions tcsh", "possible values: bash, zsh, fish"),
    ];
    for (line, expected) in cases {
        let Outcome { code, stdout, stderr } = tilegemm(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!((code, stdout.as_str()), (2, ""), "{line}: {stderr}");
        assert!(stderr.contains(expected), "{line}: no '{expected}' in: {stderr}");
        // The usage and the example are those of the subcommand.
        if let Some(name) = line.split(' ').next().filter(|name| !["", "frobnicate"].contains(name)) {
            assert_eq!(stderr.matches("Usage: ").count(), 1, "{line}: {stderr}");
            for words in [format!("Usage: tilegemm {name} "), format!("\nExample: tilegemm {name} ")] {
                assert!(stderr.contains(&words), "{line}: no '{words}' in: {stderr}");
            }
        }
    }
}

#[test]
fn names_are_taken_in_any_case_and_with_any_hyphens() {
    let cases = [
        ("explain 8 4096 4096 --device H100 --dtype BF16 --layout NT", "explain 8 4096 4096"),
        ("explain 8 4096 4096 --device H100_PCIE", "explain 8 4096 4096 --device h100-pcie"),
        ("explain 8 4096 4096 --device RTX-4090", "explain 8 4096 4096 --device rtx4090"),
        ("explain 8 4096 4096 --dtype F32 --b Q4_K --f32 TF32", "explain 8 4096 4096 --dtype f32 --b q4k --f32 tf32"),
        ("explain 8 4096 4096 --dtype f32 --b q4-0", "explain 8 4096 4096 --dtype f32 --b q4_0"),
        ("explain 8 4096 4096 --activation GELU_ERF --out F32", "explain 8 4096 4096 --activation gelu-erf --out f32"),
        ("explain 8 4096 4096 --force CUBLAS-BF16-NT", "explain 8 4096 4096 --force cublas_bf16_nt"),
        ("kernels --arch SM90A --family SM90-gemm,GEMV", "kernels --arch sm90 --family sm90_gemm,gemv"),
        ("kernels --device H100 --dtype F8_E4M3", "kernels --device h100 --dtype f8e4m3"),
        ("suite --class GGUF --only Q4K,Q6K --device H200", "suite --class gguf --only q4k,q6k --device h200"),
    ];
    for (free, plain) in cases {
        let [free_text, plain_text] = [free, plain].map(|line| stdout(&line.split(' ').collect::<Vec<_>>()));
        assert_eq!(free_text, plain_text, "{free}");
        assert!(plain_text.lines().count() > 3, "{plain}: {plain_text}");
    }
}

#[test]
fn every_subcommand_knows_every_card() {
    for device in DeviceInfo::names() {
        for line in ["explain 8 8 8", "kernels", "suite --only rope"] {
            let args = [&line.split(' ').collect::<Vec<_>>()[..], &["--device", device]].concat();
            assert!(!stdout(&args).is_empty(), "{args:?}");
        }
    }
}

#[test]
fn families_filter_the_table() {
    let listed = json(&["kernels", "--json", "--family", "gemv,split_k"]);
    let expected = KERNELS.iter().filter(|kernel| ["gemv", "split_k"].contains(&kernel.family)).count();
    assert_eq!(listed.as_array().unwrap().len(), expected);
    assert!(expected > 0 && listed.as_array().unwrap().iter().any(|kernel| kernel["family"] == "gemv"));
}

#[test]
fn an_error_of_operands_without_a_kernel_names_the_cure() {
    for device in ["h100", "b200"] {
        let Outcome { code, stderr, .. } =
            tilegemm(&["explain", "512", "512", "512", "--dtype", "f8e4m3", "--device", device]);
        assert_eq!(code, 1);
        assert!(stderr.contains("write f16 or bf16 or f32, not f8e4m3") && stderr.contains("--out f16"), "{stderr}");
        assert!(!stderr.contains("feature"), "the whole table was searched: {stderr}");
    }
    stdout(&["explain", "512", "512", "512", "--dtype", "f8e4m3", "--device", "b200", "--out", "bf16"]);
}

/// The parts of the suite's listing that `--json` has are those of the table.
#[test]
fn the_suite_as_json_has_the_products_and_the_choices() {
    let value = json(&["suite", "--only", "decode", "--json"]);
    assert_eq!(value["device"], DeviceInfo::h100().name);
    let rows = value["rows"].as_array().unwrap();
    let text = stdout(&["suite", "--only", "decode"]);
    assert_eq!(rows.len(), text.lines().count() - 2);
    for row in rows {
        let line = text.lines().find(|line| line.contains(&format!("| {} ", row["id"].as_str().unwrap()))).unwrap();
        let us = row["estimate_us"].as_f64().unwrap();
        for part in [row["kernel"].as_str().unwrap(), row["product"].as_str().unwrap(), &format!(" {us:.1} |")] {
            assert!(line.contains(part), "no '{part}' in {line}");
        }
        // An estimate of a long launch may be a little below the roofline.
        assert!(row["roofline_us"].as_f64().unwrap() <= 1.1 * us && row["m"].is_u64() && row["layout"].is_string());
    }
}

/// A reader such as `head`, which goes away, is no reason to panic: neither on stdout nor on stderr.
#[cfg(unix)]
#[test]
fn a_closed_pipe_ends_no_subcommand_in_a_panic() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("closed pipes");
    std::fs::create_dir_all(&folder).unwrap();
    let trace = folder.join("trace.toml");
    let lines = [
        "kernels",
        "kernels --json",
        "layout --list",
        "explain 2048 28672 4096",
        "explain 1 2",
        "explain 8 8 8 --dtype f8e4m3",
        "suite",
        "bench --from no-such-record",
        "bench --only rope",
        "tune",
        "f32 --from no-such-record",
        "gguf --from no-such-record",
        "fit no-such-record",
        "toolchain --env",
        "doctor",
        "completions bash",
        "--help",
        "frobnicate",
    ];
    let mut commands: Vec<Vec<&str>> = lines.iter().map(|line| line.split(' ').collect()).collect();
    commands.push(vec!["trace", "--force", "--out", trace.to_str().unwrap(), "--", "true"]);
    for args in commands {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tilegemm"));
        command.args(&args).env("XDG_CACHE_HOME", &folder).env("TILEGEMM_TUNING", folder.join("none"));
        let [out, err] = [(); 2].map(|()| {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            writer
        });
        let status = command.stdout(out).stderr(err).status().unwrap();
        // A panic ends the program with 101, SIGPIPE without a code.
        assert!([0, 1, 2].contains(&status.code().unwrap()), "{args:?}: {status}");
    }
}

#[test]
fn completions_know_options_and_values() {
    for (shell, words) in [("bash", "_tilegemm()"), ("zsh", "#compdef tilegemm"), ("FISH", "complete -c tilegemm")] {
        let script = stdout(&["completions", shell]);
        for word in [words, "h100-pcie", "gelu-erf", "explain", "warm-up"] {
            assert!(script.contains(word), "no '{word}' for {shell}");
        }
    }
}

/// Help is as wide as the terminal, and no line of it is broken twice.
#[test]
fn help_is_wrapped_between_words() {
    for name in ["explain", "tune", "fit", "errors", "toolchain", "bench"] {
        let help = stdout(&[name, "--help"]);
        let wide = |line: &&str| line.chars().count() > 100 && line.trim().contains(' ');
        assert_eq!(help.lines().find(wide), None, "{name}");
        assert!(help.contains("\nExamples:\n  tilegemm "), "{help}");
    }
}

#[test]
fn explain_says_whether_a_gate_is_fused() {
    let args = |gate: &'static str| {
        ["explain", "512", "28672", "4096", "--device", "h100", "--activation", "silu", "--gate", gate]
    };
    let value = json(&[&args("halves")[..], &["--json"]].concat());
    let chosen = value["chosen"].as_str().unwrap();
    assert!(chosen.starts_with("sm90_gated_bf16_nt_"), "{chosen}");
    assert_eq!(value["elementwise_kernels"], 0);
    let in_turns = stdout(&args("interleaved"));
    assert!(in_turns.contains("a kernel of its own applies it afterwards"), "{in_turns}");
    let value = json(&[&args("interleaved")[..], &["--json"]].concat());
    assert_eq!(value["elementwise_kernels"], 1);
    assert_eq!(value["asked"], "512x28672x4096 nt bf16", "the product whose columns are gated");
}
