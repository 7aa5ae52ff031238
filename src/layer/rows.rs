//! Norms, embeddings, gates and orders of columns: what is computed row by row.

use super::check::{Check, Rows};
use super::kinds::GateFunction;
use crate::error::Result;
use crate::ffi;
use crate::launch::layers;
use crate::problem::Format;
use std::ffi::c_void;

const FLOATS: [Format; 3] = [Format::F16, Format::BF16, Format::F32];

fn size(format: Format) -> i64 {
    if format == Format::F32 {
        4
    } else {
        2
    }
}

/// y = x / sqrt(mean(x^2) + eps) weight for each row; with a residual, of sum = x + residual, which is rounded and stored first.
///
/// ```no_run
/// use candle_tilegemm::layer::{RmsNorm, Rows};
/// use candle_tilegemm::Format;
/// use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};
///
/// let stream = CudaContext::new(0)?.default_stream();
/// let (rows, columns) = (8, 4096);
/// let (x, weight) = (stream.clone_htod(&vec![1f32; rows * columns])?, stream.clone_htod(&vec![0.5f32; columns])?);
/// let mut y = stream.alloc_zeros::<f32>(rows * columns)?;
/// {
///     let ((x, _reads_x), (weight, _reads_weight)) = (x.device_ptr(&stream), weight.device_ptr(&stream));
///     let (y, _writes_y) = y.device_ptr_mut(&stream);
///     let (residual, sum, y) = (Rows::NONE, Rows::NONE, Rows::new(y as _, columns as i64));
///     let (x, weight, eps, format) = (Rows::new(x as _, columns as i64), weight as _, 1e-5, Format::F32);
///     let norm = RmsNorm { x, residual, weight, sum, y, rows, columns, eps, format, y_format: format };
///     // SAFETY: the memory has these sizes, and lives until the stream has passed.
///     unsafe { norm.launch(stream.cu_stream().cast())? };
/// }
/// let y: Vec<f32> = stream.clone_dtoh(&y)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm {
    /// rows x columns.
    pub x: Rows,
    /// Like x; [`Rows::NONE`]: no addition.
    pub residual: Rows,
    /// columns numbers.
    pub weight: *const c_void,
    /// Like x, without a residual unused; may be x or the residual.
    pub sum: Rows,
    /// Like x, but for `y_format`; may be the residual, and without a residual x.
    pub y: Rows,
    /// Rows.
    pub rows: usize,
    /// Columns, at most 16384.
    pub columns: usize,
    /// Keeps the root from 0.
    pub eps: f32,
    /// f16, bf16 or f32.
    pub format: Format,
    /// Of y: the same, or f32 without a residual.
    pub y_format: Format,
}

impl RmsNorm {
    /// Launches on a stream of the current device.
    ///
    /// # Errors
    /// [`Error::Layer`](crate::Error::Layer) where the kernel does not take the arguments, and CUDA's errors.
    ///
    /// # Safety
    /// All pointers are memory of the current device of the sizes above, which stays allocated until the stream has passed the launch.
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<()> {
        let check = Check("RmsNorm");
        check.that((1..=16384).contains(&self.columns), || {
            format!("rows of {} numbers; the kernel has 1 to 16384", self.columns)
        })?;
        let of_y = match self.residual {
            Rows::NONE => vec![self.format, Format::F32],
            _ => vec![self.format],
        };
        let args = ffi::tg_rms_norm {
            x: self.x.at,
            residual: self.residual.at,
            weight: self.weight,
            sum: self.sum.at,
            y: self.y.at,
            x_stride: self.x.stride,
            residual_stride: self.residual.stride,
            sum_stride: self.sum.stride,
            y_stride: self.y.stride,
            rows: check.count("rows", self.rows)?,
            columns: self.columns as i32,
            eps: self.eps,
            format: check.format("numbers", self.format, &FLOATS)?,
            y_format: check.format("the result", self.y_format, &of_y[..])?,
        };
        // SAFETY: the caller's promises.
        layers::answer(check.0, unsafe { ffi::tg_rms_norm_launch(&args, &layers::on(stream)?) })
    }
}

/// Rows of a table by tokens. A token that the table lacks gives zeros.
#[derive(Debug, Clone, Copy)]
pub struct Embedding {
    /// `count` numbers.
    pub tokens: *const u32,
    /// vocabulary x columns, dense, in `format` or in blocks.
    pub table: *const c_void,
    /// count x columns, dense.
    pub out: *mut c_void,
    /// Set to 1 + t of a token t that the table lacks; may be null.
    pub error: *mut i32,
    /// Tokens.
    pub count: usize,
    /// Rows of the table.
    pub vocabulary: usize,
    /// Columns of the table.
    pub columns: usize,
    /// Of the result: f16, bf16 or f32.
    pub format: Format,
    /// Of the table: the same, or blocks of a GGUF file.
    pub table_format: Format,
}

impl Embedding {
    /// Launches on a stream of the current device.
    ///
    /// # Errors
    /// As for [`RmsNorm::launch`].
    ///
    /// # Safety
    /// As for [`RmsNorm::launch`].
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<()> {
        let check = Check("Embedding");
        let format = check.format("the result", self.format, &FLOATS)?;
        let has_blocks = self.table_format.is_gguf_block();
        check.that(has_blocks || self.table_format == self.format, || {
            format!("a table in {} and a result in {}; expected one format, or blocks", self.table_format, self.format)
        })?;
        let elements = self.table_format.block().elements;
        check.that(self.columns.is_multiple_of(elements), || {
            format!("rows of {} numbers; expected whole blocks of {elements}", self.columns)
        })?;
        check.that((1..=1 << 20).contains(&self.columns), || {
            format!("rows of {} numbers; the kernel has 1 to 2^20", self.columns)
        })?;
        let aligned = [("the table", self.table.cast_mut()), ("the result", self.out)];
        for (what, at) in aligned.into_iter().filter(|_| !has_blocks) {
            check.aligned(what, Rows::new(at, self.columns as i64), size(self.format), 16)?;
        }
        let args = ffi::tg_embedding {
            tokens: self.tokens,
            table: self.table,
            out: self.out,
            error: self.error,
            count: check.count("tokens", self.count)?,
            vocabulary: check.count("rows of the table", self.vocabulary)?,
            columns: self.columns as i32,
            format,
            table_format: layers::format(self.table_format),
        };
        // SAFETY: the caller's promises.
        layers::answer(check.0, unsafe { ffi::tg_embedding_launch(&args, &layers::on(stream)?) })
    }
}

impl From<GateFunction> for ffi::tg_gate_function {
    fn from(function: GateFunction) -> Self {
        match function {
            GateFunction::SwiGlu => Self::TG_SWIGLU,
            GateFunction::GeGluTanh => Self::TG_GEGLU_TANH,
            GateFunction::GeGluErf => Self::TG_GEGLU_ERF,
            GateFunction::Relu2 => Self::TG_RELU2,
        }
    }
}

/// out = function(gate) * up, of rows with both.
#[derive(Debug, Clone, Copy)]
pub struct Gated {
    /// rows x 2 columns.
    pub x: Rows,
    /// rows x columns.
    pub out: Rows,
    /// Rows.
    pub rows: usize,
    /// Columns of the result, a multiple of 8.
    pub columns: usize,
    /// Whether a gate and its number lie side by side; otherwise the gates are the first half of a row.
    pub interleaved: bool,
    /// The function.
    pub function: GateFunction,
    /// f16 or bf16.
    pub format: Format,
}

impl Gated {
    /// Launches on a stream of the current device.
    ///
    /// # Errors
    /// As for [`RmsNorm::launch`].
    ///
    /// # Safety
    /// As for [`RmsNorm::launch`].
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<()> {
        let check = Check("gate");
        let format = check.format("numbers", self.format, &FLOATS[..2])?;
        check.that(self.columns > 0 && self.columns.is_multiple_of(8) && self.columns <= 1 << 25, || {
            format!("{} columns of the result; the kernel has multiples of 8 up to 2^25", self.columns)
        })?;
        check.aligned("the input", self.x, 2, 16)?;
        check.aligned("the result", self.out, 2, 16)?;
        let args = ffi::tg_gated {
            in_: self.x.at,
            out: self.out.at,
            in_stride: self.x.stride,
            out_stride: self.out.stride,
            rows: check.count("rows", self.rows)?,
            columns: self.columns as i32,
            interleaved: self.interleaved.into(),
            function: self.function.into(),
            format,
        };
        // SAFETY: the caller's promises.
        layers::answer(check.0, unsafe { ffi::tg_gated_launch(&args, &layers::on(stream)?) })
    }
}

/// Columns of rows by a list: out(r, c) = x(r, columns(c)), and 0 where x has no such column.
#[derive(Debug, Clone, Copy)]
pub struct Gather {
    /// rows x width.
    pub x: Rows,
    /// `count` numbers.
    pub columns: *const u32,
    /// rows x count.
    pub out: Rows,
    /// Rows.
    pub rows: usize,
    /// Columns of x.
    pub width: usize,
    /// Columns of the result, at most 2^23.
    pub count: usize,
    /// f16, bf16 or f32.
    pub format: Format,
}

impl Gather {
    /// Launches on a stream of the current device.
    ///
    /// # Errors
    /// As for [`RmsNorm::launch`].
    ///
    /// # Safety
    /// As for [`RmsNorm::launch`].
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<()> {
        let check = Check("an order of columns");
        check.format("numbers", self.format, &FLOATS)?;
        check.that(self.count <= 1 << 23, || format!("rows of {} numbers; the kernel has at most 2^23", self.count))?;
        let args = ffi::tg_gather {
            x: self.x.at,
            columns: self.columns,
            out: self.out.at,
            x_stride: self.x.stride,
            out_stride: self.out.stride,
            rows: check.count("rows", self.rows)?,
            width: check.count("columns", self.width)?,
            count: self.count as i32,
            bytes: size(self.format) as i32,
        };
        // SAFETY: the caller's promises.
        layers::answer(check.0, unsafe { ffi::tg_gather_launch(&args, &layers::on(stream)?) })
    }
}
