//! What tests of the command `tilegemm` share.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs the command with these arguments.
pub fn tilegemm(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tilegemm")).args(args).output().expect("tilegemm starts")
}

/// What `bench --from` prints of a record, and its page. A copy of the record has the same rows.
pub fn drawn(name: &str, record: &Value) -> [String; 2] {
    let [from, copy, page] = [record.to_string(), String::new(), String::new()].map(|text| file(name, &text));
    let [from, copy, page] = [&from, &copy, &page].map(|path| path.to_str().unwrap());
    let output = tilegemm(&["bench", "--from", from, "--json", copy, "--html", page]);
    assert!(output.status.success(), "{}", stderr(&output));
    let read: Value = serde_json::from_str(&std::fs::read_to_string(copy).unwrap()).unwrap();
    assert_eq!(read["rows"], record["rows"]);
    [stdout(&output), std::fs::read_to_string(page).unwrap()]
}

/// The lines of a class in the tables that `said` has.
pub fn lines_of<'a>(said: &'a str, class: &str) -> Vec<&'a str> {
    said.lines().filter(|line| line.starts_with(&format!("| {class} "))).collect()
}

/// A file of the caller's own, whose name ends with `name`.
pub fn file(name: &str, text: &str) -> PathBuf {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let unique = format!("{}-{}-{name}", std::process::id(), FILES.fetch_add(1, Ordering::Relaxed));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(unique);
    std::fs::write(&path, text).expect("the test's folder is writable");
    path
}
