//! The code of a kernel, and the hash by which a measured table recognises the code. Used by build.rs, and by a test.

use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The text of `source` and, in turn, of the files of the folder `include` that it includes.
pub fn sources(source: &Path, include: &Path) -> Result<Vec<String>, String> {
    let mut paths = vec![source.to_path_buf()];
    let mut texts = Vec::new();
    while let Some(path) = paths.get(texts.len()) {
        let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let included = text.lines().filter_map(|line| line.trim().strip_prefix("#include \"")?.strip_suffix('"'));
        let included: Vec<PathBuf> = included.map(|name| include.join(name)).collect();
        for path in included {
            if path.exists() && !paths.contains(&path) {
                paths.push(path);
            }
        }
        texts.push(text);
    }
    Ok(texts)
}

/// A digest of the code that `source` is compiled from for this compute capability. Names of files, comments and blanks do not count: with
/// them, every change of a comment would make measurements invalid.
pub fn digest(source: &Path, include: &Path, capability: u16) -> Result<String, String> {
    let texts = sources(source, include)?;
    let mut codes: Vec<String> = texts.iter().map(|text| code(&for_capability(text, capability))).collect();
    codes.sort();
    Ok(hex(codes.iter().map(String::as_str)))
}

/// The hash of a kernel's row and of the digest of the kernel's source, where there is a source.
pub fn hash(row: &str, digest: Option<&str>) -> String {
    hex([row].into_iter().chain(digest))
}

fn hex<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
        hash.update([0]);
    }
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// C++ after the directives `#if __CUDA_ARCH__ >= NUMBER` and their `#endif`, for this compute capability. Such a block has no `#else` and
/// no other directives.
pub fn for_capability(source: &str, capability: u16) -> String {
    let mut kept = String::new();
    let mut block = None; // whether the block that is open is kept
    for line in source.split_inclusive('\n') {
        if let Some(least) = line.trim().strip_prefix("#if __CUDA_ARCH__ >= ") {
            block = Some(least.parse().is_ok_and(|least: u32| u32::from(capability) * 10 >= least));
        } else if line.trim() == "#endif" && block.is_some() {
            block = None;
        } else if block != Some(false) {
            kept += line;
        }
    }
    kept
}

/// C++ without comments and `#include`s. Blanks are single, and stand only where words or operators would become one without: a formatter changes nothing
/// here.
pub fn code(source: &str) -> String {
    let lines = source.split_inclusive('\n').filter(|line| !line.trim_start().starts_with("#include"));
    let source: String = lines.collect();
    let mut code = String::new();
    let mut rest = source.as_str();
    let mut after_blank = false;
    while let Some(first) = rest.chars().next() {
        let upto = |end: &str| rest[2..].find(end).map_or(rest.len(), |at| 2 + at + end.len());
        let (length, is_blank) = match first {
            '/' if rest.starts_with("//") => (upto("\n"), true),
            '/' if rest.starts_with("/*") => (upto("*/"), true),
            '\\' if rest.starts_with("\\\n") => (2, true),
            '"' | '\'' => (literal(rest), false),
            _ => (first.len_utf8(), first.is_whitespace()),
        };
        if !is_blank {
            if after_blank && code.chars().next_back().is_some_and(|last| joins(last, first)) {
                code.push(' ');
            }
            code.push_str(&rest[..length]);
        }
        after_blank = is_blank;
        rest = &rest[length..];
    }
    code
}

/// Whether two neighbours could be parts of one word or operator.
fn joins(last: char, next: char) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_operator = |c: char| "+-*/%&|^=<>!:.#".contains(c);
    is_word(last) && is_word(next) || is_operator(last) && is_operator(next)
}

/// Length of the string or character that `text` begins with: to its closing quote, or the end of the line, as for the
/// apostrophe of 1'000.
fn literal(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut escaped = false;
    for (at, &byte) in text.as_bytes().iter().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'\n' => return at,
            _ if byte == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}
