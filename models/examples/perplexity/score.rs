//! The perplexity of a model.

use crate::model::{File, Model};
use crate::tokenizer;
use anyhow::{ensure, Context, Result};
use candle::{DType, Device, Tensor, D};
use std::path::{Path, PathBuf};

/// A page of this repository.
pub fn text() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/dispatch.md")
}

/// The first tokens of a text, in windows of one length.
pub fn windows(file: &File, text: &Path, count: usize, windows: usize) -> Result<Vec<Vec<u32>>> {
    let text = std::fs::read_to_string(text).with_context(|| format!("cannot read {}", text.display()))?;
    let tokenizer = tokenizer::of(&file.content)?;
    let encoding = tokenizer.encode(text, false).map_err(|error| anyhow::anyhow!("the text: {error}"))?;
    let tokens = encoding.get_ids();
    let length = count / windows;
    ensure!(
        tokens.len() >= count,
        "the text has {} tokens; expected {count}, or take fewer with --tokens",
        tokens.len()
    );
    ensure!(length >= 2, "{count} tokens in {windows} windows; expected two tokens of each, and more");
    Ok(tokens.chunks_exact(length).take(windows).map(<[u32]>::to_vec).collect())
}

/// The exponential of the mean loss of all tokens but the first of each window.
pub fn perplexity(model: &mut dyn Model, windows: &[Vec<u32>], device: &Device) -> Result<f64> {
    let length = windows[0].len();
    let tokens = Tensor::new(windows.to_vec(), device)?;
    let column = |at: usize| tokens.narrow(1, at, 1)?.contiguous();
    let mut loss = 0f64;
    for at in 0..length - 1 {
        let logits = model.forward(&column(at)?, at)?.to_dtype(DType::F32)?;
        let of_next = candle_nn::ops::log_softmax(&logits, D::Minus1)?.gather(&column(at + 1)?, D::Minus1)?;
        loss -= f64::from(of_next.sum_all()?.to_scalar::<f32>()?);
    }
    Ok((loss / ((length - 1) * windows.len()) as f64).exp())
}
