//! candle's own tests for tests/gpu: the published sources of the files below as modules, each with a list of its tests that take a device.

use crate::units::write;
use std::collections::BTreeSet;
use std::path::Path;

/// The module, the crate's place in CANDLE_TESTS, and the file in the crate's folder `tests`.
const FILES: [(&str, usize, &str); 6] = [
    ("matmul", 0, "matmul_tests.rs"),
    ("grad", 0, "grad_tests.rs"),
    ("conv", 0, "conv_tests.rs"),
    ("tensor", 0, "tensor_tests.rs"),
    ("pool", 0, "pool_tests.rs"),
    ("nn_ops", 1, "ops.rs"),
];

/// Writes candle_tests.rs and the files that it includes to `out`. `folders`: those of candle-core and candle-nn, with a colon between.
pub fn generate(folders: &str, out: &Path) -> Result<(), String> {
    let folders: Vec<&Path> = folders.split(':').map(Path::new).collect();
    let mut modules = String::new();
    for (module, place, file) in FILES {
        let folder =
            folders.get(place).ok_or("CANDLE_TESTS names one folder; expected those of candle-core and candle-nn")?;
        let path = folder.join("tests").join(file);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        println!("cargo:rerun-if-changed={}", path.display());
        // An included file has no attributes of its own.
        let included: String =
            text.lines().filter(|line| !line.starts_with("#![")).map(|line| format!("{line}\n")).collect();
        let copy = out.join(format!("candle_{module}_tests.rs"));
        write(&copy, &included)?;
        let tests = tests(&text);
        if tests.is_empty() {
            return Err(format!("{} has no `test_device!`: candle's tests have another form now", path.display()));
        }
        let list: String = tests
            .iter()
            .map(|test| format!("(\"{test}\", |device| {test}(device).map_err(|error| error.to_string())),\n"))
            .collect();
        modules += &format!(
            "pub mod {module} {{\n#![allow(dead_code, unused, unexpected_cfgs, clippy::all)]\nextern crate candle as candle_core;\n\
             include!({copy:?});\npub const TESTS: &[super::CandleTest] = &[\n{list}];\n}}\n"
        );
    }
    let files: String = FILES.map(|(module, ..)| format!("(\"{module}\", {module}::TESTS),\n")).concat();
    write(
        &out.join("candle_tests.rs"),
        &format!("{modules}\npub const FILES: &[(&str, &[CandleTest])] = &[\n{files}];\n"),
    )
}

/// The names of the functions that candle's macro `test_device` runs on each device.
fn tests(text: &str) -> BTreeSet<&str> {
    let lists = text.split("\ntest_device!(").skip(1);
    lists.filter_map(|list| list.split(',').next()).map(str::trim).collect()
}
