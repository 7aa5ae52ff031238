//! Sizes of models, from their published configurations. Never change, remove or move an entry: the lists of all seeds would change.

/// The sizes of a model that its products have.
#[derive(Debug)]
pub(super) struct Model {
    pub name: &'static str,
    pub hidden: usize,
    /// Of a model with experts, the size of one expert.
    pub ffn: usize,
    /// Elements of an attention head.
    pub head: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub vocabulary: usize,
    /// Whether the feed-forward layer has a gate.
    pub gated: bool,
}

const fn model(name: &'static str, [hidden, ffn, head, heads, kv_heads, vocabulary]: [usize; 6], gated: bool) -> Model {
    Model { name, hidden, ffn, head, heads, kv_heads, vocabulary, gated }
}

pub(super) const MODELS: [Model; 36] = [
    model("Llama-3.1-8B", [4096, 14336, 128, 32, 8, 128256], true),
    model("Llama-3.2-1B", [2048, 8192, 64, 32, 8, 128256], true),
    model("Llama-3.2-3B", [3072, 8192, 128, 24, 8, 128256], true),
    model("Llama-3.1-70B", [8192, 28672, 128, 64, 8, 128256], true),
    model("Llama-3.1-405B", [16384, 53248, 128, 128, 8, 128256], true),
    model("Llama-2-7B", [4096, 11008, 128, 32, 32, 32000], true),
    model("Llama-2-13B", [5120, 13824, 128, 40, 40, 32000], true),
    model("TinyLlama-1.1B", [2048, 5632, 64, 32, 4, 32000], true),
    model("Mistral-7B", [4096, 14336, 128, 32, 8, 32768], true),
    model("Mixtral-8x7B", [4096, 14336, 128, 32, 8, 32000], true),
    model("Qwen2.5-0.5B", [896, 4864, 64, 14, 2, 151936], true),
    model("Qwen2.5-1.5B", [1536, 8960, 128, 12, 2, 151936], true),
    model("Qwen2.5-7B", [3584, 18944, 128, 28, 4, 152064], true),
    model("Qwen2.5-14B", [5120, 13824, 128, 40, 8, 152064], true),
    model("Qwen2.5-32B", [5120, 27648, 128, 40, 8, 152064], true),
    model("Qwen2.5-72B", [8192, 29568, 128, 64, 8, 152064], true),
    model("Qwen3-30B-A3B", [2048, 768, 128, 32, 4, 151936], true),
    model("Gemma-2-2B", [2304, 9216, 256, 8, 4, 256000], true),
    model("Gemma-2-9B", [3584, 14336, 256, 16, 8, 256000], true),
    model("Gemma-2-27B", [4608, 36864, 128, 32, 16, 256000], true),
    model("Phi-3-mini", [3072, 8192, 96, 32, 32, 32064], true),
    model("Phi-4", [5120, 17920, 128, 40, 10, 100352], true),
    model("SmolLM2-135M", [576, 1536, 64, 9, 3, 49152], true),
    model("SmolLM2-1.7B", [2048, 8192, 64, 32, 32, 49152], true),
    model("Falcon-7B", [4544, 18176, 64, 71, 1, 65024], false),
    model("GPT-2", [768, 3072, 64, 12, 12, 50257], false),
    model("GPT-2-XL", [1600, 6400, 64, 25, 25, 50257], false),
    model("BERT-base", [768, 3072, 64, 12, 12, 30522], false),
    model("BERT-large", [1024, 4096, 64, 16, 16, 30522], false),
    model("MiniLM-L6", [384, 1536, 32, 12, 12, 30522], false),
    model("CLIP-text", [512, 2048, 64, 8, 8, 49408], false),
    model("ViT-L", [1024, 4096, 64, 16, 16, 1000], false),
    model("ViT-H", [1280, 5120, 80, 16, 16, 1000], false),
    model("Whisper-small", [768, 3072, 64, 12, 12, 51865], false),
    model("Whisper-large-v3", [1280, 5120, 64, 20, 20, 51866], false),
    model("T5-base", [768, 3072, 64, 12, 12, 32128], false),
];

/// Vocabularies whose rows of logits have no alignment of 16 bytes in 16 bits.
pub(super) const VOCABULARIES: [(&str, usize); 8] = [
    ("GPT-2", 50257),
    ("BERT", 30522),
    ("BERT-cased", 28996),
    ("RoBERTa", 50265),
    ("XLM-R", 250002),
    ("Whisper", 51865),
    ("Whisper-v3", 51866),
    ("DistilBERT-multilingual", 119547),
];
