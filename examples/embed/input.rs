//! From text to batches of tokens.

use crate::model::Folder;
use anyhow::{anyhow, ensure, Context, Result};
use candle::{Device, Tensor};
use std::io::Read;
use std::path::Path;
use tokenizers::{Encoding, TruncationParams};

/// Pairs of sentences of nearly the same meaning.
const BUILT_IN: [&str; 8] = [
    "The new compiler makes our build twice as fast.",
    "Compile times were halved by the latest toolchain.",
    "It will rain all weekend in the mountains.",
    "Heavy showers are forecast for the Alps on Saturday and Sunday.",
    "The central bank raised interest rates by half a point.",
    "Borrowing money became more expensive after the monetary policy decision.",
    "A man is eating a sandwich in the park.",
    "Someone is having lunch outdoors.",
];

/// Sentences of a file, of stdin (`-`), or the built-in sentences. Blank lines are skipped.
pub fn read_sentences(source: Option<&Path>) -> Result<Vec<String>> {
    let Some(path) = source else { return Ok(BUILT_IN.map(String::from).to_vec()) };
    let (name, bytes) = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("cannot read stdin")?;
        ("stdin".into(), bytes)
    } else {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
        (name, bytes)
    };
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        anyhow!("{name} is not UTF-8: line {line} holds an invalid byte; convert the text, for example with iconv")
    })?;
    let text = text.trim_start_matches('\u{feff}'); // byte order mark
    let sentences: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(String::from).collect();
    ensure!(!sentences.is_empty(), "{name} holds no sentences; write one per line");
    Ok(sentences)
}

/// Tokens of some sentences, padded to the longest sentence.
pub struct Batch {
    /// (batch, tokens), u32.
    pub ids: Tensor,
    /// 1 for a token, 0 for padding; (batch, tokens), f32.
    pub mask: Tensor,
}

/// Tokenizes in batches of `batch_size`. Cuts sentences that are too long for the model, with a notice for each.
pub fn tokenize(sentences: &[String], folder: &Folder, batch_size: usize, device: &Device) -> Result<Vec<Batch>> {
    let max_tokens = folder.max_tokens();
    let mut tokenizer = folder.load_tokenizer()?;
    // tokenizer.json pads every sentence to 128 tokens; batches are padded below.
    tokenizer.with_padding(None);
    let truncation = TruncationParams { max_length: max_tokens, ..Default::default() };
    tokenizer.with_truncation(Some(truncation)).map_err(anyhow::Error::from_boxed)?;

    let inputs: Vec<&str> = sentences.iter().map(String::as_str).collect();
    let encodings = tokenizer.encode_batch(inputs, true).map_err(anyhow::Error::from_boxed)?;
    for (index, encoding) in encodings.iter().enumerate() {
        if !encoding.get_overflowing().is_empty() {
            let number = index + 1;
            eprintln!(
                "notice: sentence {number} is longer than the model's {max_tokens} tokens; the rest of it is ignored"
            );
        }
    }
    let batches = encodings.chunks(batch_size).map(|chunk| Batch::new(chunk, folder.pad_id(), device));
    Ok(batches.collect::<candle::Result<_>>()?)
}

impl Batch {
    fn new(encodings: &[Encoding], pad_id: u32, device: &Device) -> candle::Result<Self> {
        let longest = encodings.iter().map(Encoding::len).max().unwrap_or(0);
        let shape = (encodings.len(), longest);
        let (mut ids, mut mask) = (Vec::new(), Vec::new());
        for encoding in encodings {
            let padding = longest - encoding.len();
            ids.extend_from_slice(encoding.get_ids());
            ids.extend(std::iter::repeat_n(pad_id, padding));
            mask.extend(std::iter::repeat_n(1f32, encoding.len()));
            mask.extend(std::iter::repeat_n(0f32, padding));
        }
        Ok(Self { ids: Tensor::from_vec(ids, shape, device)?, mask: Tensor::from_vec(mask, shape, device)? })
    }
}
