//! Activations in 8 bits, with factors.

use super::check::{Check, Rows};
use super::kinds::GateFunction;
use crate::error::Result;
use crate::ffi;
use crate::launch::layers;
use crate::problem::Format;
use std::ffi::c_void;

/// The numbers that share a factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Factors {
    /// All, with a factor that is given.
    Tensor,
    /// A row.
    Rows,
    /// 128 numbers of a row.
    Blocks,
}

/// codes = x / factor, rounded to nearest even; a factor is the largest magnitude / 448, in int8 / 127, and 1 where all numbers are zeros.
///
/// In e4m3 NaN stays NaN, and a row or block with an infinity becomes NaN. In int8 the factor of a row with a NaN or an infinity is NaN.
#[derive(Debug, Clone, Copy)]
pub struct Quantise {
    /// rows x columns.
    pub x: Rows,
    /// rows x columns, in bytes.
    pub codes: Rows,
    /// The factor of row i and block j at i * `row_step` + j * `block_step`; of all numbers one, which is read.
    pub factors: *mut f32,
    /// Factors from a row to the next.
    pub row_step: i64,
    /// Factors from a block of a row to the next.
    pub block_step: i64,
    /// Rows.
    pub rows: usize,
    /// Columns, at most 2^30.
    pub columns: usize,
    /// What shares a factor.
    pub kind: Factors,
    /// Of x: f16, bf16 or f32.
    pub format: Format,
    /// Of the codes: f8e4m3, or i8 with a factor for each row.
    pub code_format: Format,
    /// Rows of x are gates and behind them as many numbers, twice `columns`: codes are those of function(gate) * number, rounded to x's format first. In 16 bits, with
    /// factors of rows or blocks, columns that are a multiple of 8, and rows of x at multiples of 16 bytes.
    pub gate: Option<GateFunction>,
}

impl Quantise {
    /// Launches on a stream of the current device.
    ///
    /// # Errors
    /// [`Error::Layer`](crate::Error::Layer) where the kernel does not take the arguments, and CUDA's errors.
    ///
    /// # Safety
    /// All pointers are memory of the current device of the sizes above, which stays allocated until the stream has passed the launch.
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<()> {
        let check = Check("quantiser");
        check.that((1..=1 << 30).contains(&self.columns), || {
            format!("rows of {} numbers; the kernel has 1 to 2^30", self.columns)
        })?;
        check.that(self.code_format == Format::F8E4M3 || self.kind == Factors::Rows, || {
            "codes in i8 have a factor for each row; the kernel has no other".into()
        })?;
        if self.gate.is_some() {
            let whole = self.columns.is_multiple_of(8) && self.format != Format::F32 && self.kind != Factors::Tensor;
            check.that(whole, || {
                "gates go with rows of 16 bits, with multiples of 8 columns, and factors of rows or blocks".into()
            })?;
            check.aligned("the input", self.x, 2, 16)?;
        }
        let args = ffi::tg_quantise {
            x: self.x.at,
            codes: self.codes.at,
            factors: self.factors,
            x_stride: self.x.stride,
            codes_stride: self.codes.stride,
            row_step: self.row_step,
            block_step: self.block_step,
            rows: check.count("rows", self.rows)?,
            columns: check.count("columns", self.columns)?,
            kind: match self.kind {
                Factors::Tensor => ffi::tg_factors::TG_FACTOR_OF_TENSOR,
                Factors::Rows => ffi::tg_factors::TG_FACTORS_OF_ROWS,
                Factors::Blocks => ffi::tg_factors::TG_FACTORS_OF_BLOCKS,
            },
            format: check.format("numbers", self.format, &[Format::F16, Format::BF16, Format::F32])?,
            code_format: check.format("codes", self.code_format, &[Format::F8E4M3, Format::I8])?,
            gated: self.gate.is_some().into(),
            function: self.gate.unwrap_or(GateFunction::SwiGlu).into(),
        };
        // SAFETY: the caller's promises.
        layers::answer(check.0, unsafe { ffi::tg_quantise_launch(&args, &layers::on(stream)?) })
    }
}
