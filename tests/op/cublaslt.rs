//! The functions of candle-cublaslt: every combination of their arguments, against candle's own operations in f64.

use crate::{exact, randn};
use candle::{DType, Device, Result, Tensor, D};
use candle_tilegemm::cublaslt::{fused_batch_matmul, fused_matmul, Activation, CublasLt};

const ACTIVATIONS: [Option<Activation>; 4] =
    [None, Some(Activation::Relu), Some(Activation::Gelu), Some(Activation::GeluErf)];

/// `act(alpha * b @ a^T + beta * out + bias)` by candle, in f64.
fn formula(
    [a, b, out, bias]: [Option<&Tensor>; 4],
    [alpha, beta]: [Option<f32>; 2],
    act: Option<Activation>,
) -> Result<Tensor> {
    let (a, b) = (exact(a.unwrap())?, exact(b.unwrap())?);
    let mut sum = b.matmul(&a.t()?)?.affine(alpha.unwrap_or(1.0).into(), 0.0)?;
    if let (Some(out), Some(beta)) = (out, beta) {
        sum = (sum + exact(out)?.affine(beta.into(), 0.0)?)?;
    }
    if let Some(bias) = bias {
        sum = sum.broadcast_add(&exact(bias)?)?;
    }
    match act {
        None => Ok(sum),
        Some(Activation::Relu) => sum.relu(),
        Some(Activation::Gelu) => sum.gelu(),
        Some(Activation::GeluErf) => sum.gelu_erf(),
    }
}

#[test]
fn cublaslt_has_the_formula_of_its_arguments() -> Result<()> {
    let lt = CublasLt::new(&Device::Cpu)?;
    let mut cases = 0;
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 0.1), (DType::F16, 1e-2)] {
        let (a, b, out, bias) = (
            randn(&[2, 7, 6], dtype)?.transpose(1, 2)?.narrow(1, 1, 5)?, // no dense operand
            randn(&[2, 3, 7], dtype)?,
            randn(&[2, 3, 5], dtype)?,
            randn(&[5], dtype)?,
        );
        for number in 0..16 {
            let given = |bit: u32| number >> bit & 1 == 1;
            let (alpha, beta) = (given(0).then_some(0.5), given(1).then_some(-2.0));
            let (out, bias) = (given(2).then_some(&out), given(3).then_some(&bias));
            for act in ACTIVATIONS {
                let what = format!("{dtype:?}, alpha {alpha:?}, beta {beta:?}, {act:?}, case {number}");
                let check = |d: Tensor, expected: Tensor| -> Result<()> {
                    assert_eq!((d.dims(), d.dtype()), (expected.dims(), dtype), "{what}");
                    let error = (exact(&d)? - expected)?.abs()?.flatten_all()?.max(D::Minus1)?.to_scalar::<f64>()?;
                    assert!(error <= tolerance, "{what}: {error:e}");
                    Ok(())
                };
                let batched = fused_batch_matmul(&a, &b, out, alpha, beta, bias, act, lt.clone())?;
                check(batched, formula([Some(&a), Some(&b), out, bias], [alpha, beta], act)?)?;
                let first = out.map(|out| out.get(0)).transpose()?;
                let (a, b, out) = (a.get(0)?, b.get(0)?, first.as_ref());
                let single = fused_matmul(&a, &b, out, alpha, beta, bias, act, lt.clone())?;
                check(single, formula([Some(&a), Some(&b), out, bias], [alpha, beta], act)?)?;
                cases += 2;
            }
        }
    }
    assert_eq!(cases, 3 * 16 * 4 * 2);
    Ok(())
}

#[test]
fn cublaslt_refuses_shapes_that_do_not_fit() -> Result<()> {
    let lt = CublasLt::new(&Device::Cpu)?;
    let f32s = |dims: &[usize]| randn(dims, DType::F32);
    let single = |a: &[usize], b: &[usize], bias: &[usize], out: &[usize]| -> Result<Tensor> {
        let out = f32s(out)?;
        fused_matmul(&f32s(a)?, &f32s(b)?, Some(&out), None, Some(1.0), Some(&f32s(bias)?), None, lt.clone())
    };
    assert!(single(&[5, 4], &[3, 4], &[5], &[3, 5]).is_ok());
    for (what, result) in [
        ("K", single(&[5, 4], &[3, 6], &[5], &[3, 5])),
        ("the bias", single(&[5, 4], &[3, 4], &[3], &[3, 5])),
        ("the residual", single(&[5, 4], &[3, 4], &[5], &[5, 3])),
        ("a batch", single(&[2, 5, 4], &[2, 3, 4], &[5], &[2, 3, 5])),
    ] {
        assert!(result.is_err(), "{what} does not fit");
    }
    let batched =
        |a: &[usize], b: &[usize]| fused_batch_matmul(&f32s(a)?, &f32s(b)?, None, None, None, None, None, lt.clone());
    assert!(batched(&[2, 5, 4], &[2, 3, 4]).is_ok());
    assert!(batched(&[5, 4], &[3, 4]).is_err(), "matrices are no batch");
    let error = batched(&[1, 5, 4], &[2, 3, 4]).unwrap_err().to_string();
    assert!(error.contains("`a` has 1 matrices and `b` has 2"), "{error}");
    Ok(())
}
