//! What tests of the command `tilegemm` share.

use std::path::PathBuf;
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A file of the caller's own, whose name ends with `name`.
pub fn file(name: &str, text: &str) -> PathBuf {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let unique = format!("{}-{}-{name}", std::process::id(), FILES.fetch_add(1, Ordering::Relaxed));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(unique);
    std::fs::write(&path, text).expect("the test's folder is writable");
    path
}
