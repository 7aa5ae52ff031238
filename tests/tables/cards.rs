//! The data of cards, as build.rs reads them from `tuning`.

use candle_tilegemm_build::{cards, table};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A copy of the H100's data in a new folder.
fn copy(name: &str) -> PathBuf {
    let tuning = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cards").join(name);
    let _ = fs::remove_dir_all(&tuning);
    for kind in ["fit", "trees"] {
        fs::create_dir_all(tuning.join("h100").join(kind)).unwrap();
        for entry in fs::read_dir(root().join("tuning/h100").join(kind)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, tuning.join("h100").join(kind).join(path.file_name().unwrap())).unwrap();
        }
    }
    tuning
}

/// Copies a file of the H100 to another card.
fn give(tuning: &Path, card: &str, file: &str) {
    let to = tuning.join(card).join(file);
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(tuning.join("h100").join(file), to).unwrap();
}

fn rust(tuning: &Path) -> Result<String, String> {
    cards::rust(&table::read(&root().join("csrc")).unwrap(), tuning)
}

#[test]
fn files_alone_give_a_card_data_of_its_own() {
    let tuning = copy("second");
    let alone = rust(&tuning).unwrap();
    give(&tuning, "l40s", "fit/gemv.toml");
    give(&tuning, "l40s", "trees/gevm.toml");
    // A measured table makes no entry here.
    fs::create_dir_all(tuning.join("a100")).unwrap();
    fs::write(tuning.join("a100/table.json"), "").unwrap();
    let both = rust(&tuning).unwrap();
    let [before, after] = [&alone, &both].map(|text| text.split("Known::named(").count());
    // The place of the trees' card, and the entry in the list.
    assert_eq!(after - before, 2);
    assert!(
        both.contains("static L40S_GEMV: super::gemv::Gemv = ") && both.contains("const L40S_GEVM_TREES: Trees = ")
    );

    let (h100, l40s) = both.split_once("    Card { card: Known::named(\"l40s\")").unwrap();
    assert!(h100.contains("    Card { card: Known::named(\"h100\")"), "the default comes first");
    for (has, line) in [
        // Trees are of the numbers that they were learned with.
        (true, "Model { family: &L40S_GEMV, trees: Trees::NONE }"),
        (false, "H100_GEMV"),
        (true, "Model { family: &H100_GEVM, trees: L40S_GEVM_TREES }"),
        (false, "H100_GEVM_TREES"),
        (true, "Model { family: &H100_SM90_GEMM, trees: H100_SM90_GEMM_TREES }"),
        (true, "(\"gemv\", &L40S_GEMV)"),
        (true, "(\"gevm\", &H100_GEVM)"),
    ] {
        assert_eq!(l40s.contains(line), has, "{line}");
    }
    // The H100 keeps its own.
    let of_h100 = |text: &str| text[text.find("    Card { card: Known::named(\"h100\")").unwrap()..].to_string();
    assert!(of_h100(&alone).starts_with(of_h100(h100).trim_end()));
}

#[test]
fn what_is_wrong_is_named() {
    let tuning = copy("wrong");
    let fails = |with: &str| {
        let error = rust(&tuning).unwrap_err();
        assert!(error.contains(with), "{error}");
    };
    let spare = tuning.join("h100/fit/no_family.toml");
    fs::write(&spare, "").unwrap();
    fails("h100/fit/no_family.toml: there is no family of this name");
    fs::remove_file(spare).unwrap();

    let numbers = tuning.join("h100/fit/outer.toml");
    let text = fs::read_to_string(&numbers).unwrap();
    fs::write(&numbers, text.replace("single = 2.0", "single = 2")).unwrap();
    fails("2 is no value");
    fs::remove_file(numbers).unwrap();
    fails("h100/fit/outer.toml is missing");
    fs::remove_dir_all(tuning.join("h100")).unwrap();
    fails("has no folder h100");
}
