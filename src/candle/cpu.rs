//! The op on the CPU: candle's own product in the type of the sums, then the epilogue in one pass that rounds once.

use super::lowering::{batch_of, format_of, readable, GemmOp, Third};
use crate::problem::{Activation, Format, Real};
use crate::stats;
use ::candle::backend::BackendStorage;
use ::candle::{CpuStorage, DType, Layout, Result, Shape, Storage, WithDType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use std::borrow::Cow;

/// The type that products of these numbers are added up in, and that an epilogue is computed in: f32, and f64 for f64.
pub(super) fn sums_of(operands: DType) -> DType {
    if operands == DType::F64 {
        DType::F64
    } else {
        DType::F32
    }
}

/// A number in T, rounded once. `half`'s conversions from f64 drop the low 32 bits before they round: a sum a little above a tie would be rounded
/// as the tie.
pub(super) fn rounded<T: WithDType>(x: impl Real) -> T {
    let x = x.to_f64();
    T::from_f64(match T::DTYPE {
        DType::F16 => f16::from_f32(x as f32).to_f64(),
        DType::BF16 => bf16::from_f32(x as f32).to_f64(),
        _ => x,
    })
}

/// Computes `op`; `third` is its bias or residual.
pub(super) fn forward(
    op: &GemmOp,
    operands: [(&CpuStorage, &Layout); 2],
    third: Option<(&CpuStorage, &Layout)>,
) -> Result<CpuStorage> {
    let [lhs, rhs] = readable(operands)?;
    let ((lhs, lhs_layout), (rhs, rhs_layout)) = (lhs.get(), rhs.get());
    let problem = op.problem(format_of(lhs.dtype())?, lhs_layout, rhs_layout, None)?;
    stats::count_cpu(&problem);
    let (m, n, k, batch) = (problem.m, problem.n, problem.k, problem.batch_count());
    let sums = if problem.is_empty() || k == 0 || op.alpha == 0.0 {
        zeros(sums_of(lhs.dtype()), m * n * batch)
    } else {
        let strides = batch_of(lhs_layout, rhs_layout).map_or([0, 0], |b| b.strides.map(|[_, inner]| inner as usize));
        let (lhs, lhs_layout) = in_sums(lhs, one_batch(lhs_layout, batch, strides[0]));
        let (rhs, rhs_layout) = in_sums(rhs, one_batch(rhs_layout, batch, strides[1]));
        lhs.matmul(&rhs, (batch, m, n, k), &lhs_layout, &rhs_layout)?
    };
    let is_linear = op.activation == Activation::Identity && op.alpha == 1.0;
    let is_rounded = problem.d.format == format_of(sums.dtype())?;
    if is_rounded && is_linear && third.is_none() && op.residual.is_none() {
        return Ok(sums);
    }
    let bias = third.filter(|_| op.third == Some(Third::Bias));
    let residual = third.filter(|_| op.third == Some(Third::Residual) && op.beta != 0.0);
    let guard = op.residual.as_ref().filter(|_| op.beta != 0.0).map(|residual| residual.storage_and_layout());
    let residual = match &guard {
        Some((storage, layout)) => match &**storage {
            Storage::Cpu(storage) => Some((storage, *layout)),
            _ => ::candle::bail!("gemm: the residual is on another device than the operands"),
        },
        None => residual,
    };
    macro_rules! apply {
        ($type:ty, $sums:ty) => {{
            let sums = sums.as_slice::<$sums>()?;
            let values: Vec<$type> = epilogue(op, sums, n, slice(bias)?, slice(residual)?);
            Ok(<$type>::to_cpu_storage_owned(values))
        }};
    }
    match problem.d.format {
        Format::F16 => apply!(f16, f32),
        Format::BF16 => apply!(bf16, f32),
        Format::F32 => apply!(f32, f32),
        _ => apply!(f64, f64),
    }
}

fn zeros(dtype: DType, count: usize) -> CpuStorage {
    match dtype {
        DType::F64 => CpuStorage::F64(vec![0.0; count]),
        _ => CpuStorage::F32(vec![0.0; count]),
    }
}

/// The layout with its batch dimensions merged into one. A single row gets a dense row stride, which candle assumes.
fn one_batch(layout: &Layout, batch: usize, batch_stride: usize) -> Layout {
    let (&[.., rows, cols], &[.., row_stride, col_stride]) = (layout.dims(), layout.stride()) else {
        unreachable!("operands have two dimensions")
    };
    let row_stride = if rows == 1 { cols } else { row_stride };
    Layout::new(Shape::from((batch, rows, cols)), vec![batch_stride, row_stride, col_stride], layout.start_offset())
}

/// The operand in the type of its sums: candle's product of f16 rounds partial sums to f16.
fn in_sums(storage: &CpuStorage, layout: Layout) -> (Cow<'_, CpuStorage>, Layout) {
    let (values, layout) = match storage {
        CpuStorage::F16(values) => widened(values, &layout, <[f16]>::convert_to_f32_slice, f16::to_f32),
        CpuStorage::BF16(values) => widened(values, &layout, <[bf16]>::convert_to_f32_slice, bf16::to_f32),
        _ => return (Cow::Borrowed(storage), layout),
    };
    (Cow::Owned(CpuStorage::F32(values)), layout)
}

/// A dense copy in f32 in the same order of lines. A matrix that the batch repeats is copied once.
fn widened<T: Copy + Sync>(
    values: &[T],
    layout: &Layout,
    convert: fn(&[T], &mut [f32]),
    one: fn(T) -> f32,
) -> (Vec<f32>, Layout) {
    let (&[batch, rows, cols], &[batch_stride, row_stride, col_stride]) = (layout.dims(), layout.stride()) else {
        unreachable!("`one_batch` makes three dimensions")
    };
    let has_rows = col_stride == 1 || row_stride != 1;
    let (lines, length) = if has_rows { (rows, cols) } else { (cols, rows) };
    let (line_stride, stride) = if has_rows { (row_stride, col_stride) } else { (col_stride, row_stride) };
    let matrices = if batch_stride == 0 { 1 } else { batch };
    let mut wide = vec![0.0; matrices * lines * length];
    wide.par_chunks_mut(length).enumerate().for_each(|(line, wide)| {
        let first = layout.start_offset() + line / lines * batch_stride + line % lines * line_stride;
        if stride == 1 {
            convert(&values[first..first + length], wide);
        } else {
            wide.iter_mut().enumerate().for_each(|(i, x)| *x = one(values[first + i * stride]));
        }
    });
    let [row_stride, col_stride] = if has_rows { [length, 1] } else { [1, length] };
    let batch_stride = if batch_stride == 0 { 0 } else { lines * length };
    (wide, Layout::new(layout.shape().clone(), vec![batch_stride, row_stride, col_stride], 0))
}

/// The values of a contiguous input.
fn slice<'a, T: WithDType>(input: Option<(&'a CpuStorage, &'a Layout)>) -> Result<Option<&'a [T]>> {
    let Some((storage, layout)) = input else { return Ok(None) };
    let Some((start, end)) = layout.contiguous_offsets() else {
        ::candle::bail!("gemm: bias and residual must be contiguous; call `.contiguous()?` on them")
    };
    // An empty tensor may begin behind its storage.
    Ok(Some(storage.as_slice::<T>()?.get(start..end).unwrap_or_default()))
}

/// D of the sums, computed in their type and rounded once.
fn epilogue<T: WithDType, Sum: Real + Send + Sync>(
    op: &GemmOp,
    sums: &[Sum],
    n: usize,
    bias: Option<&[T]>,
    residual: Option<&[T]>,
) -> Vec<T> {
    let (alpha, beta) = (Sum::from_f64(op.alpha), Sum::from_f64(op.beta));
    let load = |value: T| Sum::from_f64(value.to_f64());
    let of = |(index, sum): (usize, &Sum)| {
        let bias = bias.map_or(Sum::zero(), |bias| load(bias[index % n]));
        let x = op.activation.apply(alpha * *sum + bias);
        let y = match residual.map(|residual| beta * load(residual[index])) {
            Some(up) if op.gates_c => x * up,
            Some(residual) => x + residual,
            None => x,
        };
        rounded(y)
    };
    sums.par_iter().enumerate().with_min_len(1 << 10).map(of).collect()
}
