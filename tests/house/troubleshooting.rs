//! docs/troubleshooting.md has an entry for each error of the crate, with the error's message, and for each line that the interposer writes to stderr.
//! No page or message tells a reader to take the crate from a registry, where it is not.

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap()
}

/// The Rust string that begins at the first quotation mark of a source.
fn string(source: &str) -> &str {
    let start = source.find('"').unwrap() + 1;
    let mut escaped = false;
    let end = source[start..].find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    &source[start..start + end.unwrap()]
}

/// The constant parts of a format string up to its remedy, which is behind the first semicolon. A page has no backticks inside of a message.
fn parts(format: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in format.split("; ").next().unwrap().chars().filter(|c| *c != '`') {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                parts.push(String::new());
            }
            _ if depth == 0 => parts.last_mut().unwrap().push(c),
            _ => {}
        }
    }
    parts
}

/// Whether a line has the parts, in their order.
fn has(line: &str, parts: &[String]) -> bool {
    let rest = parts.iter().try_fold(line, |rest, part| Some(&rest[rest.find(part.as_str())? + part.len()..]));
    rest.is_some()
}

/// The variants of the enums that derive thiserror's Error, as `Enum::Variant`, with their messages.
fn variants(file: &str) -> Vec<(String, String)> {
    let source = std::fs::read_to_string(root().join(file)).unwrap();
    let mut variants = Vec::new();
    for (at, _) in source.match_indices("#[error(") {
        let (before, after) = source.split_at(at);
        let name = before.rsplit("pub enum ").next().unwrap().split(' ').next().unwrap();
        let message = string(after);
        let behind = &after[after.find(message).unwrap() + message.len()..];
        let variant = behind[behind.find(")]").unwrap() + 2..].trim_start();
        let variant = variant.split(|c: char| !c.is_alphanumeric()).next().unwrap();
        variants.push((format!("{name}::{variant}"), message.to_string()));
    }
    variants
}

#[test]
fn each_error_has_an_entry_with_its_message() {
    let page = page();
    let files = [("src/error.rs", 13), ("src/workspace.rs", 5), ("src/tuning/refusal.rs", 10)];
    for (file, least) in files {
        let variants = variants(file);
        assert!(variants.len() >= least, "{file}: {variants:?}");
        for (variant, message) in variants {
            let start = format!("| `{variant}` |");
            let rows: Vec<&str> = page.lines().filter(|line| line.starts_with(&start)).collect();
            // A constant of the source.
            let message = message.replace("{MOST_STREAMS}", &candle_tilegemm::workspace::MOST_STREAMS.to_string());
            assert!(
                matches!(rows[..], [row] if has(row, &parts(&message))),
                "{file}: docs/troubleshooting.md needs one row that begins with {start} and has \"{message}\"; it has {rows:?}"
            );
        }
    }
}

/// All files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// Until the crate is published.
#[test]
fn no_page_or_message_names_a_registry() {
    let folders = ["docs", "src", "build", "cli/src"].map(|folder| sources(&root().join(folder)));
    let files = [folders.concat(), vec![root().join("README.md")]].concat();
    for path in files {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for words in
            ["install candle-tilegemm", "add candle-tilegemm", "candle-tilegemm = \"", "candle-tilegemm = { version"]
        {
            assert!(!text.contains(words), "{} has `{words}`, and the crate is in no registry", path.display());
        }
    }
}

#[test]
fn each_line_of_the_interposer_has_an_entry() {
    let (page, mut lines) = (page(), 0);
    for path in sources(&root().join("src/interpose")) {
        let source = std::fs::read_to_string(&path).unwrap();
        for call in ["tell(\"", "tell(&format!(\""] {
            for (at, _) in source.match_indices(call) {
                let message = string(&source[at..]);
                lines += 1;
                // A message that is an error alone has its own entry.
                assert!(
                    page.lines().any(|line| has(line, &parts(message))),
                    "{}: docs/troubleshooting.md has no line with \"{message}\"",
                    path.display()
                );
            }
        }
    }
    assert!(lines >= 7, "the test reads {lines} messages");
}

#[test]
fn a_missing_entry_is_found() {
    assert_eq!(parts("{name}={value} is not {}; do"), ["", "=", " is not ", ""]);
    assert!(has("| A=B is not C |", &parts("{name}={value} is not {}; do")));
    assert!(!has("| A is not B=C |", &parts("{name}={value} is not {}; do")));
    assert_eq!(string(r#"tell("a \"b\"", c)"#), r#"a \"b\""#);
}
