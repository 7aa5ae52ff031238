//! Lists of products to measure: the format of `benches/suite.toml`.
//!
//! ```toml
//! [[shape]]
//! id = "llama3-8b-qkv-m512"    # unique
//! class = "prefill"            # results are averaged by class
//! m = 512
//! n = 6144
//! k = 4096
//! batch = 1                    # 1 unless given
//! layout = "nt"                # nn, nt, tn or tt, the row-major way
//! dtype = "bf16"               # A and B: f16, bf16, f32 or f64
//! b = "q4k"                    # B, where B has blocks of a GGUF file, along K: a name of `Format::blocks`, as q6k or iq4_xs
//! b = "u4"                     # or B of narrow weights: f8e4m3, u4, u8, i8 or f4e2m1; `dtype = "f8e4m3"` or "i8" are activations in 8 bits, beside the same weights
//! scale = "g128"               # the factors of narrow weights: tensor, row, g128 or 128x128; those of checkpoints unless given
//! zeros = true                 # zeros beside the factors (u4 and u8)
//! fast = true                  # sums of fp8 may be the tensor cores' over all of K
//! out = "f32"                  # D, C and the bias; like A unless given
//! b_batch_stride = 0           # elements between matrices of the batch; dense unless given, 0 broadcasts; also a_batch_stride
//! a_stride = 4100              # elements between lines of A, rows or columns, whichever are contiguous; dense unless given; also b_stride
//! d_offset = 1                 # elements before D (and C), from an address of the largest alignment; 0 unless given; also a_offset, b_offset
//! f32 = "tf32"                 # the mode of an f32 product; the mode of the run unless given
//! epilogue = { alpha = 1.0, beta = 0.0, bias = true, activation = "gelu_erf" } # each optional
//! groups = { experts = 128, top_k = 8, routing = "zipf", seed = 1, scaled = true } # a product of experts (`ShapeGroups`)
//! from = "Llama-3.1-8B"        # where the shape comes from; optional, also spelled `source`
//! ```
//!
//! The f32 mode of rows without one is a setting of the run: `tilegemm bench --f32 MODE`. The command `tilegemm` draws
//! such lists at random, and has those of models with experts and with quantised weights.

use crate::error::{Error, Result};
use crate::problem::{
    power_of_two_in, Activation, BiasAxis, Epilogue, F32Mode, Format, Layout, Operand, Problem, MAX_ALIGN,
};
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use toml::Spanned;

mod factors;
mod groups;
mod size;

pub use factors::Shared;
pub use groups::{Distribution, ShapeGroups};
pub use size::Size;
use size::STRIDES;

/// One product to measure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Name, unique in the suite.
    pub id: String,
    /// Group by which results are averaged.
    pub class: String,
    /// Rows of the result.
    pub m: Size,
    /// Columns of the result.
    pub n: Size,
    /// Length of the sums.
    pub k: Size,
    /// Matrices in the batch.
    #[serde(default)]
    pub batch: Size,
    /// Layout of A and B.
    #[serde(deserialize_with = "dense_layout")]
    pub layout: Layout,
    /// The format of A and B.
    #[serde(deserialize_with = "dtype")]
    pub dtype: Format,
    /// The format of B, where B has blocks or narrow weights.
    #[serde(default, deserialize_with = "weights", skip_serializing_if = "Option::is_none")]
    pub b: Option<Format>,
    /// What shares a factor of narrow weights; absent for what checkpoints have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Shared>,
    /// Whether there are zeros beside the factors.
    #[serde(default, skip_serializing_if = "is_not")]
    pub zeros: bool,
    /// Whether sums of fp8 may be the tensor cores' over all of K.
    #[serde(default, skip_serializing_if = "is_not")]
    pub fast: bool,
    /// The format of D, C and the bias; absent where A has the same format.
    #[serde(default, deserialize_with = "out", skip_serializing_if = "Option::is_none")]
    pub out: Option<Format>,
    /// Elements from one matrix A of the batch to the next.
    #[serde(default, deserialize_with = "stride", skip_serializing_if = "Option::is_none")]
    pub a_batch_stride: Option<u32>,
    /// Elements from one matrix B of the batch to the next.
    #[serde(default, deserialize_with = "stride", skip_serializing_if = "Option::is_none")]
    pub b_batch_stride: Option<u32>,
    /// Elements from one line of A to the next. A line is a row, or a column where columns are contiguous.
    #[serde(default, deserialize_with = "stride", skip_serializing_if = "Option::is_none")]
    pub a_stride: Option<u32>,
    /// Elements from one line of B to the next.
    #[serde(default, deserialize_with = "stride", skip_serializing_if = "Option::is_none")]
    pub b_stride: Option<u32>,
    /// Elements before A, from an address of the largest alignment.
    #[serde(default, deserialize_with = "stride", skip_serializing_if = "Option::is_none")]
    pub a_offset: Option<u32>,
    /// Elements before B.
    #[serde(default, deserialize_with = "stride", skip_serializing_if = "Option::is_none")]
    pub b_offset: Option<u32>,
    /// Elements before D, and before C.
    #[serde(default, deserialize_with = "stride", skip_serializing_if = "Option::is_none")]
    pub d_offset: Option<u32>,
    /// The mode of an f32 product; absent for the mode of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f32: Option<F32Mode>,
    /// The epilogue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epilogue: Option<ShapeEpilogue>,
    /// The groups of rows that have a B each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<ShapeGroups>,
    /// Where the shape comes from.
    #[serde(default, alias = "source", skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// `activation(alpha * A @ B + bias) + beta * C`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShapeEpilogue {
    /// Scale of the product.
    pub alpha: f64,
    /// Scale of C, an m x n matrix with the strides of D.
    pub beta: f64,
    /// Whether a bias is added, one value per column.
    pub bias: bool,
    /// Function of the biased product.
    pub activation: Activation,
}

impl Default for ShapeEpilogue {
    fn default() -> Self {
        Self { alpha: 1.0, beta: 0.0, bias: false, activation: Activation::Identity }
    }
}

fn stride<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<u32>, D::Error> {
    deserializer.deserialize_i64(STRIDES).map(Some)
}

fn dtype<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Format, D::Error> {
    let name = String::deserialize(deserializer)?;
    let in_8_bits = [Format::F8E4M3, Format::I8].into_iter().find(|format| format.name() == name);
    in_8_bits.map_or_else(|| name.parse().map_err(de::Error::custom), Ok)
}

fn out<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<Format>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(de::Error::custom)
}

/// The narrow weights of products.
pub const NARROW: [Format; 5] = [Format::F8E4M3, Format::U4, Format::U8, Format::I8, Format::F4E2M1];

fn weights<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<Format>, D::Error> {
    let name = String::deserialize(deserializer)?;
    let expected = || Format::blocks().chain(NARROW).map(Format::name).collect::<Vec<_>>().join(", ");
    let format = Format::blocks().chain(NARROW).find(|format| format.name() == name);
    format.map(Some).ok_or_else(|| de::Error::custom(format!("no weights are named '{name}'; expected {}", expected())))
}

fn is_not(flag: &bool) -> bool {
    !flag
}

fn dense_layout<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Layout, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

/// A problem reduced to the properties that a row of a suite has. The alignment of pointers, strides of extents of 1 and the f32
/// mode, which is a setting of the run, are at their defaults, and C is not D.
pub(crate) fn without_alignment(problem: &Problem) -> Problem {
    let mut problem = Problem { f32_mode: F32Mode::default(), ..problem.canonical_strides() };
    let operands = [&mut problem.a, &mut problem.b, &mut problem.d].into_iter().chain(problem.epilogue.c.as_mut());
    operands.for_each(|operand| operand.pointer_align = MAX_ALIGN);
    problem.epilogue.in_place = false;
    problem
}

impl Shape {
    /// A row of dense operands without a name.
    pub fn dense([m, n, k]: [Size; 3], batch: Size, layout: Layout, dtype: Format) -> Self {
        Self {
            id: String::new(),
            class: String::new(),
            m,
            n,
            k,
            batch,
            layout,
            dtype,
            b: None,
            scale: None,
            zeros: false,
            fast: false,
            out: None,
            a_batch_stride: None,
            b_batch_stride: None,
            a_stride: None,
            b_stride: None,
            a_offset: None,
            b_offset: None,
            d_offset: None,
            f32: None,
            epilogue: None,
            groups: None,
            from: None,
        }
    }

    /// The format that the numbers of A and B have in multiplications.
    pub fn in_products(&self) -> Format {
        self.dtype.in_products_with(self.b.unwrap_or(self.dtype))
    }

    /// The problem of the row in a run of this mode.
    pub fn problem_in(&self, run: F32Mode) -> Problem {
        self.problem().with(|problem| problem.f32_mode = self.f32.unwrap_or(run))
    }

    /// The problem of the row.
    pub fn problem(&self) -> Problem {
        let [m, n, k, batch] = [self.m, self.n, self.k, self.batch].map(Size::get);
        let mut problem = match &self.groups {
            Some(groups) => Problem::grouped([m, n, k], groups.groups(m), self.dtype),
            None => Problem::dense(m, n, k, batch, self.layout, self.dtype),
        };
        problem.b.format = self.b.unwrap_or(self.dtype);
        if let Some(weights) = self.narrow() {
            problem = self.with_factors(problem, weights);
        }
        problem.d.format = self.out.unwrap_or(self.dtype);
        problem.f32_mode = self.f32.unwrap_or_default();
        let [lines_of_a, lines_of_b] = self.lines();
        for (operand, lines, stride) in
            [(&mut problem.a, lines_of_a, self.a_stride), (&mut problem.b, lines_of_b, self.b_stride)]
        {
            let Some(stride) = stride.map(i64::from) else { continue };
            match lines.are_rows {
                true => operand.row_stride = stride,
                false => operand.col_stride = stride,
            }
            if batch > 1 {
                operand.batch_stride[1] = lines.count as i64 * stride;
            }
        }
        let offsets = [self.a_offset, self.b_offset, self.d_offset];
        for (operand, offset) in [&mut problem.a, &mut problem.b, &mut problem.d].into_iter().zip(offsets) {
            operand.pointer_align = power_of_two_in(operand.format.bytes(offset.unwrap_or(0) as usize) as u64);
        }
        let stride = |operand: &mut Operand, stride: Option<u32>| {
            if let (Some(stride), true) = (stride, batch > 1) {
                operand.batch_stride[1] = stride.into();
            }
        };
        stride(&mut problem.a, self.a_batch_stride);
        stride(&mut problem.b, self.b_batch_stride);
        if let Some(asked) = self.epilogue {
            problem.epilogue = Epilogue::new(asked.alpha, asked.beta);
            problem.epilogue.bias = asked.bias.then_some(BiasAxis::N);
            problem.epilogue.activation = asked.activation;
            problem.epilogue.c = problem.epilogue.reads_c().then_some(problem.d);
        }
        problem
    }

    /// The format of narrow weights.
    pub fn narrow(&self) -> Option<Format> {
        Some(self.b.unwrap_or(self.dtype)).filter(|format| NARROW.contains(format))
    }

    /// What shares a factor of narrow weights.
    fn shared(&self, weights: Format) -> Shared {
        self.scale.unwrap_or(Shared::usual(weights))
    }

    fn with_factors(&self, problem: Problem, weights: Format) -> Problem {
        let (Problem { m, n, k, .. }, shared) = (problem, self.shared(weights));
        let scale = shared.of_weights(weights, self.dtype, [n, k]);
        let scale = if self.zeros { scale.with_zeros() } else { scale };
        problem.with_weights(weights, Some(scale)).with(|problem| {
            problem.a.scale = self.dtype.is_narrow().then(|| shared.of_activations([m, k]));
            problem.fast_accumulation = self.fast;
        })
    }

    /// The row that asks for `problem`, or `None` when the format cannot express the problem: two batch dimensions, operands with
    /// padding between their rows, matrices that overlap, a bias along M, gates of C, groups, whose routing the problem does not say.
    pub fn of(problem: &Problem, id: String, class: String) -> Option<Self> {
        let problem = without_alignment(problem);
        if problem.groups.is_some() {
            return None;
        }
        let size = |size: usize| Size::try_from(size).ok();
        let stride = |operand: &Operand, dense: &Operand| match operand.batch_stride {
            strides if strides == dense.batch_stride => Some(None),
            strides => u32::try_from(strides[1]).ok().map(Some),
        };
        let Epilogue { bias, activation, .. } = problem.epilogue;
        let (alpha, beta) = (problem.epilogue.alpha(), problem.epilogue.beta());
        let epilogue = ShapeEpilogue { alpha, beta, bias: bias.is_some(), activation };
        let Problem { m, n, k, a, b, d, .. } = problem;
        let (batch, layout, dtype) = (problem.batch_count(), problem.layout(), a.format);
        let dense = Problem::dense(m, n, k, batch, layout, dtype);
        let shape = Self {
            id,
            class,
            b: Some(b.format).filter(|format| format.is_gguf_block()),
            out: (d.format != dtype).then_some(d.format),
            a_batch_stride: stride(&problem.a, &dense.a)?,
            b_batch_stride: stride(&problem.b, &dense.b)?,
            epilogue: (epilogue != ShapeEpilogue::default()).then_some(epilogue),
            ..Self::dense([size(m)?, size(n)?, size(k)?], size(batch)?, layout, dtype)
        };
        let same = layout != Layout::Any && shape.mistake().is_none();
        (same && without_alignment(&shape.problem()) == problem).then_some(shape)
    }

    /// The lines of A and of B.
    pub fn lines(&self) -> [Lines; 2] {
        let [m, n, k] = [self.m, self.n, self.k].map(Size::get);
        let rows = |count, length| Lines { are_rows: true, count, length };
        let columns = |count, length| Lines { are_rows: false, count, length };
        let a = if matches!(self.layout, Layout::TN | Layout::TT) { columns(k, m) } else { rows(m, k) };
        let b = if matches!(self.layout, Layout::NT | Layout::TT) { columns(n, k) } else { rows(k, n) };
        [a, b]
    }

    /// What is wrong with the groups of this row. Operands of groups are dense and in nt, and there is no batch and no epilogue.
    fn mistake_of(&self, groups: &ShapeGroups) -> Option<String> {
        let Self { a_batch_stride, b_batch_stride, a_stride, b_stride, a_offset, b_offset, d_offset, .. } = self;
        let places = [a_batch_stride, b_batch_stride, a_stride, b_stride, a_offset, b_offset, d_offset];
        let is_plain = self.layout == Layout::NT && self.batch == Size::default() && self.epilogue.is_none();
        if !is_plain || places.iter().any(|place| place.is_some()) {
            return Some(
                "expected layout = \"nt\", no batch, no strides, no offsets and no epilogue beside groups".into(),
            );
        }
        groups.mistake(self.m.get())
    }

    /// What is wrong with a B of these blocks, which lie along K, row after row.
    fn mistake_of_blocks(&self, format: Format) -> Option<String> {
        let (k, elements) = (self.k.get(), format.block().elements);
        if !k.is_multiple_of(elements) {
            return Some(format!("k is {k}, and a block of {format} has {elements} numbers; expected whole blocks"));
        }
        let is_plain = [self.b_batch_stride, self.b_stride, self.b_offset].iter().all(Option::is_none);
        (self.layout != Layout::NT || !is_plain)
            .then(|| "expected layout = \"nt\", and no strides and no offset of B beside blocks".into())
    }

    /// What is wrong with narrow weights, or with what only they have, and the field.
    fn mistake_of_narrow(&self) -> Option<(&'static str, String)> {
        let Some(weights) = self.narrow() else {
            let fields = [("scale", self.scale.is_some()), ("zeros", self.zeros), ("fast", self.fast)];
            let (field, _) = fields.into_iter().find(|(_, is_set)| *is_set)?;
            return Some((field, "only narrow weights have that, such as b = \"u4\"".into()));
        };
        let (k, whole) = (self.k.get(), if weights.bits() < 8.0 { 32 } else { 16 });
        let is_plain = [self.b_batch_stride, self.b_stride, self.b_offset].iter().all(Option::is_none);
        let wrong = |field, what: &str| Some((field, what.to_string()));
        match () {
            _ if self.layout != Layout::NT || !is_plain => {
                wrong("b", "expected layout = \"nt\", and no strides and no offset of B beside narrow weights")
            }
            _ if !k.is_multiple_of(whole) => Some(("k", format!("expected a multiple of {whole} beside {weights}"))),
            _ if self.zeros && !weights.has_zero() => wrong("zeros", "only u4 and u8 have zeros"),
            _ if self.dtype.is_narrow() && weights != self.dtype => {
                wrong("b", "expected none beside activations in 8 bits")
            }
            _ if self.dtype.is_narrow() && self.out.is_none() => {
                wrong("dtype", "expected out beside activations in 8 bits")
            }
            _ if self.fast && self.dtype != Format::F8E4M3 => wrong("fast", "expected dtype = \"f8e4m3\""),
            _ => None,
        }
    }

    /// The field of wrong blocks or groups or of a wrong stride or mode, and the error: bytes of overlapping lines or matrices would be counted twice, and a
    /// stride without a batch is a mistake.
    fn mistake(&self) -> Option<(&'static str, String)> {
        if self.f32.is_some() && self.in_products() != Format::F32 {
            let what = format!("the product is in {}; expected no mode, or dtype = \"f32\"", self.in_products());
            return Some(("f32", what));
        }
        if let Some(mistake) = self.mistake_of_narrow() {
            return Some(mistake);
        }
        let blocks = self.b.filter(|format| format.is_gguf_block());
        if let Some(what) = blocks.and_then(|format| self.mistake_of_blocks(format)) {
            return Some(("b", what));
        }
        if let Some(groups) = &self.groups {
            return self.mistake_of(groups).map(|what| ("groups", what));
        }
        let [lines_of_a, lines_of_b] = self.lines();
        let operands = [
            ("a_stride", self.a_stride, "a_batch_stride", self.a_batch_stride, lines_of_a),
            ("b_stride", self.b_stride, "b_batch_stride", self.b_batch_stride, lines_of_b),
        ];
        operands.into_iter().find_map(|(field, stride, batch_field, batch_stride, lines)| {
            let (length, count) = (lines.length as u64, lines.count as u64);
            let line = stride.map_or(length, u64::from);
            let matrix = (count - 1) * line + length;
            match batch_stride {
                _ if line < length => {
                    Some((field, format!("lines that are {line} elements apart overlap; expected {length} and more")))
                }
                None => None,
                _ if self.batch == Size::default() => {
                    Some((batch_field, "there is one matrix; expected no stride, or a batch".into()))
                }
                Some(stride) if stride > 0 && u64::from(stride) < matrix => {
                    let what =
                        format!("matrices that are {stride} elements apart overlap; expected 0, or {matrix} and more");
                    Some((batch_field, what))
                }
                Some(_) => None,
            }
        })
    }
}

/// The contiguous dimension of a matrix.
#[derive(Debug)]
pub struct Lines {
    /// Whether lines are rows; else they are columns.
    pub are_rows: bool,
    /// Lines.
    pub count: usize,
    /// Elements of a line.
    pub length: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    shape: Vec<Spanned<Shape>>,
}

/// Reads a suite. Errors call the suite `name`.
///
/// # Errors
/// [`Error::Suite`] with the line, the field and the expected value.
pub fn parse(name: &str, text: &str) -> Result<Vec<Shape>> {
    let bad = |what: String| Error::Suite { name: name.into(), what };
    let file: File = toml::from_str(text).map_err(|error| bad(error.to_string()))?;
    let line = |row: &Spanned<Shape>, field: &str| line_of(text, row.span().start, field);
    let mut seen = HashMap::new();
    for row in &file.shape {
        if let Some((field, what)) = row.get_ref().mistake() {
            return Err(bad(format!("line {}, field {field}: {what}", line(row, field))));
        }
        let (id, here) = (row.get_ref().id.as_str(), line(row, "id"));
        if let Some(first) = seen.insert(id, here) {
            let what = format!("'{id}' is the id of line {first} too; expected a unique one");
            return Err(bad(format!("line {here}, field id: {what}")));
        }
    }
    if file.shape.is_empty() {
        return Err(bad("expected at least one [[shape]]".into()));
    }
    Ok(file.shape.into_iter().map(Spanned::into_inner).collect())
}

/// The line of a field of the row that starts at this byte; the first line of the row, where the field has no line of its own.
fn line_of(text: &str, row: usize, field: &str) -> usize {
    let first = text[..row].matches('\n').count() + 1;
    let mut lines = text[row..].lines().enumerate().take_while(|(line, text)| *line == 0 || !text.starts_with("[["));
    let is_field = |text: &str| text.split_once('=').is_some_and(|(key, _)| key.trim() == field);
    first + lines.find(|(_, text)| is_field(text)).map_or(0, |(line, _)| line)
}

/// The text of a suite.
pub fn to_toml(shapes: &[Shape]) -> String {
    #[derive(Serialize)]
    struct Rows<'a> {
        shape: &'a [Shape],
    }
    toml::to_string(&Rows { shape: shapes }).expect("a suite is made of strings and numbers")
}
