//! Files and settings with mistakes: every reader of text from outside takes the text or says what is wrong, and never panics. The files of this
//! repository are read with random mistakes in them; `fuzz/` has the same readers for cargo-fuzz.

use crate::readers::READERS;
use proptest::prelude::*;
use proptest::sample::{select, Index};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::Cell;
use std::path::Path;

/// Texts with mistakes for each reader. A page of a record has four megabytes.
fn cases(reader: &str) -> u32 {
    if reader == "record" {
        400
    } else {
        2_000
    }
}
/// The most bytes of a beginning of a file that is read with mistakes.
const MOST: usize = 6_000;

/// What is put in place of words and numbers.
const WORDS: [&str; 28] = [
    "0",
    "1",
    "-1",
    "7",
    "65536",
    "2147483647",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "1e308",
    "1e999",
    "-0.0",
    "nan",
    "inf",
    "null",
    "true",
    "\"\"",
    "\"nt\"",
    "\"f32\"",
    "\"f64\"",
    "\"é\"",
    "[]",
    "{}",
    "[[]]",
    "on",
    "off",
    "\u{0}",
];

/// One mistake in a text.
#[derive(Debug, Clone)]
enum Mistake {
    /// A word or a number is another.
    Word(Index, &'static str),
    Removed(Index, usize),
    Twice(Index, usize),
    Byte(Index, u8),
    End(Index),
}

fn mistake() -> impl Strategy<Value = Mistake> {
    let at = || any::<Index>();
    prop_oneof![
        6 => (at(), select(WORDS.to_vec())).prop_map(|(at, word)| Mistake::Word(at, word)),
        2 => (at(), 1..60usize).prop_map(|(at, length)| Mistake::Removed(at, length)),
        2 => (at(), 1..200usize).prop_map(|(at, length)| Mistake::Twice(at, length)),
        1 => (at(), any::<u8>()).prop_map(|(at, byte)| Mistake::Byte(at, byte)),
        1 => at().prop_map(Mistake::End),
    ]
}

impl Mistake {
    fn make(&self, text: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        let range = |at: &Index, length: usize| {
            let at = at.index(text.len());
            at..(at + length).min(text.len())
        };
        match self {
            Mistake::Word(at, word) => {
                let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-\"".contains(byte);
                let at = at.index(text.len());
                let first = text[..at].iter().rposition(|byte| !is_word(byte)).map_or(0, |before| before + 1);
                let end = text[at..].iter().position(|byte| !is_word(byte)).map_or(text.len(), |length| at + length);
                text.splice(first.min(end)..end, word.bytes());
            }
            Mistake::Removed(at, length) => drop(text.drain(range(at, *length))),
            Mistake::Twice(at, length) => {
                let range = range(at, *length);
                let copy = text[range.clone()].to_vec();
                text.splice(range.end..range.end, copy);
            }
            Mistake::Byte(at, byte) => {
                let at = at.index(text.len());
                text[at] = *byte;
            }
            Mistake::End(at) => text.truncate(at.index(text.len())),
        }
    }
}

fn read(path: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A file of JSON with few rows.
fn few_rows(path: &str) -> Vec<u8> {
    fn shorten(value: &mut serde_json::Value) {
        for list in ["rows", "errors", "entries"] {
            if let Some(rows) = value.get_mut(list).and_then(serde_json::Value::as_array_mut) {
                rows.truncate(4);
            }
        }
        if let Some(bench) = value.get_mut("bench") {
            shorten(bench);
        }
    }
    let mut json = serde_json::from_slice(&read(path)).expect("a file of JSON");
    shorten(&mut json);
    json.to_string().into_bytes()
}

/// Right texts for a reader.
fn texts(reader: &str) -> Vec<Vec<u8>> {
    let beginning = |path: &str, of: &str| {
        let text = String::from_utf8(read(path)).unwrap();
        let ends = text.match_indices(of).map(|(at, _)| at).take_while(|at| *at < MOST);
        text.as_bytes()[..ends.last().expect("the file has rows")].to_vec()
    };
    match reader {
        "kernels" => ["sm90_gemm", "gguf_gemv", "cublas", "sm90_wave"]
            .map(|family| beginning(&format!("csrc/{family}/family.toml"), "\n[[kernel]]"))
            .to_vec(),
        "tuning" => ["tuning/h100/table.json", "tuning/h200/table.json"].map(few_rows).to_vec(),
        "suite" => vec![beginning("benches/suite.toml", "\n[[shape]]")],
        "record" => ["2026-11-25", "2026-11-25-random-1", "2026-11-22-f32", "2026-11-26-experts"]
            .map(|name| few_rows(&crate::records::path(&format!("h100/{name}.json"))))
            .to_vec(),
        _ => [
            "on",
            "128",
            "strict",
            "sm90_gemm_bf16_nt_256x160x64_2x1_cooperative@256x160_c2x1",
            "128x64_c2x1_k2_s5_w8_swap",
        ]
        .map(|value| value.as_bytes().to_vec())
        .to_vec(),
    }
}

#[test]
fn mistakes_are_refused_and_nothing_panics() {
    for (name, reader) in READERS {
        let cases = cases(name);
        let texts = texts(name);
        for text in &texts {
            assert!(reader(text), "{name}: a right text is refused: {}", String::from_utf8_lossy(text));
        }
        let (taken, refused) = (Cell::new(0), Cell::new(0));
        let mistakes =
            prop_oneof![3 => prop::collection::vec(mistake(), 1..3), 1 => prop::collection::vec(mistake(), 3..9)];
        // The same mistakes in every run: `fuzz/` looks for others.
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        let text = (select(texts), mistakes).prop_map(|(mut text, mistakes)| {
            mistakes.iter().for_each(|mistake| mistake.make(&mut text));
            text
        });
        let result = runner.run(&text, |text| {
            let count = if reader(&text) { &taken } else { &refused };
            count.set(count.get() + 1);
            Ok(())
        });
        if let Err(error) = result {
            panic!("{name}: {error}");
        }
        println!("{name}: {} taken, {} refused", taken.get(), refused.get());
        // A reader that refuses everything would not reach what comes after.
        assert!(taken.get() > cases / 100 && refused.get() > cases / 4, "{name}: {taken:?} taken, {refused:?} refused");
    }
}
