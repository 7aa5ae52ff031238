//! Tokenizers of GGUF files in the example `generate`.

use crate::tokenizer;
use candle::quantized::gguf_file::{Content, Value, VersionedMagic};
use std::collections::HashMap;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer};

const TEXT: &str = "Hello'Ve world 1234\n\n  foo";

fn text(text: &str) -> Value {
    Value::String(text.into())
}

/// The first token, letters, and a word that no merges give.
fn content(pre: &str, more: &[(&str, Value)]) -> Content {
    let tokens = ["<s>", "h", "i", "Ġ", "hi", "u", "<unk>"].map(text).to_vec();
    let mut metadata: HashMap<String, Value> = [
        ("model", text("gpt2")),
        ("pre", text(pre)),
        ("tokens", Value::Array(tokens)),
        ("merges", Value::Array(vec![])),
        ("bos_token_id", Value::U32(0)),
    ]
    .into_iter()
    .map(|(name, value)| (format!("tokenizer.ggml.{name}"), value))
    .collect();
    metadata.extend(more.iter().map(|(name, value)| (format!("tokenizer.ggml.{name}"), value.clone())));
    Content { magic: VersionedMagic::GgufV3, metadata, tensor_infos: HashMap::new(), tensor_data_offset: 0 }
}

fn of(pre: &str) -> Tokenizer {
    tokenizer::of(&content(pre, &[])).unwrap()
}

#[track_caller]
fn splits(names: &[&str], text: &str, expected: &[&str]) {
    for name in names {
        let (tokenizer, mut words) = (of(name), PreTokenizedString::from(text));
        tokenizer.get_pre_tokenizer().unwrap().pre_tokenize(&mut words).unwrap();
        let words = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let words: Vec<&str> = words.into_iter().map(|(word, ..)| word).collect();
        assert_eq!(words, expected, "{name}");
    }
}

#[test]
fn texts_become_words_as_the_name_says() {
    splits(&["gpt-2", "phi-2"], TEXT, &["Hello", "'", "Ve", "Ġworld", "Ġ1234", "ĊĊĠ", "Ġfoo"]);
    splits(&["smollm"], TEXT, &["Hello", "'", "Ve", "Ġworld", "Ġ", "1", "2", "3", "4", "ĊĊĠ", "Ġfoo"]);
    splits(
        &["llama3", "llama-v3", "llama-bpe", "falcon3", "smaug-bpe"],
        TEXT,
        &["Hello", "'Ve", "Ġworld", "Ġ", "123", "4", "ĊĊ", "Ġ", "Ġfoo"],
    );
    splits(
        &["qwen2", "deepseek-r1-qwen"],
        TEXT,
        &["Hello", "'Ve", "Ġworld", "Ġ", "1", "2", "3", "4", "ĊĊ", "Ġ", "Ġfoo"],
    );
    splits(&["deepseek-coder"], "int x1 = 42;\nok", &["int", "Ġx", "1", "Ġ=Ġ", "4", "2", ";", "Ċ", "ok"]);
    splits(&["tekken"], "HelloWorld ABCdef/\n 12", &["Hello", "World", "ĠABCdef", "/Ċ", "Ġ", "1", "2"]);
}

#[test]
fn the_first_token_and_whole_words_are_the_names_unless_the_file_says_otherwise() {
    let ids = |content: &Content| tokenizer::of(content).unwrap().encode("hi", true).unwrap().get_ids().to_vec();
    for name in ["llama3", "llama-v3", "llama-bpe", "falcon3", "tekken"] {
        assert_eq!(ids(&content(name, &[])), [0, 4], "{name}");
    }
    for name in ["gpt-2", "smollm", "smaug-bpe", "qwen2", "deepseek-coder"] {
        assert_eq!(ids(&content(name, &[])), [1, 2], "{name}");
    }
    assert_eq!(ids(&content("llama-bpe", &[("add_bos_token", Value::Bool(false))])), [4]);
    assert_eq!(ids(&content("qwen2", &[("add_bos_token", Value::Bool(true))])), [0, 1, 2]);
    assert_eq!(of("llama-bpe").decode(&[0, 4, 3, 1], true).unwrap(), "hi h");
    assert_eq!(of("tekken").decode(&[0, 4, 3, 1], true).unwrap(), "hi h");
}

#[test]
fn what_is_not_known_is_named() {
    let error = |content: &Content| tokenizer::of(content).unwrap_err().to_string();
    let unknown = error(&content("jais", &[]));
    assert!(unknown.contains("tokenizer.ggml.pre is jais") && unknown.contains("llama-bpe"), "{unknown}");
    let unigram = error(&content("default", &[("model", text("llama"))]));
    assert!(unigram.contains("tokenizer.ggml.model is llama"), "{unigram}");
    let mut without = content("qwen2", &[]);
    without.metadata.remove("tokenizer.ggml.pre");
    let without = error(&without);
    assert!(without.contains("tokenizer.ggml.pre is missing"), "{without}");
    for error in [unknown, unigram, without] {
        assert!(error.contains("--tokenizer"), "{error}");
    }
}
