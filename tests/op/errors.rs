//! What does not fit is refused, in candle's own words where candle refuses it too.

use crate::randn;
use candle::{DType, Device, Error, Result, Tensor};
use candle_tilegemm::{Gemm, GemmExt};

/// An error's own text, without a backtrace.
fn text<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => "no error".into(),
        Err(Error::WithBacktrace { inner, .. }) => inner.to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn operands_that_do_not_fit_get_candles_own_errors() -> Result<()> {
    let f32s = |dims: &[usize]| randn(dims, DType::F32);
    let ints = Tensor::ones((3, 3), DType::U32, &Device::Cpu)?;
    let bytes = Tensor::ones((3, 3), DType::U8, &Device::Cpu)?;
    let cases = [
        ("inner sizes", f32s(&[3, 4])?, f32s(&[5, 6])?),
        ("inner sizes of a batch", f32s(&[2, 3, 4])?, f32s(&[2, 5, 6])?),
        ("vectors", f32s(&[4])?, f32s(&[4])?),
        ("a vector on the right", f32s(&[3, 4])?, f32s(&[4])?),
        ("a vector on the left", f32s(&[4])?, f32s(&[4, 3])?),
        ("scalars", f32s(&[])?, f32s(&[])?),
        ("batches", f32s(&[2, 3, 4])?, f32s(&[3, 4, 5])?),
        ("batches of another rank", f32s(&[2, 3, 3, 4])?, f32s(&[2, 4, 5])?),
        ("dtypes", f32s(&[3, 4])?, randn(&[4, 5], DType::F64)?),
        ("dtypes, empty", f32s(&[0, 4])?, randn(&[4, 5], DType::F64)?),
        ("half dtypes", randn(&[3, 4], DType::F16)?, randn(&[4, 5], DType::BF16)?),
        ("integers", ints.clone(), ints.clone()),
        ("bytes", bytes.clone(), bytes),
        ("an integer and a float", f32s(&[3, 3])?, ints),
    ];
    for (what, lhs, rhs) in cases {
        let candles = text(lhs.matmul(&rhs));
        assert_ne!(candles, "no error", "{what}");
        assert_eq!(text(lhs.gemm(&rhs)), candles, "{what}");
    }
    Ok(())
}

#[test]
fn an_epilogue_that_does_not_fit_is_named_with_what_would() -> Result<()> {
    let (lhs, rhs) = (randn(&[2, 3, 4], DType::F32)?, randn(&[4, 5], DType::F32)?);
    let f32s = |dims: &[usize]| randn(dims, DType::F32);
    let cases = [
        (Gemm::new().bias(&f32s(&[4])?), "gemm: the bias has shape [4], expected [5], one value per column"),
        (Gemm::new().bias(&f32s(&[1, 5])?), "gemm: the bias has shape [1, 5], expected [5], one value per column"),
        (
            Gemm::new().residual(&f32s(&[3, 5])?),
            "gemm: the residual has shape [3, 5], expected [2, 3, 5], that of the result",
        ),
        (Gemm::new().bias(&randn(&[5], DType::F64)?), "dtype mismatch in gemm bias, lhs: F32, rhs: F64"),
        (
            Gemm::new().residual(&randn(&[2, 3, 5], DType::BF16)?),
            "dtype mismatch in gemm residual, lhs: F32, rhs: BF16",
        ),
    ];
    for (gemm, expected) in cases {
        assert_eq!(text(gemm.forward(&lhs, &rhs)), expected);
    }
    Ok(())
}
