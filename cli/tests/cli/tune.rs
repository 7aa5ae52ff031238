//! Measured tables through the `tilegemm` command: TILEGEMM_TUNING, the cache, `explain`, `doctor` and `tune`.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::internal::tuning::{Among, Key, Origin, Point, Tuning};
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::{Format, Layout, Problem};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A product of no suite: no table that ships has it.
const EXPLAIN: [&str; 4] = ["explain", "64", "4104", "4088"];

fn problem() -> Problem {
    Problem::dense(64, 4104, 4088, 1, Layout::NT, Format::BF16)
}

fn model() -> Dispatcher {
    Dispatcher::hypothetical(DeviceInfo::h100()).without_tuning()
}

/// A kernel that runs the problem and that the model does not choose.
fn other() -> &'static KernelDesc {
    let chosen = model().plan(&problem(), Policy::default()).unwrap().kernel;
    let candidates = model().explain(&problem(), Policy::default()).candidates;
    let able = candidates.iter().filter(|candidate| candidate.verdict.is_ok()).map(|candidate| candidate.kernel);
    able.filter(|k| k.role != Role::LastResort).find(|k| *k != chosen).unwrap()
}

fn table() -> String {
    let key = Key::of(&problem().canonical().problem, Among::All).unwrap();
    let mut table = Tuning::new("any", Origin::of_this_build(&DeviceInfo::h100()));
    table.replace(key, &[Point::new(64, other(), None, &[1.25, 1.2])]);
    table.to_text()
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tilegemm-tune-{test}-{}", std::process::id()));
        std::fs::create_dir_all(path.join("candle-tilegemm")).unwrap();
        Self(path)
    }

    /// The file of an H100 in this folder as a cache.
    fn cached(&self) -> PathBuf {
        self.0.join("candle-tilegemm/nvidia-h100-80gb-hbm3.json")
    }

    fn with(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Outcome {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs `tilegemm` with this cache, and this value of TILEGEMM_TUNING.
fn tilegemm(cache: &Folder, setting: Option<&Path>, args: &[&str]) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilegemm"));
    for name in ["TILEGEMM", "TILEGEMM_FORCE", "TILEGEMM_VENDOR", "TILEGEMM_TUNING"] {
        command.env_remove(name);
    }
    command.env("XDG_CACHE_HOME", &cache.0).envs(setting.map(|value| ("TILEGEMM_TUNING", value)));
    let output = command.args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn is_tuned(outcome: &Outcome) -> bool {
    let arrow = outcome.stdout.lines().find(|line| line.starts_with("->")).unwrap_or_default();
    let tuned = outcome.stdout.contains("measured: ");
    assert_eq!(tuned, arrow.starts_with(&format!("-> {} ", other())), "{}", outcome.stdout);
    tuned
}

#[test]
fn the_setting_names_a_table_or_switches_them_off() {
    let folder = Folder::new("setting");
    let file = folder.with("mine.json", &table());
    let named = tilegemm(&folder, Some(&file), &EXPLAIN);
    assert_eq!((named.code, named.stderr.as_str()), (0, ""));
    assert!(is_tuned(&named));
    assert!(named.stdout.contains(&format!("the entry for M 64 to 64 of {}", file.display())), "{}", named.stdout);

    // One in the cache is found by itself, and switched off.
    std::fs::write(folder.cached(), table()).unwrap();
    let found = tilegemm(&folder, None, &EXPLAIN);
    assert!(is_tuned(&found) && found.stdout.contains(folder.cached().to_str().unwrap()), "{}", found.stdout);
    let off = tilegemm(&folder, Some(Path::new("off")), &EXPLAIN);
    assert_eq!((off.code, is_tuned(&off)), (0, false), "{}", off.stderr);
    let elsewhere = tilegemm(&folder, None, &[&EXPLAIN[..], &["--device", "h200"]].concat());
    assert!(!elsewhere.stdout.contains("nvidia-h100"), "a table of another GPU: {}", elsewhere.stdout);
}

#[test]
fn an_explanation_as_json_has_the_entry() {
    let folder = Folder::new("json");
    let file = folder.with("mine.json", &table());
    let json = |setting: &Path| -> Value {
        let args = [&EXPLAIN[..], &["--json"]].concat();
        serde_json::from_str(&tilegemm(&folder, Some(setting), &args).stdout).unwrap()
    };
    let tuned = json(&file);
    assert_eq!((&tuned["reason"], &tuned["chosen"]), (&"tuned".into(), &other().name.into()));
    let entry = &tuned["tuned"][0]["entry"];
    assert_eq!((&entry["kernel"], &entry["gain"], &entry["n"]), (&other().name.into(), &1.2.into(), &4104.into()));
    let off = json(Path::new("off"));
    assert_eq!((&off["reason"], off["tuned"].as_array().unwrap().len()), (&"estimate".into(), 0));
}

#[test]
fn a_refused_table_is_an_error_where_it_is_named_and_a_warning_in_the_cache() {
    let folder = Folder::new("refused");
    let text = table().replacen("\"crate_version\": \"", "\"crate_version\": \"9", 1);
    let file = folder.with("old.json", &text);
    for (setting, reason) in [
        (file.clone(), "was measured with candle-tilegemm 9"),
        (folder.0.join("none.json"), "cannot be read"),
        (folder.with("bad.json", "{"), "is no measured table"),
    ] {
        let Outcome { code, stderr, .. } = tilegemm(&folder, Some(&setting), &EXPLAIN);
        let expected = format!("error: {} {reason}", setting.display());
        assert!(code == 1 && stderr.starts_with(&expected), "{stderr}");
    }
    let h200 = table().replacen("NVIDIA H100 80GB HBM3", "NVIDIA H200", 1);
    let Outcome { code, stderr, .. } = tilegemm(&folder, Some(&folder.with("h200.json", &h200)), &EXPLAIN);
    assert!(code == 1 && stderr.contains("was measured on an NVIDIA H200"), "{stderr}");

    std::fs::write(folder.cached(), &text).unwrap();
    let cached = tilegemm(&folder, None, &EXPLAIN);
    assert_eq!((cached.code, is_tuned(&cached)), (0, false));
    assert!(
        cached.stderr.starts_with("warning: not used: ") && cached.stderr.contains("tilegemm tune"),
        "{}",
        cached.stderr
    );
}

#[test]
fn an_entry_of_other_code_is_passed_over_with_a_warning() {
    let folder = Folder::new("code");
    let text = table().replacen(other().code, "0123456789abcdef", 1);
    let file = folder.with("old.json", &text);
    let outcome = tilegemm(&folder, Some(&file), &EXPLAIN);
    assert_eq!((outcome.code, is_tuned(&outcome)), (0, false));
    let counts = "1 entry is refused: 1 of kernels whose code has changed";
    let named = "`tilegemm doctor` names them";
    assert_eq!(outcome.stderr, format!("warning: of {}, {counts}; {named}\n", file.display()));
    if cfg!(not(feature = "cuda")) {
        let Outcome { code, stdout, .. } = tilegemm(&folder, Some(&file), &["doctor"]);
        assert!(code == 0 && stdout.contains("old.json (0 entries) is for NVIDIA H100"), "{stdout}");
        let line = stdout.lines().find(|line| line.contains(counts)).unwrap_or_else(|| panic!("{stdout}"));
        assert!(line.trim().starts_with("warn") && stdout.contains("-> measure the products again with"), "{stdout}");
    }
}

#[test]
fn an_entry_of_a_kernel_that_is_gone_and_one_of_no_such_configuration_are_told() {
    let folder = Folder::new("gone");
    let config = format!("\"kernel\":\"{}\",\"config\":\"1x3_k77\"", other().name);
    for (name, from, to, counts, words) in [
        (
            "gone.json",
            other().name.to_string(),
            "sm90_gone",
            "1 of kernels that are gone",
            "there is no kernel sm90_gone",
        ),
        (
            "config.json",
            format!("\"kernel\":\"{}\"", other().name),
            config.as_str(),
            "1 of kernels that cannot run them here",
            "as 1x3_k77",
        ),
    ] {
        let file = folder.with(name, &table().replacen(&from, to, 1));
        let outcome = tilegemm(&folder, Some(&file), &EXPLAIN);
        let line =
            format!("warning: of {}, 1 entry is refused: {counts}; `tilegemm doctor` names them\n", file.display());
        let is_taken = outcome.stdout.contains(&format!("-> {} ", other()));
        assert_eq!((outcome.code, is_taken, outcome.stderr), (0, false, line));
        if cfg!(not(feature = "cuda")) {
            let Outcome { code, stdout, .. } = tilegemm(&folder, Some(&file), &["doctor"]);
            assert!(code == 0 && stdout.contains(counts) && stdout.contains(words), "{stdout}");
        }
    }
}

#[cfg(not(feature = "cuda"))]
#[test]
fn doctor_reports_the_tables() {
    let folder = Folder::new("doctor");
    let file = folder.with("mine.json", &table());
    let Outcome { code, stdout, .. } = tilegemm(&folder, Some(&file), &["doctor"]);
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.contains("mine.json (1 entry) is for NVIDIA H100 80GB HBM3"), "{stdout}");
    let Outcome { code, stdout, .. } = tilegemm(&folder, Some(&folder.with("bad.json", "{}")), &["doctor"]);
    assert!(code == 1 && stdout.contains("broken") && stdout.contains("-> `tilegemm tune` writes one"), "{stdout}");
    let Outcome { code, stdout, .. } = tilegemm(&folder, Some(Path::new("off")), &["doctor"]);
    assert!(code == 0 && stdout.contains("TILEGEMM_TUNING=off: none is asked"), "{stdout}");
    let Outcome { stdout, .. } = tilegemm(&folder, None, &["doctor"]);
    assert!(stdout.contains("measured tables") && stdout.contains("TILEGEMM_TUNING"), "{stdout}");
}

#[test]
fn tune_says_what_it_does_and_refuses_what_makes_no_sense() {
    let folder = Folder::new("usage");
    let help = tilegemm(&folder, None, &["tune", "--help"]);
    for words in ["--suite", "--budget", "--merge", "--out", "TILEGEMM_TUNING", "more than 3 %", "Ctrl-C"] {
        let text = help.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(words), "no '{words}' in\n{text}");
    }
    let cases: [(&[&str], &str); 4] = [
        (&["--merge", "--force"], "cannot be used with"),
        (&["--budget", "soon"], "expected something like 8m or 90s"),
        (&["--suite", "no-such.toml"], "cannot read no-such.toml"),
        (&["--only", "no-such-row"], "no id or class of the suite contains no-such-row"),
    ];
    for (args, expected) in cases {
        let Outcome { code, stderr, .. } = tilegemm(&folder, None, &[&["tune"], args].concat());
        assert!(code == 2 && stderr.contains(expected), "{args:?}: no '{expected}' in: {stderr}");
    }
}

#[cfg(not(feature = "bench"))]
#[test]
fn a_build_that_cannot_measure_says_which_one_can() {
    let Outcome { code, stderr, .. } = tilegemm(&Folder::new("cannot"), None, &["tune"]);
    assert!(code == 2 && stderr.contains("--features cuda,sm90,full,bench"), "{stderr}");
}
