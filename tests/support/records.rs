//! The records of benches/record. They are in the repository only: the package has none.

pub fn path(name: &str) -> String {
    // The tests of `cli/`, too.
    let folders = ["", "/.."].map(|to_root| format!("{}{to_root}/benches/record/{name}", env!("CARGO_MANIFEST_DIR")));
    let there = folders.iter().find(|path| std::path::Path::new(path).exists());
    there.cloned().unwrap_or_else(|| {
        panic!(
            "{} is missing: this test reads a record, and records are in the repository only, not in the package",
            folders[0]
        )
    })
}

#[allow(dead_code)] // some tests give the path to a command
pub fn text(name: &str) -> String {
    let path = path(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
