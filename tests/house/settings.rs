//! The environment variables: each is listed, described and read in one place.

use candle_tilegemm::internal::settings::names::OTHERS as KNOWN;
use candle_tilegemm::internal::settings::ALL;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What build.rs, tests and examples read.
const OTHERS: [&str; 6] = [
    "TILEGEMM_CUDA_HOME",
    "TILEGEMM_MODEL_DIR",
    "TILEGEMM_OBJECTS",
    "TILEGEMM_PROFILE",
    "TILEGEMM_SKIP_KERNELS",
    "TILEGEMM_SMOLLM2_DIR",
];

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    let found = |path: PathBuf| match path.is_dir() {
        true => files(&path, extension),
        false => vec![path],
    };
    paths.flat_map(found).filter(|path| path.extension().is_some_and(|own| own == extension)).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// First and second cell of the rows of the documentation's tables that are about a variable of ours.
fn rows() -> Vec<[String; 2]> {
    let pages = [vec![root().join("README.md")], files(&root().join("docs"), "md")].concat();
    let text: String = pages.iter().map(|page| fs::read_to_string(page).unwrap()).collect();
    let rows = text.lines().filter(|line| line.starts_with("| `TILEGEMM"));
    // A bar inside of a cell is escaped.
    let cells = rows.map(|row| row.replace("\\|", "\0").split('|').map(|c| c.trim().replace('\0', "|")).collect());
    cells.map(|cells: Vec<String>| [cells[1].clone(), cells[2].clone()]).collect()
}

#[test]
fn the_documentation_has_a_row_for_each_variable() {
    let rows = rows();
    for setting in ALL {
        let cell = format!("`{}={}`", setting.name, setting.holds);
        let [_, text] = rows.iter().find(|[name, _]| *name == cell).unwrap_or_else(|| panic!("no row for {cell}"));
        assert!(text.starts_with(setting.decides), "{cell} decides '{}', not '{text}'", setting.decides);
    }
    let name = |cell: &str| cell.trim_matches('`').split('=').next().unwrap().to_string();
    let documented: BTreeSet<String> = rows.iter().map(|[cell, _]| name(cell)).collect();
    let known: BTreeSet<String> = ALL.iter().map(|setting| setting.name).chain(OTHERS).map(String::from).collect();
    assert_eq!(documented, known);
}

/// A name that the documentation has and the library does not know would be reported as misspelt.
#[test]
fn every_documented_name_is_known() {
    let pages = [vec![root().join("README.md")], files(&root().join("docs"), "md")].concat();
    let text: String = pages.iter().map(|page| fs::read_to_string(page).unwrap()).collect();
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let names: BTreeSet<&str> = text.split(word).filter(|word| word.starts_with("TILEGEMM_")).collect();
    assert!(names.len() > ALL.len());
    for name in names {
        assert!(ALL.iter().any(|setting| setting.name == name) || KNOWN.contains(&name), "{name} is not known");
    }
}

#[test]
fn nothing_else_in_the_library_reads_the_environment() {
    // The command reads variables of others, such as CUDA_HOME.
    let all = ["src", "cli/src", "models/src"].map(|folder| files(&root().join(folder), "rs"));
    for path in all.concat() {
        let (own, text) = (path.strip_prefix(root()).unwrap(), fs::read_to_string(&path).unwrap());
        let read = match own {
            own if own == Path::new("src/settings.rs") || own.starts_with("src/settings") => continue,
            own if own.starts_with("cli") => text.contains("var(\"TILEGEMM") || text.contains("var_os(\"TILEGEMM"),
            _ => text.contains("env::var"),
        };
        assert!(!read, "{} reads the environment; src/settings.rs does that", own.display());
    }
}
