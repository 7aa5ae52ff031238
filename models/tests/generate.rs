//! The program `generate`: what it writes and how it ends, with one rank and with several, as threads on the CPU.
//!
//! Cargo builds examples for some of its commands only, so this test has the program inside: with [`PROGRAM`] in its environment it is `generate`.

mod common;
#[path = "../examples/perplexity/weights.rs"]
#[allow(dead_code)] // of the file's names nothing is needed here
mod files;
#[path = "../examples/generate/main.rs"]
mod program;

use candle_tilegemm_models::Config;
use common::narrow::file_of;
use common::weights;
use libtest_mimic::{Arguments, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = "TILEGEMM_TEST_PROGRAM";
/// What a program that has failed may take to end.
const END: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    if std::env::var_os(PROGRAM).is_some() {
        return program::main();
    }
    let tests: Vec<Trial> = [
        ("ranks_write_what_one_writes", ranks_write_what_one_writes as fn() -> Result<(), Failed>),
        ("ranks_of_smollm2_write_what_one_writes", ranks_of_smollm2_write_what_one_writes),
        ("an_error_of_ranks_is_the_programs", an_error_of_ranks_is_the_programs),
        #[cfg(unix)]
        ("ranks_that_hang_while_they_load_end_the_program", unix::ranks_that_hang_while_they_load_end_the_program),
        #[cfg(unix)]
        ("a_program_that_is_killed_leaves_nothing", unix::a_program_that_is_killed_leaves_nothing),
    ]
    .into_iter()
    .map(|(name, test)| Trial::test(name, test))
    .collect();
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn start(args: &[&str]) -> Result<Child, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    // Exact products of blocks: sums in another order are far from choosing another token.
    command.env(PROGRAM, "1").env("CANDLE_DEQUANTIZE_ALL", "1").args(args).stdin(Stdio::null());
    Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

fn run(args: &[&str]) -> Result<Output, Failed> {
    Ok(start(args)?.wait_with_output()?)
}

/// What the program writes; it has to end well.
fn said(args: &[&str]) -> Result<String, Failed> {
    let Output { status, stdout, stderr } = run(args)?;
    let log = String::from_utf8_lossy(&stderr);
    if !status.success() || !log.contains("layers") {
        return Err(format!("{args:?}: {status}\n{log}").into());
    }
    Ok(String::from_utf8(stdout)?)
}

/// What the program writes to stderr, and how long it took; it has to fail. The pipes end once no process has them any more.
fn failure(program: Child, expected: &[&str]) -> Result<(), Failed> {
    let began = Instant::now();
    let Output { status, stdout, stderr } = program.wait_with_output()?;
    let log = String::from_utf8_lossy(&stderr);
    let is_told = expected.iter().all(|part| log.contains(part));
    if status.code() != Some(1) || !stdout.is_empty() || !is_told || began.elapsed() > END {
        return Err(format!("{status} after {:?}, without {expected:?}: {log}", began.elapsed()).into());
    }
    Ok(())
}

/// A folder of this process, which goes with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self, Failed> {
        let folder = std::env::temp_dir().join(format!("tilegemm-generate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    fn path(&self) -> Result<&str, Failed> {
        Ok(self.0.to_str().ok_or("a path that is no UTF-8")?)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A random llama whose tokens are words.
fn random_model(folder: &Path) -> Result<(), Failed> {
    let config = r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "eos_token_id": null, "rope_theta": 10000.0, "tie_word_embeddings": false}"#;
    let words: Vec<String> = (0..64).map(|i| format!(r#""word{i}": {i}"#)).collect();
    let tokenizer = format!(
        r#"{{"version": "1.0", "added_tokens": [], "pre_tokenizer": {{"type": "Whitespace"}},
            "model": {{"type": "WordLevel", "unk_token": "word0", "vocab": {{{}}}}}}}"#,
        words.join(", ")
    );
    let template = r#"{"chat_template": "word1 {{ messages[0].content }} word2"}"#;
    std::fs::write(folder.join("config.json"), config)?;
    std::fs::write(folder.join("tokenizer.json"), tokenizer)?;
    std::fs::write(folder.join("tokenizer_config.json"), template)?;
    std::fs::write(folder.join("model.safetensors"), file_of(&weights(&Config::from_json(config)?, 3)?)?)?;
    Ok(())
}

/// Also where nothing says that ranks are threads: without a GPU they are.
fn ranks_write_what_one_writes() -> Result<(), Failed> {
    let folder = Folder::new("random")?;
    random_model(&folder.0)?;
    let say = |more: &[&str]| said(&[&[folder.path()?, "--prompt", "word5 word9", "--tokens", "24"], more].concat());
    let one = say(&["--device", "cpu"])?;
    assert_eq!(one.split_whitespace().count(), 24, "{one}");
    assert_eq!(say(&["--device", "cpu", "--cards", "2"])?, one);
    assert_eq!(say(&["--device", "cpu", "--cards", "4"])?, one);
    if !cfg!(feature = "cuda") {
        assert_eq!(say(&["--cards", "2"])?, one);
    }
    let chat = say(&["--device", "cpu", "--cards", "2", "--chat"])?;
    let prompt = "word1 word5 word9 word2";
    assert_eq!(chat, said(&[folder.path()?, "--device", "cpu", "--tokens", "24", "--prompt", prompt])?);
    assert_ne!(chat, one);
    // A tokenizer in another place.
    let elsewhere = folder.0.join("elsewhere.json");
    std::fs::rename(folder.0.join("tokenizer.json"), &elsewhere)?;
    let elsewhere = elsewhere.to_str().ok_or("a path that is no UTF-8")?;
    assert_eq!(say(&["--device", "cpu", "--tokenizer", elsewhere])?, one);
    failure(start(&[folder.path()?, "--device", "cpu"])?, &["tokenizer.json: "])
}

/// Three ranks: the model has nine heads and three.
fn ranks_of_smollm2_write_what_one_writes() -> Result<(), Failed> {
    let model = smollm2()?;
    let question = ["--device", "cpu", "--chat", "--prompt", "What is a matrix?", "--tokens", "16"];
    let say = |more: &[&str]| said(&[&[model.as_str()], &question[..], more].concat());
    let one = say(&[])?;
    assert!(one.contains("matrix"), "{one}");
    assert_eq!(say(&["--cards", "3"])?, one);
    Ok(())
}

fn smollm2() -> Result<String, Failed> {
    let path = files::smollm2();
    if !path.exists() {
        return Err(format!("there is no model at {}; run `third_party/fetch.sh smollm2`", path.display()).into());
    }
    Ok(path.to_str().ok_or("a path that is no UTF-8")?.to_string())
}

fn an_error_of_ranks_is_the_programs() -> Result<(), Failed> {
    let expected = ["error: rank ", "num_key_value_heads is 3, which 2 ranks do not divide; expected 1, 3 ranks"];
    failure(start(&[&smollm2()?, "--device", "cpu", "--cards", "2"])?, &expected)
}

#[cfg(unix)]
mod unix {
    use super::{failure, start, Duration, Failed, Folder, Instant, END};
    use std::process::Command;

    /// A file that nobody writes: who opens it waits.
    fn silent(folder: &Folder) -> Result<String, Failed> {
        let path = folder.0.join("model.gguf").to_str().ok_or("a path that is no UTF-8")?.to_string();
        if !Command::new("mkfifo").arg(&path).status()?.success() {
            return Err("mkfifo failed".into());
        }
        Ok(path)
    }

    pub fn ranks_that_hang_while_they_load_end_the_program() -> Result<(), Failed> {
        let folder = Folder::new("hangs")?;
        let program = start(&[&silent(&folder)?, "--device", "cpu", "--cards", "2", "--timeout", "2"])?;
        let expected = "error: rank 0 (opening the model), rank 1 (opening the model): no progress for 2s";
        failure(program, &[expected, "--timeout"])
    }

    pub fn a_program_that_is_killed_leaves_nothing() -> Result<(), Failed> {
        let folder = Folder::new("killed")?;
        let mut program = start(&[&silent(&folder)?, "--device", "cpu", "--cards", "2"])?;
        std::thread::sleep(Duration::from_millis(500));
        program.kill()?;
        let began = Instant::now();
        let output = program.wait_with_output()?;
        assert!(!output.status.success() && began.elapsed() < END, "{output:?}");
        Ok(())
    }
}
