//! The classes `fp8`, `w4a16` and `mxfp4`: the products with narrow weights of two models; and `fp8-experts`, `w4a16-experts` and `mxfp4-experts`: those of experts.

use super::experts::{self, GPT_OSS, MIXTRAL, QWEN3};
use super::{Shape, Shared, Size};
use candle_tilegemm::problem::{Format, Layout};

/// The names of the classes.
pub const FP8: &str = "fp8";
pub const W4A16: &str = "w4a16";
pub const MXFP4: &str = "mxfp4";
pub const FP8_EXPERTS: &str = "fp8-experts";
pub const W4A16_EXPERTS: &str = "w4a16-experts";
pub const MXFP4_EXPERTS: &str = "mxfp4-experts";
/// The classes of dense products, and those of experts.
pub const DENSE: [&str; 3] = [FP8, W4A16, MXFP4];
pub const OF_EXPERTS: [&str; 3] = [FP8_EXPERTS, W4A16_EXPERTS, MXFP4_EXPERTS];

/// Matrices of a layer, by their names in checkpoints and with N and K: of Llama 3 8B and of Qwen3 32B. Matrices of the same shape count once.
const MATRICES: [(&str, &str, [usize; 2]); 8] = [
    ("llama3-8b", "qkv", [6144, 4096]),
    ("llama3-8b", "o_proj", [4096, 4096]),
    ("llama3-8b", "gate_up", [28672, 4096]),
    ("llama3-8b", "down_proj", [4096, 14336]),
    ("qwen3-32b", "qkv", [10240, 5120]),
    ("qwen3-32b", "o_proj", [5120, 8192]),
    ("qwen3-32b", "gate_up", [51200, 5120]),
    ("qwen3-32b", "down_proj", [5120, 25600]),
];
const ROWS: [usize; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096];

/// A recipe: its name in ids, and the row without sizes.
struct Recipe {
    name: &'static str,
    dtype: Format,
    b: Option<Format>,
    scale: Shared,
    zeros: bool,
    fast: bool,
}

const WIDE: Recipe =
    Recipe { name: "", dtype: Format::BF16, b: None, scale: Shared::Tensor, zeros: false, fast: false };
/// fp8: 16 bits by fp8 with factors of rows and of blocks; fp8 by fp8 with each kind of factors, and with both kinds of sums.
const OF_FP8: [Recipe; 6] = [
    Recipe { name: "w8a16-row", b: Some(Format::F8E4M3), scale: Shared::Row, ..WIDE },
    Recipe { name: "w8a16-128x128", b: Some(Format::F8E4M3), scale: Shared::Block([128, 128]), ..WIDE },
    Recipe { name: "w8a8-tensor", dtype: Format::F8E4M3, ..WIDE },
    Recipe { name: "w8a8-row", dtype: Format::F8E4M3, scale: Shared::Row, ..WIDE },
    Recipe { name: "w8a8-row-fast", dtype: Format::F8E4M3, scale: Shared::Row, fast: true, ..WIDE },
    Recipe { name: "w8a8-128x128", dtype: Format::F8E4M3, scale: Shared::Block([128, 128]), ..WIDE },
];
const OF_W4A16: [Recipe; 2] = [
    Recipe { name: "g128", b: Some(Format::U4), scale: Shared::Group(128), ..WIDE },
    Recipe { name: "g32-zeros", b: Some(Format::U4), scale: Shared::Group(32), zeros: true, ..WIDE },
];
const OF_MXFP4: [Recipe; 1] = [Recipe { name: "g32", b: Some(Format::F4E2M1), scale: Shared::Group(32), ..WIDE }];

/// The products of the class `fp8`.
pub fn fp8() -> Vec<Shape> {
    products(FP8, &OF_FP8)
}

/// The products of the class `w4a16`.
pub fn w4a16() -> Vec<Shape> {
    products(W4A16, &OF_W4A16)
}

/// The products of the class `mxfp4`.
pub fn mxfp4() -> Vec<Shape> {
    products(MXFP4, &OF_MXFP4)
}

/// The products of the class `fp8-experts`: blocks, as Qwen3-30B-A3B-FP8 has them, beside 16 and 8 bits.
pub fn fp8_experts() -> Vec<Shape> {
    of_experts(FP8_EXPERTS, &[QWEN3], &[&OF_FP8[1], &OF_FP8[5]])
}

/// The products of the class `w4a16-experts`: groups of 128, as GPTQ's files of these models have them.
pub fn w4a16_experts() -> Vec<Shape> {
    of_experts(W4A16_EXPERTS, &[QWEN3, MIXTRAL], &[&OF_W4A16[0]])
}

/// The products of the class `mxfp4-experts`: those of gpt-oss-20b.
pub fn mxfp4_experts() -> Vec<Shape> {
    of_experts(MXFP4_EXPERTS, &[GPT_OSS], &[&OF_MXFP4[0]])
}

/// Both products of experts; results are in bf16, as those of experts in bf16.
fn of_experts(class: &str, models: &[&experts::Model], recipes: &[&Recipe]) -> Vec<Shape> {
    let of = |recipe: &Recipe, dense: Shape| Shape {
        id: format!("{}-{}", dense.id, recipe.name),
        class: class.into(),
        dtype: recipe.dtype,
        b: recipe.b,
        scale: Some(recipe.scale),
        out: recipe.dtype.is_narrow().then_some(Format::BF16),
        from: dense.from.map(|from| format!("{from}, {}", recipe.name)),
        ..dense
    };
    let rows = |recipe| models.iter().flat_map(experts::few).map(move |dense| of(recipe, dense));
    recipes.iter().flat_map(|recipe| rows(recipe)).collect()
}

fn products(class: &str, recipes: &[Recipe]) -> Vec<Shape> {
    let rows = |recipe, matrix| ROWS.map(|rows| product(class, recipe, matrix, rows));
    recipes.iter().flat_map(|recipe| MATRICES.iter().flat_map(move |matrix| rows(recipe, matrix))).collect()
}

fn product(class: &str, recipe: &Recipe, (model, name, [n, k]): &(&str, &str, [usize; 2]), rows: usize) -> Shape {
    let size = |size: usize| Size::try_from(size).expect("sizes of models are sizes");
    Shape {
        id: format!("{model}-{name}-{}-m{rows}", recipe.name),
        class: class.into(),
        b: recipe.b,
        scale: Some(recipe.scale),
        zeros: recipe.zeros,
        fast: recipe.fast,
        out: recipe.dtype.is_narrow().then_some(Format::BF16),
        from: Some(format!("{model} {name}, {}, {rows} rows", recipe.name)),
        ..Shape::dense([rows, *n, *k].map(size), Size::default(), Layout::NT, recipe.dtype)
    }
}
