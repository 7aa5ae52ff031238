//! What a run of a model is, and the memory that it takes.

use crate::Failure;
use candle::DType;
use candle_transformers::models::llama::Config;
use std::fmt;

/// Memory that weights, cache and temporaries leave free for cuBLAS, for the kernels' code and for the pool's rounding.
pub const RESERVE: f64 = GIB;
pub const GIB: f64 = (1u64 << 30) as f64;
pub const STOPPED: &str = "stopped before it was measured";

/// One configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    pub prompt: usize,
    pub batch: usize,
    pub decode: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "prompt {}, batch {}", self.prompt, self.batch)
    }
}

/// The same tokens in every run, different ones in every sequence of the batch.
pub fn tokens(batch: usize, length: usize, from: usize, vocabulary: usize) -> Vec<u32> {
    let token = |sequence: usize, position: usize| {
        let mixed =
            (sequence as u32).wrapping_mul(0x9e37_79b9).wrapping_add(position as u32).wrapping_mul(2_654_435_761);
        mixed % vocabulary as u32
    };
    (0..batch).flat_map(|sequence| (from..from + length).map(move |position| token(sequence, position))).collect()
}

/// Peak bytes of a run, besides the weights, in candle-transformers 0.11.1.
///
/// Variables there shadow each other, so tensors live to the end of their function: queries projected, contiguous and
/// rotated; keys and values before and after their repetition for the query's heads; all of these once more in f32; and
/// the scores scaled, masked and normalised.
pub fn bytes_to_run(config: &Config, dtype: DType, case: &Case) -> f64 {
    let [batch, prompt, steps] = [case.batch, case.prompt, case.decode].map(|x| x as f64);
    let [hidden, wide, vocabulary] =
        [config.hidden_size, config.intermediate_size, config.vocab_size].map(|x| x as f64);
    let [heads, layers] = [config.num_attention_heads, config.num_hidden_layers].map(|x| x as f64);
    let kv = kv_width(config);
    let size = dtype.size_in_bytes() as f64;
    let upcast = if dtype == DType::F32 { 0.0 } else { 4.0 };
    let (rows, context) = (batch * prompt, batch * (prompt + steps));

    // The input and its norm, three queries, repeated keys and values, the result; the last four in f32 too.
    let heads_of_all = rows * hidden * (8.0 * size + 4.0 * upcast);
    let scores = 3.0 * batch * heads * prompt * prompt * 4.0;
    let attention = heads_of_all + rows * kv * 3.0 * size + scores + prompt * prompt;
    let mlp = rows * size * (5.0 * hidden + 4.0 * wide);
    // For each new token, the cache of one layer at a time is copied, repeated and upcast.
    let step = context * (6.0 * kv * size + 2.0 * hidden * (size + upcast) + 3.0 * heads * 4.0);
    let cache = 2.0 * layers * context * kv * size;
    let logits = batch * vocabulary * (size + 4.0 * (steps + 2.0));
    cache + logits + attention.max(mlp).max(step)
}

/// Length of a token's key, and of its value, over all heads.
pub fn kv_width(config: &Config) -> f64 {
    (config.hidden_size / config.num_attention_heads * config.num_key_value_heads) as f64
}

/// The message of an error that reports a lack of device memory.
pub fn out_of_memory(failure: &Failure) -> Option<String> {
    let Failure::Error(error) = failure else { return None };
    let message = error.to_string();
    let signs = ["OUT_OF_MEMORY", "out of memory", "ALLOC_FAILED"];
    let first_line = || message.lines().next().unwrap_or_default().to_owned(); // a backtrace may follow
    signs.iter().any(|sign| message.contains(sign)).then(first_line)
}
