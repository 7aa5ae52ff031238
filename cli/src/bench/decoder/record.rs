//! The JSON record of the decoder benchmark, schema 1.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const SCHEMA: u32 = 1;
/// The arm of unmodified candle.
pub const STOCK: &str = "stock";
/// Our decoder, each step launched by the host.
pub const EAGER: &str = "eager";
/// Our decoder, steps captured as graphs.
pub const CAPTURED: &str = "captured";
/// Our decoder where steps do not count.
pub const OURS: &str = "ours";

/// How the reason begins where something went wrong.
pub const FAILED: &str = "failed";

/// The largest distance of the logits of both arms, by which both have the same weights.
const SAME: f64 = 0.5;

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecoderReport {
    pub schema: u32,
    pub gpu: String,
    pub model: String,
    /// The formats of the weights.
    pub weights: String,
    /// GB of weights that a step of one sequence reads.
    pub weights_gb: f64,
    /// Cards that computed ours together.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub cards: usize,
    /// The limits of all cards together; absent on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// The start of each arm, by name: `stock`, `ours`.
    pub starts: BTreeMap<String, Start>,
    pub prefill: Vec<Prefill>,
    pub decode: Vec<Decode>,
    /// Where both have run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<Agreement>,
    /// What must not be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<String>,
    /// What was not measured, with the reason.
    #[serde(default)]
    pub left_out: BTreeMap<String, String>,
}

fn one() -> usize {
    1
}

fn is_one(cards: &usize) -> bool {
    *cards == 1
}

/// Measured in the same run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub hbm_gbps: f64,
    /// Of bf16 products.
    pub tflops: f64,
}

/// From nothing to the first token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Seconds until the model is on the device. Random weights come from no disk.
    pub load_s: f64,
    /// Then until the first token after a prompt: kernels are loaded and chosen in that time.
    pub first_token_ms: f64,
    pub prompt: usize,
}

/// A prompt of one sequence, up to the logits of its last token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prefill {
    pub tokens: usize,
    /// The least time by the card's limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roof_ms: Option<f64>,
    /// `stock`, `ours`.
    pub arms: BTreeMap<String, Timed>,
}

/// Steps of all sequences, each after so many tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decode {
    pub context: usize,
    pub sequences: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roof_ms: Option<f64>,
    /// `stock`, `eager`, `captured`.
    pub arms: BTreeMap<String, Timed>,
}

/// Milliseconds of a prompt or a step, median and extremes over the runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    pub ms: f64,
    pub ms_min: f64,
    pub ms_max: f64,
    pub runs: usize,
    /// Of all sequences.
    pub tokens_per_s: f64,
}

/// The logits after the first prompt, ours against stock's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    pub prompt: usize,
    /// |ours - stock| / |stock|, Euclidean.
    pub relative_l2: f64,
    pub same_token: bool,
}

impl Agreement {
    pub fn between(prompt: usize, stock: &[f32], ours: &[f32]) -> Self {
        let norm = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let apart = norm(&mut stock.iter().zip(ours).map(|(x, y)| x - y));
        let size = norm(&mut stock.iter().copied());
        let largest = |logits: &[f32]| logits.iter().enumerate().max_by(|x, y| x.1.total_cmp(y.1)).map(|(at, _)| at);
        let same_token = largest(stock) == largest(ours);
        Self { prompt, relative_l2: apart / size.max(f64::MIN_POSITIVE), same_token }
    }

    /// Whether roundings explain the distance.
    pub fn is_close(&self) -> bool {
        self.relative_l2 <= SAME
    }
}

impl DecoderReport {
    /// Whether the run is a failure: a result is wrong, or a case ended with an error.
    pub fn is_bad(&self) -> bool {
        !self.wrong.is_empty() || self.left_out.values().any(|reason| reason.starts_with(FAILED))
    }

    /// The row of a prompt.
    pub fn prefill_of(&mut self, tokens: usize) -> &mut Prefill {
        let at = self.prefill.iter().position(|row| row.tokens == tokens).unwrap_or_else(|| {
            self.prefill.push(Prefill { tokens, roof_ms: None, arms: BTreeMap::new() });
            self.prefill.len() - 1
        });
        &mut self.prefill[at]
    }

    /// The row of a step.
    pub fn decode_of(&mut self, [context, sequences]: [usize; 2]) -> &mut Decode {
        let same = |row: &Decode| (row.context, row.sequences) == (context, sequences);
        let at = self.decode.iter().position(same).unwrap_or_else(|| {
            self.decode.push(Decode { context, sequences, roof_ms: None, arms: BTreeMap::new() });
            self.decode.len() - 1
        });
        &mut self.decode[at]
    }
}
