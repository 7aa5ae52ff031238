//! Shapes of published llamas, without their weights.

use candle_transformers::models::llama::Config;

/// Llama-3.2-1B.
pub fn llama_1b() -> Config {
    Config { tie_word_embeddings: true, ..shape(2048, 8192, 128_256, 16, 32, 8) }
}

/// Llama-3.1-8B.
pub fn llama_8b() -> Config {
    shape(4096, 14_336, 128_256, 32, 32, 8)
}

/// A llama that a CPU runs in a moment.
pub fn tiny() -> Config {
    shape(128, 384, 512, 2, 4, 2)
}

fn shape(hidden: usize, wide: usize, vocabulary: usize, layers: usize, heads: usize, kv_heads: usize) -> Config {
    Config {
        hidden_size: hidden,
        intermediate_size: wide,
        vocab_size: vocabulary,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: kv_heads,
        use_flash_attn: false,
        rms_norm_eps: 1e-5,
        rope_theta: 500_000.0,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: 131_072,
        tie_word_embeddings: false,
    }
}
