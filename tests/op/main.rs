//! The op and the layers on the CPU, against candle's own.

#![cfg(feature = "candle")]

mod backward;
mod blocks;
mod cublaslt;
mod errors;
mod experts;
mod forward;
mod gated;
mod gguf;
mod into;
mod layers;
mod models;
mod narrow;
mod parallel;
mod qlinear;
mod rounding;
mod scaled;
mod slopes;
mod special;
mod wide;

use candle::{DType, Device, Result, Shape, Tensor, D};
use candle_tilegemm::Activation;

/// Normal numbers, rounded to `dtype`.
fn randn(dims: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::randn(0f64, 1f64, dims, &Device::Cpu)?.to_dtype(dtype)
}

/// The same values in f64, dense.
fn exact(t: &Tensor) -> Result<Tensor> {
    t.to_dtype(DType::F64)?.contiguous()
}

/// Largest error of a sum of `dtype` products relative to the sum of their absolute values: the result's own rounding,
/// and some for the order of summation.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-14,
        DType::F32 => 1e-6,
        DType::F16 => 2e-3,
        _ => 1e-2,
    }
}

/// What rounding may lose of a value so small that `dtype` has fewer digits for it.
fn underflow(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-25),
        DType::F64 => f64::MIN_POSITIVE,
        _ => f64::from(f32::MIN_POSITIVE),
    }
}

/// candle's own product of dense copies with equal batches: what it takes for any rank, and gets right.
fn product(lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
    let split = |t: &Tensor| {
        let (batch, matrix) = t.dims().split_at(t.rank() - 2);
        (Shape::from(batch), [matrix[0], matrix[1]])
    };
    let ((l_batch, [m, k]), (r_batch, [_, n])) = (split(lhs), split(rhs));
    let batch = l_batch.broadcast_shape_binary_op(&r_batch, "matmul")?;
    let dense = |t: &Tensor, rows: usize, cols: usize| {
        let copy = t.broadcast_as(batch.clone().extend(&[rows, cols]))?.contiguous()?;
        copy.reshape((batch.elem_count(), rows, cols))
    };
    dense(lhs, m, k)?.matmul(&dense(rhs, k, n)?)?.reshape(batch.clone().extend(&[m, n]))
}

/// Whether `actual` is the product of `lhs` and `rhs` in their type, as candle computes it in f64.
fn assert_product(actual: &Tensor, lhs: &Tensor, rhs: &Tensor, what: &str) -> Result<()> {
    assert_product_in(lhs.dtype(), actual, lhs, rhs, what)
}

/// Whether `actual` is the product of `lhs` and `rhs` in `dtype`, as candle computes it in f64.
fn assert_product_in(dtype: DType, actual: &Tensor, lhs: &Tensor, rhs: &Tensor, what: &str) -> Result<()> {
    let (l, r) = (exact(lhs)?, exact(rhs)?);
    let expected = product(&l, &r)?;
    assert_eq!(actual.dims(), expected.dims(), "{what}");
    assert_eq!(actual.dtype(), dtype, "{what}");
    if expected.elem_count() == 0 {
        return Ok(());
    }
    let bound = product(&l.abs()?, &r.abs()?)?.affine(tolerance(dtype), underflow(dtype))?;
    let excess = ((exact(actual)? - expected)?.abs()? - bound)?.flatten_all()?.max(D::Minus1)?;
    let excess = excess.to_scalar::<f64>()?;
    assert!(excess <= 0.0, "{what}: {excess:e} beyond the tolerance");
    Ok(())
}

/// Whether two tensors differ by at most `tolerance`, relative to the largest value.
fn assert_close(actual: &Tensor, expected: &Tensor, tolerance: f64, what: &str) -> Result<()> {
    assert_eq!(actual.dims(), expected.dims(), "{what}");
    assert_eq!(actual.dtype(), expected.dtype(), "{what}");
    let max = |t: Tensor| t.abs()?.flatten_all()?.max(D::Minus1)?.to_scalar::<f64>();
    let error = max((exact(actual)? - exact(expected)?)?)?;
    let scale = max(exact(expected)?)?.max(1.0);
    assert!(error <= tolerance * scale, "{what}: off by {error:e} at a largest value of {scale:.3}");
    Ok(())
}

/// candle's own op for an activation.
fn activate(activation: Activation, x: &Tensor) -> Result<Tensor> {
    match activation {
        Activation::Identity => Ok(x.clone()),
        Activation::Relu => x.relu(),
        Activation::GeluErf => x.gelu_erf(),
        Activation::GeluTanh => x.gelu(),
        Activation::Silu => x.silu(),
        other => panic!("no formula for {other:?}"),
    }
}
