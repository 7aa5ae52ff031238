//! The tokenizer in a GGUF file.

use anyhow::{bail, Context, Result};
use candle::quantized::gguf_file::{Content, Value};
use candle::quantized::tokenizer::TokenizerFromGguf;
use std::collections::HashMap;
use tokenizers::decoders::byte_level::ByteLevel as Bytes;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{SplitDelimiterBehavior, Tokenizer};

/// How a text becomes words, before merges.
enum Words {
    /// By rules that candle has, under this name.
    Of(&'static str),
    /// By these steps, one after another.
    Steps(Vec<PreTokenizerWrapper>),
}

/// What `tokenizer.ggml.pre` says.
struct Rules {
    words: Words,
    /// Whether a word that is a token stays whole, and whether a text begins with the first token, unless the file says so itself.
    whole: bool,
    first: bool,
}

const NAMES: &str =
    "gpt-2, phi-2, smollm, llama3, llama-v3, llama-bpe, falcon3, smaug-bpe, qwen2, deepseek-r1-qwen, deepseek-coder and tekken";

fn rules(pre: &str) -> Result<Rules> {
    let of = |name| Rules { words: Words::Of(name), whole: false, first: false };
    let steps = |steps| Rules { words: Words::Steps(steps), whole: false, first: false };
    Ok(match pre {
        // Those of candle begin a text with a space.
        "gpt-2" | "phi-2" => steps(vec![ByteLevel::new(false, true, true).into()]),
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" => Rules { whole: true, first: true, ..of("llama3") },
        "smaug-bpe" => of("smaug-bpe"),
        "qwen2" | "deepseek-r1-qwen" => of("qwen2"),
        // Digits by themselves, then gpt2's words.
        "smollm" => steps(vec![Digits::new(true).into(), ByteLevel::new(false, true, true).into()]),
        "deepseek-coder" => steps(vec![
            split(r"[\r\n]")?,
            split(r"\s?\p{L}+")?,
            split(r"\s?\p{P}+")?,
            split(r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+")?,
            Digits::new(true).into(),
            ByteLevel::new(false, true, false).into(),
        ]),
        // Words by the case of their letters.
        "tekken" => {
            let (upper, lower) = (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]");
            let before = r"[^\r\n\p{L}\p{N}]?";
            let rest = r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
            let words = split(&format!("{before}{upper}*{lower}+|{before}{upper}+{lower}*|{rest}"))?;
            let words = vec![words, ByteLevel::new(false, true, false).into()];
            Rules { whole: true, first: true, ..steps(words) }
        }
        _ => bail!("GGUF: tokenizer.ggml.pre is {pre}; this example knows {NAMES}: give the model's tokenizer.json with --tokenizer"),
    })
}

/// Parts of a text by a regular expression.
fn split(regex: &str) -> Result<PreTokenizerWrapper> {
    let split = Split::new(SplitPattern::Regex(regex.into()), SplitDelimiterBehavior::Isolated, false);
    Ok(split.map_err(|error| anyhow::anyhow!("{regex}: {error}"))?.into())
}

/// The tokenizer: vocabulary and merges as candle reads them, and the words that `tokenizer.ggml.pre` names.
pub fn of(content: &Content) -> Result<Tokenizer> {
    let metadata = |name: &str| content.metadata.get(&format!("tokenizer.ggml.{name}"));
    match metadata("model") {
        Some(Value::String(model)) if model != "gpt2" => {
            bail!("GGUF: tokenizer.ggml.model is {model}; this example reads gpt2: give the model's tokenizer.json with --tokenizer")
        }
        _ => {}
    }
    let Some(Value::String(pre)) = metadata("pre") else {
        bail!("GGUF: tokenizer.ggml.pre is missing; give the model's tokenizer.json with --tokenizer");
    };
    let Rules { words, whole, first } = rules(pre)?;
    // candle takes every name that it does not know for gpt2's, and for false what is not there.
    let mut all: HashMap<String, Value> = content
        .metadata
        .iter()
        .filter(|(name, _)| name.starts_with("tokenizer."))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let name = |name: &str| format!("tokenizer.ggml.{name}");
    let known = if let Words::Of(known) = words { known } else { "gpt-2" };
    all.insert(name("pre"), Value::String(known.into()));
    all.entry(name("ignore_merges")).or_insert(Value::Bool(whole));
    all.entry(name("add_bos_token")).or_insert(Value::Bool(first));
    let content = Content { magic: content.magic, metadata: all, tensor_infos: HashMap::new(), tensor_data_offset: 0 };
    let mut tokenizer = Tokenizer::from_gguf(&content).context("the tokenizer of the GGUF file")?;
    if let Words::Steps(steps) = words {
        tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
        tokenizer.with_decoder(Some(Bytes::new(false, true, true)));
    }
    Ok(tokenizer)
}
