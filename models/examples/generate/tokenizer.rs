//! The tokenizer in a GGUF file.

use anyhow::{bail, Context, Result};
use candle::quantized::gguf_file::{Content, Value};
use candle::quantized::tokenizer::TokenizerFromGguf;
use tokenizers::decoders::byte_level::ByteLevel as Bytes;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::Tokenizer;

/// The tokenizer: vocabulary and merges as candle reads them, and the words that `tokenizer.ggml.pre` names.
pub fn of(content: &Content) -> Result<Tokenizer> {
    let Some(Value::String(pre)) = content.metadata.get("tokenizer.ggml.pre") else {
        bail!("GGUF: tokenizer.ggml.pre is missing");
    };
    // candle takes every name that it does not know for gpt2's.
    if !["gpt-2", "llama3", "qwen2", "smaug-bpe", "smollm"].contains(&pre.as_str()) {
        bail!("GGUF: tokenizer.ggml.pre is {pre}; this example knows gpt-2, llama3, qwen2, smaug-bpe and smollm: give a folder with a tokenizer.json");
    }
    let mut tokenizer = Tokenizer::from_gguf(content).context("the tokenizer of the GGUF file")?;
    if pre == "smollm" {
        // Digits by themselves, then gpt2's words.
        let words = Sequence::new(vec![Digits::new(true).into(), ByteLevel::new(false, true, true).into()]);
        tokenizer.with_pre_tokenizer(Some(words));
        tokenizer.with_decoder(Some(Bytes::new(false, true, true)));
    }
    Ok(tokenizer)
}
