//! What the examples are made of.

#[path = "../../examples/generate/chat.rs"]
mod chat;
#[path = "../../examples/perplexity/format.rs"]
mod format;
#[path = "../../examples/perplexity/model.rs"]
mod model;
mod perplexity;
#[path = "../../examples/perplexity/score.rs"]
mod score;
mod templates;
#[path = "../../examples/generate/tokenizer.rs"]
mod tokenizer;
mod tokens;
#[path = "../../examples/perplexity/weights.rs"]
mod weights;
