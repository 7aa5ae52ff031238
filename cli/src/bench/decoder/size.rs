//! The decoders that are measured: sizes of published models.

use super::super::shapes;
use candle::quantized::GgmlDType;
use candle_tilegemm_models::Config;
use candle_transformers::models::{llama, qwen3_moe};
use serde::de::DeserializeOwned;

/// A decoder's sizes, and the formats of its weights.
#[derive(Debug, Clone)]
pub struct Size {
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head: usize,
    /// Numbers between the two products of a feed-forward part, of an expert where there are experts.
    pub inner: usize,
    pub vocabulary: usize,
    pub positions: usize,
    pub rope_base: f64,
    pub eps: f64,
    /// Whether the head has the weights of the embedding.
    pub tied: bool,
    pub experts: Option<Experts>,
    /// The newest positions that layers 0, 2, 4 and so on see; 0: all.
    pub window: usize,
    pub weights: Weights,
}

/// The experts of each layer.
#[derive(Debug, Clone, Copy)]
pub struct Experts {
    pub count: usize,
    pub per_token: usize,
}

/// The formats of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// bf16, and f32 on the CPU.
    Dense,
    /// The mix of files called Q4_K_M.
    Q4KM,
    /// Q4_1, and Q8_0 for the embedding.
    Q4_1,
    /// As compressed-tensors or gpt-oss has them; embedding, head and routers as in `Dense`.
    Narrow(Narrow),
}

/// Numbers of a row that share a factor in 4 bits.
pub const GROUP: usize = 128;

/// Formats of checkpoints with narrow weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Narrow {
    /// A factor for each row. `dynamic`: activations are rounded, too.
    Fp8 { dynamic: bool },
    /// 4 bits in groups of 128.
    Int4,
    /// Experts of gpt-oss in MXFP4, and what is not of them as in `Dense`.
    Mxfp4,
}

impl Narrow {
    /// The description of config.json.
    fn json(self) -> String {
        let (format, weights, activations) = match self {
            Self::Mxfp4 => {
                return r#", "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert":
                    ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}"#
                    .into()
            }
            Self::Fp8 { dynamic } => {
                let activations =
                    r#"{"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true, "symmetric": true}"#;
                let weights = r#""num_bits": 8, "type": "float", "strategy": "channel""#.to_string();
                ("float-quantized", weights, if dynamic { activations } else { "null" })
            }
            Self::Int4 => {
                let weights = format!(r#""num_bits": 4, "type": "int", "strategy": "group", "group_size": {GROUP}"#);
                ("pack-quantized", weights, "null")
            }
        };
        format!(
            r#", "quantization_config": {{"quant_method": "compressed-tensors", "format": "{format}", "ignore": ["lm_head"], "config_groups":
            {{"group_0": {{"targets": ["Linear"], "weights": {{{weights}, "symmetric": true}}, "input_activations": {activations}}}}}}}"#
        )
    }

    /// Bytes of a weight and its share of factors.
    pub fn bytes(self, columns: usize) -> f64 {
        match self {
            Self::Fp8 { .. } => 1.0 + 4.0 / columns as f64,
            Self::Int4 => 0.5 + 2.0 / GROUP as f64,
            Self::Mxfp4 => 0.5 + 1.0 / 32.0,
        }
    }
}

/// A matrix of a layer, by llama.cpp's name.
pub struct Matrix {
    pub name: &'static str,
    pub rows: usize,
    pub columns: usize,
    pub format: GgmlDType,
}

impl Size {
    /// The sizes of a name of `--decoder`.
    pub fn by_name(name: &str) -> Option<Self> {
        let q4_k_m = |size| Self { weights: Weights::Q4KM, ..size };
        let narrow = |size, narrow| Self { weights: Weights::Narrow(narrow), ..size };
        let tiny = || Self { positions: 256, ..Self::llama(shapes::tiny()) };
        Some(match name {
            "llama3-8b" => Self::llama(shapes::llama_8b()),
            "llama3-8b-q4_k_m" => q4_k_m(Self::llama(shapes::llama_8b())),
            "llama3-8b-fp8" => narrow(Self::llama(shapes::llama_8b()), Narrow::Fp8 { dynamic: false }),
            "llama3-8b-fp8-dynamic" => narrow(Self::llama(shapes::llama_8b()), Narrow::Fp8 { dynamic: true }),
            "llama3-8b-w4a16" => narrow(Self::llama(shapes::llama_8b()), Narrow::Int4),
            "llama3-1b" => Self::llama(shapes::llama_1b()),
            "llama3-70b" => llama_70b(),
            "qwen3-30b-a3b" => qwen3_30b_a3b(),
            "qwen3-30b-a3b-fp8" => narrow(qwen3_30b_a3b(), Narrow::Fp8 { dynamic: false }),
            "qwen3-30b-a3b-fp8-dynamic" => narrow(qwen3_30b_a3b(), Narrow::Fp8 { dynamic: true }),
            "gpt-oss-20b" => gpt_oss_20b(),
            "smollm2-135m" => smollm2_135m(),
            "smollm2-135m-q4_1" => Self { weights: Weights::Q4_1, ..smollm2_135m() },
            "tiny" => tiny(),
            "tiny-fp8" => narrow(tiny(), Narrow::Fp8 { dynamic: false }),
            "tiny-fp8-dynamic" => narrow(tiny(), Narrow::Fp8 { dynamic: true }),
            "tiny-w4a16" => narrow(tiny(), Narrow::Int4),
            "tiny-gpt-oss" => tiny_gpt_oss(),
            // Rows are whole blocks of 256 numbers.
            "tiny-q4_k_m" => {
                q4_k_m(Self { hidden: 256, head: 64, inner: 512, positions: 256, ..Self::llama(shapes::tiny()) })
            }
            _ => return None,
        })
    }

    fn llama(config: llama::Config) -> Self {
        Self {
            layers: config.num_hidden_layers,
            hidden: config.hidden_size,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head: config.hidden_size / config.num_attention_heads,
            inner: config.intermediate_size,
            vocabulary: config.vocab_size,
            positions: config.max_position_embeddings,
            rope_base: f64::from(config.rope_theta),
            eps: config.rms_norm_eps,
            tied: config.tie_word_embeddings,
            experts: None,
            window: 0,
            weights: Weights::Dense,
        }
    }

    /// The same as Hugging Face would have it.
    fn json(&self) -> String {
        let (family, experts) = match self.experts {
            None => ("llama", String::new()),
            Some(experts) if self.is_gpt_oss() => ("gpt_oss", self.json_of_gpt_oss(experts)),
            Some(experts) => ("qwen3_moe", self.json_of_qwen3(experts)),
        };
        format!(
            r#"{{"model_type": "{family}", {experts} "vocab_size": {}, "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {},
            "num_attention_heads": {}, "num_key_value_heads": {}, "max_position_embeddings": {}, "rms_norm_eps": {:e}, "rope_theta": {:.1},
            "tie_word_embeddings": {}{}}}"#,
            self.vocabulary,
            self.hidden,
            self.inner,
            self.layers,
            self.heads,
            self.kv_heads,
            self.positions,
            self.eps,
            self.rope_base,
            self.tied,
            match self.weights {
                Weights::Narrow(narrow) => narrow.json(),
                _ => String::new(),
            }
        )
    }

    fn json_of_qwen3(&self, Experts { count, per_token }: Experts) -> String {
        format!(
            r#""head_dim": {}, "attention_bias": false, "sliding_window": null, "max_window_layers": {}, "use_sliding_window": false,
            "hidden_act": "silu", "decoder_sparse_step": 1, "moe_intermediate_size": {}, "num_experts_per_tok": {per_token},
            "num_experts": {count}, "norm_topk_prob": true,"#,
            self.head, self.layers, self.inner
        )
    }

    fn json_of_gpt_oss(&self, Experts { count, per_token }: Experts) -> String {
        // As the published model: 32 times as many positions as it saw at first.
        format!(
            r#""head_dim": {}, "attention_bias": true, "sliding_window": {}, "hidden_act": "silu", "swiglu_limit": 7.0,
            "num_local_experts": {count}, "num_experts_per_tok": {per_token}, "rope_scaling": {{"rope_type": "yarn", "factor": 32.0,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": {}}},"#,
            self.head,
            self.window,
            self.positions / 32
        )
    }

    /// Whether the model is of the family gpt_oss: sinks, windows, YaRN, biases.
    pub fn is_gpt_oss(&self) -> bool {
        self.weights == Weights::Narrow(Narrow::Mxfp4)
    }

    /// The positions of so many that a layer sees from the last one.
    pub fn seen(&self, layer: usize, positions: usize) -> usize {
        if self.window > 0 && layer.is_multiple_of(2) {
            positions.min(self.window)
        } else {
            positions
        }
    }

    /// For our decoder.
    pub fn config(&self) -> candle::Result<Config> {
        Config::from_json(&self.json())
    }

    /// For candle's llama.
    pub fn llama_config(&self) -> crate::Result<llama::Config> {
        Ok(self.read::<llama::LlamaConfig>()?.into_config(false))
    }

    /// For candle's qwen3_moe.
    pub fn qwen3_moe_config(&self) -> crate::Result<qwen3_moe::Config> {
        self.read()
    }

    fn read<T: DeserializeOwned>(&self) -> crate::Result<T> {
        Ok(serde_json::from_str(&self.json())?)
    }

    /// The formats in words.
    pub fn format(&self, on_cpu: bool) -> &'static str {
        match self.weights {
            Weights::Dense if on_cpu => "f32",
            Weights::Dense => "bf16",
            Weights::Q4KM => "Q4_K_M",
            Weights::Q4_1 => "Q4_1",
            Weights::Narrow(Narrow::Fp8 { dynamic: false }) => "fp8 (W8A16)",
            Weights::Narrow(Narrow::Fp8 { dynamic: true }) => "fp8 (W8A8)",
            Weights::Narrow(Narrow::Int4) => "4 bits in groups of 128 (W4A16)",
            Weights::Narrow(Narrow::Mxfp4) => "MXFP4, without experts bf16",
        }
    }

    /// The format of the rows of tokens, and of a head of its own.
    pub fn tables(&self) -> [GgmlDType; 2] {
        match self.weights {
            Weights::Dense | Weights::Narrow(_) => [GgmlDType::BF16; 2],
            Weights::Q4KM => [GgmlDType::Q4K, GgmlDType::Q6K],
            Weights::Q4_1 => [GgmlDType::Q8_0; 2],
        }
    }

    /// The matrices of a layer without experts.
    pub fn matrices(&self, layer: usize) -> Vec<Matrix> {
        let (plain, better) = match self.weights {
            Weights::Dense | Weights::Narrow(_) => (GgmlDType::BF16, GgmlDType::BF16),
            Weights::Q4_1 => (GgmlDType::Q4_1, GgmlDType::Q4_1),
            Weights::Q4KM => (GgmlDType::Q4K, self.better(layer)),
        };
        let (q, kv) = (self.heads * self.head, self.kv_heads * self.head);
        [
            ("attn_q", q, self.hidden, plain),
            ("attn_k", kv, self.hidden, plain),
            ("attn_v", kv, self.hidden, better),
            ("attn_output", self.hidden, q, plain),
            ("ffn_gate", self.inner, self.hidden, plain),
            ("ffn_up", self.inner, self.hidden, plain),
            ("ffn_down", self.hidden, self.inner, better),
        ]
        .map(|(name, rows, columns, format)| Matrix { name, rows, columns, format })
        .into()
    }

    /// Q4_K_M has two matrices of half of the layers in Q6_K: those of the first and the last eighth, and of each third layer between.
    fn better(&self, layer: usize) -> GgmlDType {
        let eighth = self.layers / 8;
        let is_outer = layer < eighth || layer >= 7 * self.layers / 8;
        if is_outer || (layer - eighth) % 3 == 2 {
            GgmlDType::Q6K
        } else {
            GgmlDType::Q4K
        }
    }
}

fn llama_70b() -> Size {
    let large = Size::llama(shapes::llama_8b());
    Size { layers: 80, hidden: 8192, heads: 64, inner: 28_672, ..large }
}

fn qwen3_30b_a3b() -> Size {
    Size {
        layers: 48,
        hidden: 2048,
        heads: 32,
        kv_heads: 4,
        head: 128,
        inner: 768,
        vocabulary: 151_936,
        positions: 40_960,
        rope_base: 1e6,
        eps: 1e-6,
        tied: false,
        experts: Some(Experts { count: 128, per_token: 8 }),
        window: 0,
        weights: Weights::Dense,
    }
}

fn gpt_oss_20b() -> Size {
    Size {
        layers: 24,
        hidden: 2880,
        heads: 64,
        kv_heads: 8,
        head: 64,
        inner: 2880,
        vocabulary: 201_088,
        positions: 131_072,
        rope_base: 150_000.0,
        eps: 1e-5,
        tied: false,
        experts: Some(Experts { count: 32, per_token: 4 }),
        window: 128,
        weights: Weights::Narrow(Narrow::Mxfp4),
    }
}

/// The same in small. Prompts of tests are longer than the window.
fn tiny_gpt_oss() -> Size {
    Size {
        layers: 3,
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head: 32,
        inner: 32,
        vocabulary: 128,
        positions: 256,
        experts: Some(Experts { count: 4, per_token: 2 }),
        window: 4,
        ..gpt_oss_20b()
    }
}

fn smollm2_135m() -> Size {
    Size {
        layers: 30,
        hidden: 576,
        heads: 9,
        kv_heads: 3,
        head: 64,
        inner: 1536,
        vocabulary: 49_152,
        // Twice as many as the model has: contexts of 8192 have steps after them.
        positions: 16_384,
        rope_base: 1e5,
        eps: 1e-5,
        tied: true,
        experts: None,
        window: 0,
        weights: Weights::Dense,
    }
}
