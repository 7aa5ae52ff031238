//! The class `experts`: the two products of a layer of experts, for four models, with few to many tokens, with even and with skewed
//! routing. The class `gguf-experts`: the same with quantised weights, for two models, as `candle_nn::moe::moe_gemm_gguf` multiplies them: gate and up
//! are two products, and activations and results are in f32.

use super::{Distribution, Shape, ShapeGroups, Size};
use candle_tilegemm::problem::{Format, Layout};

/// The name of the class.
pub const CLASS: &str = "experts";
/// The name of the class with quantised weights.
pub const GGUF_CLASS: &str = "gguf-experts";

/// A model with experts.
pub(super) struct Model {
    /// The name in ids, and the name.
    names: [&'static str; 2],
    experts: usize,
    top_k: usize,
    hidden: usize,
    /// The size between the two products.
    intermediate: usize,
}

const MODELS: [Model; 4] = [
    Model { names: ["qwen3-30b", "Qwen3-30B-A3B"], experts: 128, top_k: 8, hidden: 2048, intermediate: 768 },
    Model { names: ["mixtral-8x7b", "Mixtral 8x7B"], experts: 8, top_k: 2, hidden: 4096, intermediate: 14336 },
    Model { names: ["dsv3", "like DeepSeek-V3"], experts: 256, top_k: 8, hidden: 7168, intermediate: 2048 },
    Model { names: ["gpt-oss", "like GPT-OSS"], experts: 32, top_k: 4, hidden: 2880, intermediate: 2880 },
];
pub(super) const QWEN3: &Model = &MODELS[0];
pub(super) const MIXTRAL: &Model = &MODELS[1];
pub(super) const GPT_OSS: &Model = &MODELS[3];
const TOKENS: [usize; 6] = [1, 8, 64, 512, 2048, 8192];
/// Tokens beside narrow weights.
const FEW: [usize; 6] = [1, 8, 64, 256, 1024, 4096];
const SEED: u32 = 1;

/// The models of the class `gguf-experts`, and the formats: `Q4_K_M` has Q4_K and Q6_K.
const QUANTISED: [&Model; 2] = [&MODELS[0], &MODELS[1]];
const FORMATS: [Format; 2] = [Format::Q4K, Format::Q6K];

/// The products of the class `experts`.
pub fn products() -> Vec<Shape> {
    let models = MODELS.iter().flat_map(|model| routed().map(move |routed| (model, routed)));
    models.flat_map(|(model, routed)| ["gate_up", "down"].map(|product| shape(model, product, routed))).collect()
}

/// The products of the class `gguf-experts`.
pub fn gguf_products() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (model, format) in QUANTISED.into_iter().flat_map(|model| FORMATS.map(|format| (model, format))) {
        for routed in routed() {
            shapes.extend(["gate", "down"].map(|product| {
                let dense = shape(model, product, routed);
                let id = format!("{}-{format}", dense.id);
                Shape { id, class: GGUF_CLASS.into(), dtype: Format::F32, b: Some(format), ..dense }
            }));
        }
    }
    shapes
}

/// Both products of a model with few to many tokens, each expert as likely as another.
pub(super) fn few(model: &&Model) -> Vec<Shape> {
    let both = |tokens| ["gate_up", "down"].map(|product| shape(model, product, (tokens, Distribution::Uniform)));
    FEW.into_iter().flat_map(both).collect()
}

/// Tokens, and how they choose experts.
fn routed() -> impl Iterator<Item = (usize, Distribution)> {
    TOKENS.into_iter().flat_map(|tokens| [Distribution::Uniform, Distribution::Zipf].map(|routing| (tokens, routing)))
}

fn shape(model: &Model, product: &str, (tokens, routing): (usize, Distribution)) -> Shape {
    let &Model { names: [short, name], experts, top_k, hidden, intermediate } = model;
    let size = |size: usize| Size::try_from(size).expect("sizes of models are sizes");
    let scaled = product == "down";
    let (n, k) = match product {
        "down" => (hidden, intermediate),
        "gate_up" => (2 * intermediate, hidden),
        _ => (intermediate, hidden),
    };
    Shape {
        id: format!("{short}-{product}-t{tokens}-{}", routing.name()),
        class: CLASS.into(),
        groups: Some(ShapeGroups { experts: size(experts), top_k: size(top_k), routing, seed: SEED, scaled }),
        from: Some(format!("{name} {product}, {tokens} tokens")),
        ..Shape::dense([tokens * top_k, n, k].map(size), Size::default(), Layout::NT, Format::BF16)
    }
}
