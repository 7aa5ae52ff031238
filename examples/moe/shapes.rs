//! Shapes of published mixtures of experts, without their weights.

use candle_nn::Activation;
use candle_transformers::models::qwen3_moe::Config;

/// Qwen3-30B-A3B.
pub fn qwen3_30b_a3b() -> Config {
    Config {
        vocab_size: 151_936,
        hidden_size: 2048,
        intermediate_size: 6144,
        num_hidden_layers: 48,
        num_attention_heads: 32,
        num_key_value_heads: 4,
        head_dim: 128,
        moe_intermediate_size: 768,
        num_experts: 128,
        num_experts_per_tok: 8,
        ..qwen3_tiny()
    }
}

/// A model that a CPU runs in a moment. Rows and columns of its experts are multiples of 8, as our kernels for experts need.
pub fn qwen3_tiny() -> Config {
    Config {
        vocab_size: 512,
        hidden_size: 128,
        intermediate_size: 256,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 32,
        attention_bias: false,
        max_position_embeddings: 40_960,
        sliding_window: None,
        max_window_layers: 0,
        tie_word_embeddings: false,
        rope_theta: 1e6,
        rms_norm_eps: 1e-6,
        use_sliding_window: false,
        hidden_act: Activation::Silu,
        decoder_sparse_step: 1,
        moe_intermediate_size: 64,
        num_experts_per_tok: 2,
        num_experts: 8,
        norm_topk_prob: true,
    }
}

/// The sizes of one layer of experts.
pub struct Experts {
    pub hidden: usize,
    pub between: usize,
    pub experts: usize,
    pub top_k: usize,
}

/// Mixtral 8x7B.
pub fn mixtral_8x7b() -> Experts {
    Experts { hidden: 4096, between: 14_336, experts: 8, top_k: 2 }
}

/// A layer that a CPU runs in a moment.
pub fn mixtral_tiny() -> Experts {
    Experts { hidden: 128, between: 256, experts: 8, top_k: 2 }
}
