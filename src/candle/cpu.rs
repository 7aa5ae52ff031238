//! The op on the CPU: candle's own product, then the epilogue in one pass.

use super::lowering::{batch_of, format_of, GemmOp, Third};
use crate::problem::{Activation, Format, Real};
use crate::stats;
use ::candle::backend::{BackendDevice, BackendStorage};
use ::candle::cpu_backend::CpuDevice;
use ::candle::{CpuStorage, Layout, Result, Shape, Storage, WithDType};
use rayon::prelude::*;

/// Computes `op`; `third` is its bias or residual.
pub(super) fn forward(
    op: &GemmOp,
    [(lhs, lhs_layout), (rhs, rhs_layout)]: [(&CpuStorage, &Layout); 2],
    third: Option<(&CpuStorage, &Layout)>,
) -> Result<CpuStorage> {
    let out_dtype = op.out.unwrap_or(lhs.dtype());
    let problem = op.problem(format_of(lhs.dtype())?, lhs_layout, rhs_layout, None)?;
    stats::count_cpu(&problem);
    let (m, n, k, batch) = (problem.m, problem.n, problem.k, problem.batch_count());
    let mut out = if problem.is_empty() || k == 0 || op.alpha == 0.0 {
        CpuDevice.zeros_impl(&Shape::from((batch, m, n)), out_dtype)?
    } else {
        let strides = batch_of(lhs_layout, rhs_layout).map_or([0, 0], |b| b.strides.map(|[_, inner]| inner as usize));
        let lhs_layout = one_batch(lhs_layout, batch, strides[0]);
        let rhs_layout = one_batch(rhs_layout, batch, strides[1]);
        if out_dtype == lhs.dtype() {
            lhs.matmul(rhs, (batch, m, n, k), &lhs_layout, &rhs_layout)?
        } else {
            let dense = |layout: &Layout| Layout::contiguous(layout.shape());
            let [lhs_wide, rhs_wide] = [lhs.to_dtype(&lhs_layout, out_dtype)?, rhs.to_dtype(&rhs_layout, out_dtype)?];
            lhs_wide.matmul(&rhs_wide, (batch, m, n, k), &dense(&lhs_layout), &dense(&rhs_layout))?
        }
    };
    let linear = op.activation == Activation::Identity && op.alpha == 1.0;
    if linear && third.is_none() && op.residual.is_none() {
        return Ok(out);
    }
    let bias = third.filter(|_| op.third == Some(Third::Bias));
    let residual = third.filter(|_| op.third == Some(Third::Residual) && op.beta != 0.0);
    let guard = op.residual.as_ref().map(|residual| residual.storage_and_layout());
    let residual = match &guard {
        Some((storage, layout)) => match &**storage {
            Storage::Cpu(storage) => Some((storage, *layout)),
            _ => ::candle::bail!("gemm: the residual is on another device than the operands"),
        },
        None => residual,
    };
    macro_rules! apply {
        ($variant:ident, $acc:ty) => {{
            let CpuStorage::$variant(values) = &mut out else {
                unreachable!("the product has the dtype of the result")
            };
            epilogue::<_, $acc>(op, values, n, slice(bias)?, slice(residual)?)
        }};
    }
    match problem.d.format {
        Format::F16 => apply!(F16, f32),
        Format::BF16 => apply!(BF16, f32),
        Format::F32 => apply!(F32, f32),
        _ => apply!(F64, f64),
    }
    Ok(out)
}

/// The layout with its batch dimensions merged into one. A single row gets a dense row stride, which candle assumes.
fn one_batch(layout: &Layout, batch: usize, batch_stride: usize) -> Layout {
    let (&[.., rows, cols], &[.., row_stride, col_stride]) = (layout.dims(), layout.stride()) else {
        unreachable!("operands have two dimensions")
    };
    let row_stride = if rows == 1 { cols } else { row_stride };
    Layout::new(Shape::from((batch, rows, cols)), vec![batch_stride, row_stride, col_stride], layout.start_offset())
}

/// The values of a contiguous input.
fn slice<'a, T: WithDType>(input: Option<(&'a CpuStorage, &'a Layout)>) -> Result<Option<&'a [T]>> {
    let Some((storage, layout)) = input else { return Ok(None) };
    let Some((start, end)) = layout.contiguous_offsets() else {
        ::candle::bail!("gemm: bias and residual must be contiguous; call `.contiguous()?` on them")
    };
    Ok(Some(&storage.as_slice::<T>()?[start..end]))
}

/// The epilogue over all of D, in parallel chunks; computed in `Acc`, rounded once.
fn epilogue<T: WithDType, Acc: Real + Sync>(
    op: &GemmOp,
    values: &mut [T],
    n: usize,
    bias: Option<&[T]>,
    residual: Option<&[T]>,
) {
    const CHUNK: usize = 1 << 13;
    let (alpha, beta) = (Acc::from_f64(op.alpha), Acc::from_f64(op.beta));
    let load = |value: T| Acc::from_f64(value.to_f64());
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
        for (value, index) in values.iter_mut().zip(chunk * CHUNK..) {
            let bias = bias.map_or(Acc::zero(), |bias| load(bias[index % n]));
            let x = op.activation.apply(alpha * load(*value) + bias);
            let residual = residual.map_or(Acc::zero(), |residual| beta * load(residual[index]));
            *value = T::from_f64((x + residual).to_f64());
        }
    });
}
