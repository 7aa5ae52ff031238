//! What a step and a prompt take at least: bytes, and operations of products.

use super::record::Limits;
use super::size::{Matrix, Narrow, Size, Weights};
use candle::quantized::GgmlDType;

impl Limits {
    /// Those of so many cards, which share bytes and operations.
    pub fn of_cards(self, cards: usize) -> Self {
        let cards = cards as f64;
        Self { hbm_gbps: self.hbm_gbps * cards, tflops: self.tflops * cards }
    }

    /// Milliseconds of a step of all sequences. `of_cache`: bytes of a number of keys and values.
    pub fn step_ms(&self, size: &Size, context: usize, sequences: usize, of_cache: f64) -> f64 {
        self.ms(step_bytes(size, sequences, 2.0) + cache_bytes(size, context, of_cache) * sequences as f64, 0.0)
    }

    /// Milliseconds of a prompt of one sequence.
    pub fn prefill_ms(&self, size: &Size, tokens: usize, of_cache: f64) -> f64 {
        self.ms(step_bytes(size, tokens, 2.0) + cache_bytes(size, tokens, of_cache), prefill_flops(size, tokens))
    }

    fn ms(&self, bytes: f64, flops: f64) -> f64 {
        (bytes / self.hbm_gbps / 1e6).max(flops / self.tflops / 1e9)
    }
}

/// Bytes of the weights that `rows` tokens need, each for itself: those of the layers, of the experts that they choose if each is as probable, and of the head.
/// `dense`: bytes of a number of dense weights.
pub fn step_bytes(size: &Size, rows: usize, dense: f64) -> f64 {
    let is_attention = |matrix: &Matrix| matrix.name.starts_with("attn");
    let of_matrix = |matrix: &Matrix| match size.weights {
        // Those of experts alone are narrow.
        Weights::Narrow(Narrow::Mxfp4) if is_attention(matrix) => dense,
        Weights::Narrow(narrow) => narrow.bytes(matrix.columns),
        _ => of_number(matrix.format, dense),
    };
    let bytes = |matrix: &Matrix| (matrix.rows * matrix.columns) as f64 * of_matrix(matrix);
    let layer = |layer: usize| -> f64 {
        let matrices = size.matrices(layer);
        match size.experts {
            None => matrices.iter().map(bytes).sum(),
            Some(experts) => {
                let (attention, expert): (Vec<_>, Vec<_>) = matrices.iter().partition(|matrix| is_attention(matrix));
                let [attention, expert] = [attention, expert].map(|of| of.into_iter().map(bytes).sum::<f64>());
                let [count, per_token] = [experts.count, experts.per_token].map(|x| x as f64);
                let chosen = count * (1.0 - (1.0 - per_token / count).powi(rows as i32));
                attention + count * size.hidden as f64 * dense + chosen * expert
            }
        }
    };
    let [_, head] = size.tables();
    let head = if size.tied { size.tables()[0] } else { head };
    (0..size.layers).map(layer).sum::<f64>() + (size.vocabulary * size.hidden) as f64 * of_number(head, dense)
}

/// All bytes of the weights.
pub fn bytes(size: &Size, dense: f64) -> f64 {
    let table =
        if size.tied { 0.0 } else { (size.vocabulary * size.hidden) as f64 * of_number(size.tables()[0], dense) };
    // So many tokens need every expert.
    step_bytes(size, 1 << 20, dense) + table
}

/// Bytes of K and V of a sequence that a step reads.
pub fn cache_bytes(size: &Size, context: usize, of_number: f64) -> f64 {
    let seen: usize = (0..size.layers).map(|layer| size.seen(layer, context)).sum();
    (2 * size.kv_heads * size.head * seen) as f64 * of_number
}

/// Bytes of a number of keys and values on a GPU. In fp8 each head of a position has a scale.
pub fn of_cache(size: &Size, fp8: bool) -> f64 {
    if fp8 {
        1.0 + 4.0 / size.head as f64
    } else {
        2.0
    }
}

fn of_number(format: GgmlDType, dense: f64) -> f64 {
    match format {
        GgmlDType::BF16 => dense,
        format => format.type_size() as f64 / format.block_size() as f64,
    }
}

fn prefill_flops(size: &Size, length: usize) -> f64 {
    let of = |matrix: &Matrix| {
        let is_of_expert = size.experts.is_some() && matrix.name.starts_with("ffn");
        let times = size.experts.filter(|_| is_of_expert).map_or(1, |experts| experts.per_token);
        (matrix.rows * matrix.columns * times) as f64
    };
    let router = size.experts.map_or(0.0, |experts| (experts.count * size.hidden) as f64);
    let layer = size.matrices(0).iter().map(of).sum::<f64>() + router;
    let (layers, tokens) = (size.layers as f64, length as f64);
    // Scores and values of all tokens before, or of those in the window.
    let attention = |layer: usize| {
        let seen = size.seen(layer, length) as f64;
        4.0 * (size.heads * size.head) as f64 * seen * (tokens - seen / 2.0)
    };
    let attention: f64 = (0..size.layers).map(attention).sum();
    let head = 2.0 * (size.vocabulary * size.hidden) as f64;
    layers * 2.0 * layer * tokens + attention + head
}
