//! The JSON record of the model benchmark, schema 1, and the record's table.

use candle::{DType, Tensor};
use candle_tilegemm::interpose::Stats;
use candle_tilegemm::stats::GemmCount;
use comfy_table::{presets::ASCII_MARKDOWN, CellAlignment, Table};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const SCHEMA: u32 = 1;
/// The arm of unmodified candle.
pub const STOCK: &str = "stock";

/// The largest permitted ratio of our error to stock's.
const TOLERANCE: f64 = 1.2;

/// Rows of a configuration in the table of kernels.
const MOST_PRODUCTS: usize = 8;

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelReport {
    pub schema: u32,
    pub gpu: String,
    pub model: String,
    /// `seeded random`, or the name of the weights' folder.
    pub weights: String,
    pub dtype: String,
    pub rows: Vec<Row>,
    /// Requests that were not measured, with the reason.
    #[serde(default)]
    pub left_out: BTreeMap<String, String>,
}

/// One configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Tokens of each sequence.
    pub prompt: usize,
    /// Sequences.
    pub batch: usize,
    /// Tokens that are decoded after the prompt.
    pub decode: usize,
    /// The arms by name: `stock`, `ours`.
    pub arms: BTreeMap<String, Arm>,
    /// The products of one run of ours, in prefill and decode; products with the most arithmetic first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub products: Vec<Product>,
}

/// One arm of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// The forward of the whole prompt.
    pub prefill: Phase,
    /// The forwards of one token per sequence; absent for encoders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<Phase>,
    /// The difference of the outputs from stock's; absent for stock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<Agreement>,
    /// The errors of the outputs against f64: `logits`, or an encoder's `states` and their means, `embeddings`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, Error>,
}

/// Milliseconds of one forward, median and extremes over the runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    pub ms: f64,
    pub ms_min: f64,
    pub ms_max: f64,
    pub runs: usize,
    /// Tokens of the whole batch.
    pub tokens_per_s: f64,
    /// Median with products that launch nothing; absent on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_ms: Option<f64>,
    pub gemms: Gemms,
}

/// The products of some forwards, as counted by the interposer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gemms {
    pub forwards: usize,
    pub calls: u64,
    /// Products on our kernels.
    pub ours: u64,
    /// Products on cuBLAS, by reason.
    pub forwarded: BTreeMap<String, u64>,
}

/// The difference of an arm's outputs from stock's, over the prefill and every decode step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// |arm - stock| / |stock|, Euclidean, of the worst step.
    pub relative_l2: f64,
    /// Share of the predictions whose largest logit is the same token; absent for encoders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_token: Option<f64>,
    /// The number of prefill and decode steps.
    pub steps: usize,
}

/// Largest and root mean square distance to the f64 outputs, over the root mean square of the f64 outputs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Error {
    pub max: f64,
    pub rms: f64,
}

/// Products of one shape, and the kernel that ran them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Product {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub batch: usize,
    pub layout: String,
    pub dtype: String,
    pub kernel: String,
    pub calls: u64,
}

impl Phase {
    /// The products' share of the time: the share that a forward saves when products cost nothing.
    pub fn gemm_share(&self) -> Option<f64> {
        Some((1.0 - self.dry_ms? / self.ms).max(0.0))
    }
}

impl Gemms {
    pub fn new(stats: &Stats, forwards: usize) -> Self {
        let name = |reason| serde_json::to_value(reason).ok().and_then(|name| Some(name.as_str()?.to_owned()));
        let forwarded = stats.forwarded.iter().map(|(reason, count)| (name(reason).unwrap_or_default(), *count));
        Self { forwards, calls: stats.calls(), ours: stats.ours, forwarded: forwarded.collect() }
    }

    /// `225, 97.3 % ours`: the products of one forward.
    fn cell(&self) -> String {
        match self.calls {
            0 => "-".into(),
            calls => {
                format!("{}, {} ours", calls / self.forwards.max(1) as u64, percent(self.ours as f64 / calls as f64))
            }
        }
    }
}

impl Agreement {
    /// Compares the outputs of the steps. Where the outputs are logits, (sequences, vocabulary), the predictions are
    /// compared too.
    pub fn between(stock: &[Tensor], arm: &[Tensor], logits: bool) -> crate::Result<Self> {
        let (mut worst, mut same, mut predictions) = (0f64, 0, 0);
        for (stock, arm) in stock.iter().zip(arm) {
            let length = stock.dim(candle::D::Minus1)?;
            let [stock, arm] = [flat(stock)?, flat(arm)?];
            if !stock.iter().chain(&arm).all(|x| x.is_finite()) {
                return Err("an output of the model is not finite; TILEGEMM=off tells whether stock's is".into());
            }
            let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
            let error = squares(&mut stock.iter().zip(&arm).map(|(x, y)| x - y));
            let size = squares(&mut stock.iter().copied());
            worst = worst.max((error / size.max(f64::MIN_POSITIVE)).sqrt());
            if logits {
                let pairs = stock.chunks(length).zip(arm.chunks(length));
                same += pairs.filter(|(stock, arm)| largest(stock) == largest(arm)).count();
                predictions += stock.len() / length;
            }
        }
        let same_token = (predictions > 0).then(|| same as f64 / predictions as f64);
        Ok(Self { relative_l2: worst, same_token, steps: stock.len() })
    }
}

impl Error {
    fn between(outputs: &[Tensor], reference: &[Tensor]) -> candle::Result<Self> {
        let (mut max, mut error, mut size, mut count) = (0f64, 0.0, 0.0, 0);
        for (output, reference) in outputs.iter().zip(reference) {
            let doubles = |tensor: &Tensor| tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
            let (output, reference) = (doubles(output)?, doubles(reference)?);
            for (x, exact) in output.iter().zip(&reference) {
                max = max.max((x - exact).abs());
                error += (x - exact).powi(2);
                size += exact.powi(2);
            }
            count += reference.len();
        }
        if !(max / size).is_finite() || !(error / size).is_finite() {
            candle::bail!("the reference in f64 is not finite, or zero");
        }
        Ok(Self { max: max / (size / count as f64).sqrt(), rms: (error / size).sqrt() })
    }
}

/// The errors of all outputs of a model.
pub fn errors(outputs: &[Tensor], reference: &[Tensor], logits: bool) -> candle::Result<BTreeMap<String, Error>> {
    let errors = Error::between(outputs, reference)?;
    if logits {
        return Ok([("logits".into(), errors)].into());
    }
    // Without padding, a sentence's embedding is the mean over all of its tokens.
    let means =
        |states: &[Tensor]| states.iter().map(|x| x.to_dtype(DType::F64)?.mean(1)).collect::<candle::Result<Vec<_>>>();
    let means = Error::between(&means(outputs)?, &means(reference)?)?;
    Ok([("states".into(), errors), ("embeddings".into(), means)].into())
}

/// The products that ran between two readings of `stats::gemms`.
pub fn products(before: &[GemmCount], after: Vec<GemmCount>) -> Vec<Product> {
    let count = |gemm: GemmCount| {
        let product = |of: &GemmCount| (of.m, of.n, of.k, of.batch, of.layout, of.dtype, of.out, of.kernel);
        let same = |other: &&GemmCount| product(other) == product(&gemm);
        let calls = gemm.calls - before.iter().find(same).map_or(0, |other| other.calls);
        let GemmCount { m, n, k, batch, .. } = gemm;
        let [layout, dtype, kernel] = [gemm.layout, gemm.dtype, gemm.kernel].map(String::from);
        Product { m, n, k, batch, layout, dtype, kernel, calls }
    };
    let mut products: Vec<_> = after.into_iter().map(count).filter(|product| product.calls > 0).collect();
    products.sort_by_key(|x| std::cmp::Reverse((x.m * x.n * x.k * x.batch) as u64 * x.calls));
    products
}

fn flat(tensor: &Tensor) -> candle::Result<Vec<f32>> {
    tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

fn largest(values: &[f32]) -> Option<usize> {
    values.iter().enumerate().max_by(|x, y| x.1.total_cmp(y.1)).map(|(index, _)| index)
}

impl ModelReport {
    /// Descriptions of the outputs that are farther from f64 than stock's.
    pub fn worse(&self) -> Vec<String> {
        let mut worse = Vec::new();
        for row in &self.rows {
            for (name, output, error, stock) in with_stock(row) {
                let at = format!("prompt {}, batch {}", row.prompt, row.batch);
                let mut compare = |what, ours: f64, stock: f64| {
                    let times = ours / stock;
                    if times > TOLERANCE {
                        worse.push(format!("{at}: {what} error of {output} of {name} is {times:.2} x stock's"));
                    }
                };
                compare("RMS", error.rms, stock.rms);
                // In half precision the arms round differently, and the worst element is chance.
                if self.dtype == "f32" {
                    compare("largest", error.max, stock.max);
                }
            }
        }
        worse
    }
}

/// Arm, output, its error and stock's.
fn with_stock(row: &Row) -> impl Iterator<Item = (&String, &String, &Error, &Error)> {
    let stock = |output| row.arms.get(STOCK)?.errors.get(output);
    let all = arms(row).flat_map(|(name, arm)| arm.errors.iter().map(move |(output, error)| (name, output, error)));
    all.filter_map(move |(name, output, error)| Some((name, output, error, stock(output)?)))
}

/// The arms, stock first, because the other arms are compared with stock.
fn arms(row: &Row) -> impl Iterator<Item = (&String, &Arm)> {
    let stock = row.arms.iter().filter(|(name, _)| *name == STOCK);
    stock.chain(row.arms.iter().filter(|(name, _)| *name != STOCK))
}

/// The report as text.
pub fn table(report: &ModelReport) -> String {
    let ModelReport { model, weights, dtype, gpu, rows, .. } = report;
    let mut lines = vec![format!("{model} {dtype}, {weights} weights, on {gpu}\n")];
    if !rows.is_empty() {
        lines.push(format!("{}\n", times(rows)));
        lines.push(format!("{}\n", outputs(rows)));
        if rows.iter().any(|row| row.arms.values().any(|arm| !arm.errors.is_empty())) {
            lines.push(format!("{}\n", accuracy(rows)));
        }
        if rows.iter().any(|row| !row.products.is_empty()) {
            lines.push(format!("{}\n", kernels(rows)));
        }
        lines.push(
            "Medians and extremes of runs in turns; tokens/s of the whole batch; vs stock: how much faster.".into(),
        );
        lines.push("GEMM time: what a run is faster by when products launch nothing.".into());
        lines.push("Errors: distance to the same outputs in f64, over the root mean square of those.".into());
    }
    if gpu == "CPU" {
        lines.push("\nOn a CPU both arms are candle's own: there is nothing to compare.".into());
    }
    lines.extend(report.worse().iter().map(|what| format!("\nWORSE: {what}")));
    if !report.left_out.is_empty() {
        lines.push("\nLeft out:".into());
        lines.extend(report.left_out.iter().map(|(name, reason)| format!("  {name}: {reason}")));
    }
    lines.join("\n")
}

fn new_table(header: &[&str], text_columns: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for (index, column) in table.column_iter_mut().enumerate() {
        if !text_columns.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn times(rows: &[Row]) -> Table {
    let decodes = rows.iter().any(|row| row.arms.values().any(|arm| arm.decode.is_some()));
    let mut header = vec!["prompt", "batch", "arm", "prefill ms", "min - max", "vs stock", "GEMM time"];
    if decodes {
        header.extend(["decode tokens/s", "min - max", "vs stock", "GEMM time"]);
    } else {
        header.push("sequences/s");
    }
    let mut table = new_table(&header, &[2]);
    for row in rows {
        let stock = row.arms.get(STOCK);
        for (name, arm) in arms(row) {
            let faster = |phase: &Phase, stock: Option<&Phase>| {
                stock.map_or("-".into(), |stock| format!("{:.2}", stock.ms / phase.ms))
            };
            let share = |phase: &Phase| phase.gemm_share().map_or("-".into(), percent);
            let Phase { ms, ms_min, ms_max, .. } = arm.prefill;
            let mut cells = vec![row.prompt.to_string(), row.batch.to_string(), name.clone()];
            cells.extend([format!("{ms:.2}"), format!("{ms_min:.2} - {ms_max:.2}")]);
            cells.extend([faster(&arm.prefill, stock.map(|stock| &stock.prefill)), share(&arm.prefill)]);
            match &arm.decode {
                Some(phase) => {
                    let at = |ms: f64| phase.tokens_per_s * phase.ms / ms;
                    let extremes = format!("{:.1} - {:.1}", at(phase.ms_max), at(phase.ms_min));
                    cells.extend([format!("{:.1}", phase.tokens_per_s), extremes]);
                    cells.extend([faster(phase, stock.and_then(|stock| stock.decode.as_ref())), share(phase)]);
                }
                None if decodes => cells.extend(vec!["-".into(); header.len() - cells.len()]),
                None => cells.push(format!("{:.1}", row.batch as f64 * 1e3 / ms)),
            }
            table.add_row(cells);
        }
    }
    table
}

/// The products on our kernels and on cuBLAS, and the difference of the outputs from stock's.
fn outputs(rows: &[Row]) -> Table {
    let header =
        ["prompt", "batch", "arm", "GEMMs of a prefill", "of a decode step", "relative L2 to stock", "same token"];
    let mut table = new_table(&header, &[2]);
    for row in rows {
        for (name, arm) in arms(row) {
            let decode = arm.decode.as_ref().map_or("-".into(), |phase| phase.gemms.cell());
            let (relative, same) = match &arm.agreement {
                Some(Agreement { relative_l2, same_token, .. }) => {
                    (format!("{relative_l2:.1e}"), same_token.map_or("-".into(), percent))
                }
                None => ("-".into(), "-".into()),
            };
            let sizes = [row.prompt.to_string(), row.batch.to_string()];
            table.add_row(sizes.into_iter().chain([name.clone(), arm.prefill.gemms.cell(), decode, relative, same]));
        }
    }
    table
}

/// The errors of each arm's outputs against f64.
fn accuracy(rows: &[Row]) -> Table {
    let header = ["prompt", "batch", "arm", "output", "RMS error", "vs stock", "largest error", "vs stock"];
    let mut table = new_table(&header, &[2, 3]);
    for row in rows {
        for (name, output, error, stock) in with_stock(row) {
            let names = [row.prompt.to_string(), row.batch.to_string(), name.clone(), output.clone()];
            let pairs = [(error.rms, stock.rms), (error.max, stock.max)];
            let cells = pairs.iter().flat_map(|(ours, stock)| [format!("{ours:.2e}"), format!("{:.2}", ours / stock)]);
            table.add_row(names.into_iter().chain(cells));
        }
    }
    table
}

/// The products of each row with the most arithmetic.
fn kernels(rows: &[Row]) -> Table {
    let header = ["prompt", "batch", "m", "n", "k", "matrices", "layout", "dtype", "kernel of ours", "calls"];
    let mut table = new_table(&header, &[6, 7, 8]);
    for row in rows {
        for product in row.products.iter().take(MOST_PRODUCTS) {
            let sizes = [row.prompt, row.batch, product.m, product.n, product.k, product.batch].map(|x| x.to_string());
            let names = [&product.layout, &product.dtype, &product.kernel].map(String::from);
            table.add_row(sizes.into_iter().chain(names).chain([product.calls.to_string()]));
        }
    }
    table
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
