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
//! out = "f32"                  # D, C and the bias; like A and B unless given
//! b_batch_stride = 0           # elements between matrices of the batch; dense unless given, 0 broadcasts; also a_batch_stride
//! epilogue = { alpha = 1.0, beta = 0.0, bias = true, activation = "gelu_erf" } # each optional
//! from = "Llama-3.1-8B"        # where the shape comes from; optional, also spelled `source`
//! ```
//!
//! The f32 mode is a setting of the run: `tilegemm bench --f32 MODE`.

use crate::error::{Error, Result};
use crate::problem::{Activation, BiasAxis, Epilogue, F32Mode, Format, Layout, Operand, Problem, MAX_ALIGN};
use serde::de::{self, Deserializer, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use toml::Spanned;

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
    /// The format of D, C and the bias, unless it is that of A and B.
    #[serde(default, deserialize_with = "out", skip_serializing_if = "Option::is_none")]
    pub out: Option<Format>,
    /// Elements from one matrix A of the batch to the next.
    #[serde(default, deserialize_with = "stride", skip_serializing_if = "Option::is_none")]
    pub a_batch_stride: Option<u32>,
    /// Elements from one matrix B of the batch to the next.
    #[serde(default, deserialize_with = "stride", skip_serializing_if = "Option::is_none")]
    pub b_batch_stride: Option<u32>,
    /// The epilogue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epilogue: Option<ShapeEpilogue>,
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

/// An extent that every kernel interface can express.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Size(u32);

impl Default for Size {
    fn default() -> Self {
        Self(1)
    }
}

impl TryFrom<usize> for Size {
    type Error = String;

    fn try_from(size: usize) -> std::result::Result<Self, String> {
        match u32::try_from(size) {
            Ok(size) if (SIZES.least..=SIZES.most).contains(&size) => Ok(Self(size)),
            _ => Err(format!("{size} is no size; expected {SIZES}")),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_i64(SIZES).map(Self)
    }
}

const SIZES: Whole = Whole { least: 1, most: i32::MAX as u32 };
const STRIDES: Whole = Whole { least: 0, most: u32::MAX };

/// The range of a number of the format.
#[derive(Clone, Copy)]
struct Whole {
    least: u32,
    most: u32,
}

impl fmt::Display for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}, a whole number", self.least, self.most)
    }
}

impl Visitor<'_> for Whole {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> std::result::Result<u32, E> {
        let number_in_range = u32::try_from(number).ok().filter(|number| (self.least..=self.most).contains(number));
        number_in_range.ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
    }
}

impl Size {
    /// The number itself.
    pub fn get(self) -> usize {
        self.0 as usize
    }
}

fn stride<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<u32>, D::Error> {
    deserializer.deserialize_i64(STRIDES).map(Some)
}

fn dtype<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Format, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

fn out<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<Format>, D::Error> {
    dtype(deserializer).map(Some)
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
    /// The problem of the row, with operands at pointers of the largest alignment.
    pub fn problem(&self) -> Problem {
        let [m, n, k, batch] = [self.m, self.n, self.k, self.batch].map(Size::get);
        let mut problem = Problem::dense(m, n, k, batch, self.layout, self.dtype);
        problem.d.format = self.out.unwrap_or(self.dtype);
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

    /// The row that asks for `problem`, or `None` when the format cannot express the problem: two batch dimensions, operands with
    /// padding between their rows, matrices that overlap, a bias along M.
    pub fn of(problem: &Problem, id: String, class: String) -> Option<Self> {
        let problem = without_alignment(problem);
        let size = |size: usize| Size::try_from(size).ok();
        let stride = |operand: &Operand, dense: &Operand| match operand.batch_stride {
            strides if strides == dense.batch_stride => Some(None),
            strides => u32::try_from(strides[1]).ok().map(Some),
        };
        let Epilogue { bias, activation, .. } = problem.epilogue;
        let (alpha, beta) = (problem.epilogue.alpha(), problem.epilogue.beta());
        let epilogue = ShapeEpilogue { alpha, beta, bias: bias.is_some(), activation };
        let Problem { m, n, k, a, d, .. } = problem;
        let (batch, layout, dtype) = (problem.batch_count(), problem.layout(), a.format);
        let dense = Problem::dense(m, n, k, batch, layout, dtype);
        let shape = Self {
            id,
            class,
            m: size(m)?,
            n: size(n)?,
            k: size(k)?,
            batch: size(batch)?,
            layout,
            dtype,
            out: (d.format != dtype).then_some(d.format),
            a_batch_stride: stride(&problem.a, &dense.a)?,
            b_batch_stride: stride(&problem.b, &dense.b)?,
            epilogue: (epilogue != ShapeEpilogue::default()).then_some(epilogue),
            from: None,
        };
        let same = layout != Layout::Any && shape.overlap().is_none();
        (same && without_alignment(&shape.problem()) == problem).then_some(shape)
    }

    /// The field of a wrong batch stride, and the error: bytes of overlapping matrices would be counted twice, and a stride without
    /// a batch is a mistake.
    fn overlap(&self) -> Option<(&'static str, String)> {
        let [m, n, k] = [self.m, self.n, self.k].map(|size| u64::from(size.0));
        let strides = [("a_batch_stride", self.a_batch_stride, m * k), ("b_batch_stride", self.b_batch_stride, k * n)];
        strides.into_iter().find_map(|(field, stride, matrix)| match stride? {
            _ if self.batch == Size(1) => Some((field, "there is one matrix; expected no stride, or a batch".into())),
            stride if stride > 0 && u64::from(stride) < matrix => {
                let what =
                    format!("matrices that are {stride} elements apart overlap; expected 0, or {matrix} and more");
                Some((field, what))
            }
            _ => None,
        })
    }
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
/// [`Error::Suite`] with the line, the field and what was expected there.
pub fn parse(name: &str, text: &str) -> Result<Vec<Shape>> {
    let bad = |what: String| Error::Suite { name: name.into(), what };
    let file: File = toml::from_str(text).map_err(|error| bad(error.to_string()))?;
    let line = |row: &Spanned<Shape>, field: &str| line_of(text, row.span().start, field);
    let mut seen = HashMap::new();
    for row in &file.shape {
        if let Some((field, what)) = row.get_ref().overlap() {
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
