//! The output of the embed example.

use anyhow::{ensure, Result};
use candle::Tensor;
use candle_tilegemm::stats::GemmCount;
use candle_tilegemm::GemmExt;
use comfy_table::{presets::ASCII_MARKDOWN, Table};
use serde::Serialize;

/// Up to so many sentences, the table has all similarities; above, only the nearest sentence.
const MAX_COLUMNS: usize = 12;
/// Rows of the similarity matrix that are computed at a time.
const ROWS: usize = 1024;
/// Characters of a sentence in the table.
const MAX_CHARS: usize = 48;
const MAX_GEMMS: usize = 24;

/// The comparison of the two models; `--json` prints its JSON.
#[derive(Serialize)]
pub struct Report {
    pub device: String,
    /// Embeddings of our model, in the order of the sentences.
    pub embeddings: Vec<Vec<f32>>,
    /// Largest difference between an element of our embeddings and of stock's.
    pub max_abs_diff: f32,
    /// Milliseconds per batch.
    pub stock_ms: f64,
    pub ours_ms: f64,
    /// Products of our model in one pass over all batches.
    pub gemms: Vec<GemmCount>,
}

/// The largest difference between elements of two tensors.
pub fn max_abs_diff(ours: &Tensor, stock: &Tensor) -> Result<f32> {
    let flat = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
    let (ours, stock) = (flat(ours)?, flat(stock)?);
    let finite = |values: &[f32]| values.iter().all(|x| x.is_finite());
    ensure!(finite(&ours), "an embedding is not finite; try --dtype f32, and report this");
    ensure!(finite(&stock), "an embedding of the stock model is not finite; try --dtype f32");
    Ok(ours.iter().zip(&stock).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max))
}

/// Prints each sentence with its similarity to the other sentences and its nearest sentence.
pub fn print_similarities(sentences: &[String], embeddings: &Tensor) -> Result<()> {
    let columns = if sentences.len() <= MAX_COLUMNS { sentences.len() } else { 0 };
    let numbers = (1..=columns).map(|number| number.to_string());
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(["#", "sentence"].map(String::from).into_iter().chain(numbers).chain(["nearest".into()]));
    for start in (0..sentences.len()).step_by(ROWS) {
        let rows = embeddings.narrow(0, start, ROWS.min(sentences.len() - start))?;
        for (offset, row) in rows.gemm(&embeddings.t()?)?.to_vec2::<f32>()?.iter().enumerate() {
            let index = start + offset;
            let others = row.iter().enumerate().filter(|(other, _)| *other != index);
            let nearest = others.max_by(|x, y| x.1.total_cmp(y.1));
            let nearest = nearest.map_or("-".into(), |(other, cosine)| format!("#{} ({cosine:.2})", other + 1));
            let cells = [(index + 1).to_string(), shorten(&sentences[index])];
            let cosines = row.iter().take(columns).map(|cosine| format!("{cosine:.2}"));
            table.add_row(cells.into_iter().chain(cosines).chain([nearest]));
        }
    }
    println!("{table}");
    Ok(())
}

/// The beginning of a sentence, without control characters.
fn shorten(sentence: &str) -> String {
    let mut chars = sentence.chars().map(|c| if c.is_control() { ' ' } else { c });
    let start: String = chars.by_ref().take(MAX_CHARS).collect();
    if chars.next().is_some() {
        start + "..."
    } else {
        start
    }
}

impl Report {
    pub fn print_json(&self) -> Result<()> {
        println!("{}", serde_json::to_string(self)?);
        Ok(())
    }

    /// Prints the comparison of the models on a batch of so many sentences and tokens.
    pub fn print_comparison(&self, (sentences, tokens): (usize, usize)) {
        println!("\nlargest difference to stock: {:.1e}", self.max_abs_diff);
        println!(
            "milliseconds per batch ({sentences} x {tokens} tokens): stock {:.2}, ours {:.2}",
            self.stock_ms, self.ours_ms
        );
    }

    pub fn print_gemms(&self) {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header(["m", "n", "k", "batch", "layout", "dtype", "kernel", "calls"]);
        for gemm in self.gemms.iter().take(MAX_GEMMS) {
            let sizes = [gemm.m, gemm.n, gemm.k, gemm.batch].map(|size| size.to_string());
            let names = [gemm.layout, gemm.dtype, gemm.kernel].map(String::from);
            table.add_row(sizes.into_iter().chain(names).chain([gemm.calls.to_string()]));
        }
        println!("\nmatrix products of ours, embedding every sentence once:\n{table}");
        if self.gemms.len() > MAX_GEMMS {
            println!("and {} more shapes (--json lists all)", self.gemms.len() - MAX_GEMMS);
        }
    }
}
