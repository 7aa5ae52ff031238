//! The class `gguf`: the products with quantised weights of two models, as candle multiplies the matrices of a GGUF file, in four formats.

use super::{Shape, Size};
use candle_tilegemm::problem::{Format, Layout};

/// The name of the class.
pub const CLASS: &str = "gguf";

/// The shapes of a llama or of a qwen3.
struct Model {
    /// The name in ids, and the name.
    names: [&'static str; 2],
    hidden: usize,
    /// The heads' numbers of a token: queries, and keys or values.
    queries: usize,
    keys: usize,
    /// Columns of the gate, of up, and of the input of down.
    inner: usize,
    vocabulary: usize,
}

const MODELS: [Model; 2] = [
    Model {
        names: ["llama3-8b", "Llama 3 8B"],
        hidden: 4096,
        queries: 4096,
        keys: 1024,
        inner: 14336,
        vocabulary: 128_256,
    },
    Model {
        names: ["qwen3-4b", "Qwen3 4B"],
        hidden: 2560,
        queries: 4096,
        keys: 1024,
        inner: 9728,
        vocabulary: 151_936,
    },
];
const FORMATS: [Format; 4] = [Format::Q4K, Format::Q6K, Format::Q8_0, Format::Q4_0];
const ROWS: [usize; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096];
/// The most rows of the head: candle computes the logits of the last token of each sequence only.
const MOST_SEQUENCES: usize = 8;

impl Model {
    /// The matrices by their names in a GGUF file, with N and K. attn_v is as attn_k, and ffn_up as ffn_gate; matrices of the same shape count once.
    fn matrices(&self) -> Vec<(&'static str, [usize; 2])> {
        let &Self { hidden, queries, keys, inner, vocabulary, .. } = self;
        let mut matrices: Vec<(&str, [usize; 2])> = Vec::new();
        for (name, shape) in [
            ("attn_q", [queries, hidden]),
            ("attn_k", [keys, hidden]),
            ("attn_output", [hidden, queries]),
            ("ffn_gate", [inner, hidden]),
            ("ffn_down", [hidden, inner]),
            ("output", [vocabulary, hidden]),
        ] {
            if matrices.iter().all(|(_, other)| *other != shape) {
                matrices.push((name, shape));
            }
        }
        matrices
    }
}

/// The products of the class: activations and results in f32, which candle's models have.
pub fn products() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (model, format) in MODELS.iter().flat_map(|model| FORMATS.map(|format| (model, format))) {
        for (matrix, shape) in model.matrices() {
            let rows = ROWS.into_iter().filter(|rows| matrix != "output" || *rows <= MOST_SEQUENCES);
            shapes.extend(rows.map(|rows| product(model, (matrix, shape), format, rows)));
        }
    }
    shapes
}

fn product(model: &Model, (matrix, [n, k]): (&str, [usize; 2]), format: Format, rows: usize) -> Shape {
    let [short, name] = model.names;
    let size = |size: usize| Size::try_from(size).expect("sizes of models are sizes");
    Shape {
        id: format!("{short}-{matrix}-{format}-m{rows}"),
        class: CLASS.into(),
        b: Some(format),
        from: Some(format!("{name} {matrix}, {rows} rows")),
        ..Shape::dense([rows, n, k].map(size), Size::default(), Layout::NT, Format::F32)
    }
}
