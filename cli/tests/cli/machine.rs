//! `tilegemm doctor` and `tilegemm toolchain`: what they say of the machine and its settings.

#[cfg(not(feature = "cuda"))]
use super::command::{json, stdout};
use super::command::{tilegemm, tilegemm_with, Outcome};
#[cfg(not(feature = "cuda"))]
use serde_json::Value;
#[cfg(not(feature = "cuda"))]
use std::path::Path;
use std::process::Command;

#[cfg(not(feature = "cuda"))]
#[test]
fn without_cuda_there_is_no_device_to_ask() {
    let Outcome { code, stderr, .. } = tilegemm(&["explain", "8", "8", "8", "--device", "this"]);
    assert_eq!(code, 1);
    assert!(stderr.starts_with("error: ") && stderr.contains("the feature `cuda`"), "{stderr}");

    let Outcome { code, stdout, stderr } = tilegemm(&["explain", "8", "8", "8", "--built"]);
    assert_eq!(code, 1);
    assert!(stdout.contains("no kernel can run it") && stderr.contains("build with the feature"), "{stdout}{stderr}");
}

#[cfg(not(feature = "cuda"))]
#[test]
fn doctor_is_content_with_a_cpu_build() {
    let report = stdout(&["doctor"]);
    for words in ["features", "the CPU", "TILEGEMM_FORCE", "nvcc", "CUTLASS", "what was built can run"] {
        assert!(report.contains(words), "no '{words}' in\n{report}");
    }
    let value = json(&["doctor", "--json"]);
    assert_eq!(value["can_run"], true);
    let findings =
        value["sections"].as_array().unwrap().iter().flat_map(|section| section["findings"].as_array().unwrap());
    let findings: Vec<&Value> = findings.collect();
    assert!(findings.iter().any(|finding| finding["subject"] == "features" && finding["status"] == "ok"), "{value}");
    assert!(findings.iter().all(|finding| finding["status"] == "ok" || finding["remedy"].is_string()), "{value}");
    let warned = tilegemm_with(&[("TILEGEMM_VENDOR", "of"), ("TILEGEMM", "maybe")], &["doctor"]);
    assert_eq!(warned.code, 0, "{}", warned.stdout);
    for words in ["TILEGEMM_VENDOR=of", "without the feature `cuda`", "TILEGEMM=maybe", "off, on, force or trace"] {
        assert!(warned.stdout.contains(words), "no '{words}' in\n{}", warned.stdout);
    }
}

#[test]
fn doctor_names_misspelt_variables_and_workspaces_that_no_card_has() {
    let settings =
        [("TILEGEM", "off"), ("TILEGEMM_FOO", "1"), ("TILEGEMM_VENDER", "off"), ("TILEGEMM_CUDA_HOME", "/x")];
    let Outcome { code, stdout, .. } = tilegemm_with(&settings, &["doctor"]);
    assert_eq!(stdout.matches("is no variable of this library and changes nothing").count(), 3, "{stdout}");
    for (name, value, nearest) in
        [("TILEGEM", "off", "TILEGEMM\n"), ("TILEGEMM_FOO", "1", ""), ("TILEGEMM_VENDER", "off", "TILEGEMM_VENDOR\n")]
    {
        let (_, finding) =
            stdout.split_once(&format!("{name}={value}\n")).unwrap_or_else(|| panic!("{name}: {stdout}"));
        let remedy = finding.lines().next().unwrap().to_string() + "\n";
        assert!(remedy.contains(&format!("the nearest is {nearest}")), "{remedy}");
    }
    assert_eq!(code, tilegemm(&["doctor"]).code, "a variable that nothing reads keeps nothing from running");

    let workspace = |mib| tilegemm_with(&[("TILEGEMM_WORKSPACE", mib)], &["doctor"]).stdout;
    let said = workspace("99999999");
    assert!(said.contains("broken   set          TILEGEMM_WORKSPACE=99999999"), "{said}");
    assert!(said.contains("is MiB for each stream, and ") && said.contains("128 unless given"), "{said}");
    assert!(workspace("1024").contains("ok       set          TILEGEMM_WORKSPACE=1024"), "{}", workspace("1024"));
}

#[cfg(unix)]
#[test]
fn a_setting_that_is_not_utf8_is_told_and_not_taken_for_none() {
    use std::os::unix::ffi::OsStrExt;
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilegemm"));
    let value = std::ffi::OsStr::from_bytes(b"str\xffct");
    let output = command.arg("doctor").env("TILEGEMM_TUNING", "off").env("TILEGEMM_F32", value).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("TILEGEMM_F32=str\u{fffd}ct") && text.contains("expected text in UTF-8"), "{text}");
}

/// What `third_party/fetch.sh --env` sets, by set.
#[cfg(target_os = "linux")]
const TOOLCHAIN: [&str; 8] = [
    "CLANG_FORMAT_DIR",
    "CUDA_HOME",
    "TILEGEMM_CUDA_HOME",
    "CUTLASS_DIR",
    "LIBCLANG_PATH",
    "TILEGEMM_MODEL_DIR",
    "TILEGEMM_SMOLLM2_DIR",
    "NCCL_HOME",
];

/// The exports of a folder for caches in which a toolkit is installed, by the script that the program has in itself.
#[cfg(target_os = "linux")]
#[test]
fn toolchain_prints_the_exports_of_what_is_in_the_cache() {
    let cache = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache of toolchain");
    let cutlass = cache.join("candle-tilegemm/toolchain/dist/cutlass");
    std::fs::create_dir_all(&cutlass).unwrap();
    std::fs::write(cutlass.join(".pins"), "").unwrap();
    let mut settings: Vec<(&str, &str)> = TOOLCHAIN.into_iter().map(|name| (name, "")).collect();
    settings.push(("XDG_CACHE_HOME", cache.to_str().unwrap()));
    let Outcome { code, stdout, stderr } = tilegemm_with(&settings, &["toolchain", "--env"]);
    let quoted = cutlass.to_str().unwrap().replace(' ', "\\ ");
    assert_eq!((code, stdout.trim_end(), stderr.as_str()), (0, format!("export CUTLASS_DIR={quoted}").as_str(), ""));
    std::fs::remove_dir_all(cache.join("candle-tilegemm/toolchain/dist")).unwrap();
    let Outcome { code, stdout, stderr } = tilegemm_with(&settings, &["toolchain", "--env"]);
    assert_eq!((code, stdout.as_str()), (1, ""), "a shell would evaluate nothing and go on");
    assert!(stderr.contains("no toolkit is in ") && stderr.contains("run `tilegemm toolchain` first"), "{stderr}");
    let refused = tilegemm_with(&settings, &["toolchain", "model"]);
    assert!(
        refused.code == 2 && refused.stderr.contains("[possible values: cuda-13.0, cuda-13.5, cutlass, nccl]"),
        "{}",
        refused.stderr
    );
}

/// What the README has a newcomer evaluate before building and running: with it candle builds, and the program links and starts.
// A build with CUDA would not start without the loader's path.
#[cfg(all(target_os = "linux", not(feature = "cuda")))]
#[test]
fn toolchain_prints_what_a_program_needs_to_build_link_and_start() {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache-of-a-program");
    let dist = cache.join("candle-tilegemm/toolchain/dist");
    for folder in ["cuda-13.0/bin", "cuda-13.0/lib64", "stub/link"] {
        std::fs::create_dir_all(dist.join(folder)).unwrap();
    }
    std::fs::write(dist.join("cuda-13.0/.pins"), "").unwrap();
    let more = ["CUDARC_CUDA_VERSION", "LIBRARY_PATH", "LD_LIBRARY_PATH"];
    let mut settings: Vec<(&str, &str)> = TOOLCHAIN.into_iter().chain(more).map(|name| (name, "")).collect();
    settings.extend([("XDG_CACHE_HOME", cache.to_str().unwrap()), ("CUDAFORGE_THREADS", "3")]);
    let exports = tilegemm_with(&settings, &["toolchain", "--env"]).stdout;
    let dist = dist.canonicalize().unwrap();
    let dist = dist.display();
    let value = |name: &str| {
        let start = format!("export {name}=");
        let line = exports.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {name} in\n{exports}"))
    };
    assert_eq!(value("CUDA_HOME"), format!("{dist}/cuda-13.0"));
    assert!(value("PATH").starts_with(&format!("{dist}/cuda-13.0/bin:")), "{exports}");
    assert_eq!((value("CUDARC_CUDA_VERSION"), value("CUDAFORGE_THREADS")), ("13000", "3"));
    // The linker's folder of the stub has nothing for the loader.
    assert_eq!(value("LIBRARY_PATH"), format!("{dist}/cuda-13.0/lib64:{dist}/stub/link"));
    assert!(value("LD_LIBRARY_PATH").starts_with(&format!("{dist}/cuda-13.0/lib64")), "{exports}");
}

#[cfg(all(target_os = "linux", not(feature = "cuda")))]
#[test]
fn doctor_says_whether_the_loader_finds_the_cuda_runtime() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loader");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("libcudart.so.13"), "").unwrap();
    let report = tilegemm_with(&[("LD_LIBRARY_PATH", folder.to_str().unwrap())], &["doctor"]).stdout;
    let line = report.lines().find(|line| line.contains("loader")).unwrap_or_else(|| panic!("no loader in\n{report}"));
    assert!(line.contains("ok") && line.contains(folder.join("libcudart.so.13").to_str().unwrap()), "{line}");
}
