//! What the model benchmark leaves behind: its JSON record, schema 1, and the table of it.

use super::STOCK;
use candle::{DType, Tensor};
use candle_tilegemm::interpose::Stats;
use comfy_table::{presets::ASCII_MARKDOWN, CellAlignment, Table};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const SCHEMA: u32 = 1;

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelReport {
    pub schema: u32,
    pub gpu: String,
    pub model: String,
    /// `seeded random`, or the name of their folder.
    pub weights: String,
    pub dtype: String,
    pub rows: Vec<Row>,
    /// What was asked for and not measured, and why.
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
    /// By name: `stock`, `ours`.
    pub arms: BTreeMap<String, Arm>,
}

/// One arm of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// The forward of the whole prompt.
    pub prefill: Phase,
    /// The forwards of one token per sequence; absent for encoders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<Phase>,
    /// How far the outputs are from stock's; absent for stock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<Agreement>,
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

/// The products of some forwards, as the interposer saw them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gemms {
    pub forwards: usize,
    pub calls: u64,
    /// Ran on our kernels.
    pub ours: u64,
    /// Went to cuBLAS, by reason.
    pub forwarded: BTreeMap<String, u64>,
}

/// How far the outputs of an arm are from stock's, over the prefill and every decode step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// |arm - stock| / |stock|, Euclidean, of the worst step.
    pub relative_l2: f64,
    /// Share of the predictions whose largest logit is the same token; absent for encoders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_token: Option<f64>,
    /// Prefill and decode steps.
    pub steps: usize,
}

impl Phase {
    /// The share of the time that its products take: what a forward is faster by when they cost nothing.
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

    /// `225, 97.3 % ours`: of one forward.
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
    /// Compares the steps' outputs; where they are logits, (sequences, vocabulary), their predictions too.
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

fn flat(tensor: &Tensor) -> candle::Result<Vec<f32>> {
    tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

fn largest(values: &[f32]) -> Option<usize> {
    values.iter().enumerate().max_by(|x, y| x.1.total_cmp(y.1)).map(|(index, _)| index)
}

/// Stock first: what the others are compared with.
fn arms(row: &Row) -> impl Iterator<Item = (&String, &Arm)> {
    let stock = row.arms.iter().filter(|(name, _)| *name == STOCK);
    stock.chain(row.arms.iter().filter(|(name, _)| *name != STOCK))
}

/// The report for people.
pub fn table(report: &ModelReport) -> String {
    let ModelReport { model, weights, dtype, gpu, rows, .. } = report;
    let mut lines = vec![format!("{model} {dtype}, {weights} weights, on {gpu}\n")];
    if !rows.is_empty() {
        lines.push(format!("{}\n", times(rows)));
        lines.push(format!("{}\n", products(rows)));
        lines.push(
            "Medians and extremes of runs in turns; tokens/s of the whole batch; vs stock: how much faster.".into(),
        );
        lines.push("GEMM time: what a run is faster by when products launch nothing.".into());
    }
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
                None => cells.extend(vec!["-".into(); header.len() - cells.len()]),
            }
            table.add_row(cells);
        }
    }
    table
}

/// What the interposer saw, and how far the outputs are from stock's.
fn products(rows: &[Row]) -> Table {
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

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
