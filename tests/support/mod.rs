//! What tests of the command `tilegemm` share.

use std::path::PathBuf;
use std::process::Output;

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A file of this test's own.
pub fn file(name: &str, text: &str) -> PathBuf {
    let unique = format!("{}-{}-{name}", env!("CARGO_CRATE_NAME"), std::process::id());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(unique);
    std::fs::write(&path, text).expect("the test's folder is writable");
    path
}
