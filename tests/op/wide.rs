//! Results in f32 of 16-bit operands.

use crate::{activate, assert_close, assert_product_in, exact, product, randn};
use candle::{DType, Device, Result, Tensor, Var, D};
use candle_tilegemm::{Activation, Gemm};

fn wide() -> Gemm {
    Gemm::new().out_dtype(DType::F32)
}

/// Sums in f32 are exact to some 1e-6 of the largest, 16-bit results to no better than 1e-4: a result that was rounded in between
/// fails.
const EXACT: f64 = 2e-6;

#[test]
fn sums_are_not_rounded_to_the_type_of_the_operands() -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        for (lhs, rhs) in [
            (vec![3, 300], vec![300, 40]),
            (vec![2, 3, 65], vec![2, 65, 7]),
            (vec![4, 3, 64], vec![64, 9]),
            (vec![1, 1000], vec![1000, 1]),
        ] {
            let (x, w) = (randn(&lhs, dtype)?, randn(&rhs, dtype)?);
            assert_product_in(DType::F32, &wide().forward(&x, &w)?, &x, &w, &format!("{lhs:?} {dtype:?}"))?;
        }
        let transposed = randn(&[40, 300], dtype)?.t()?;
        let x = randn(&[300, 8], dtype)?.t()?;
        let y = wide().forward(&x, &transposed)?;
        assert_product_in(DType::F32, &y, &x, &transposed, "transposed views")?;
    }
    let (x, w) = (randn(&[3, 0], DType::BF16)?, randn(&[0, 4], DType::BF16)?);
    assert_eq!(wide().forward(&x, &w)?.to_vec2::<f32>()?, [[0.0; 4]; 3]);
    Ok(())
}

#[test]
fn bias_activation_and_residual_are_in_f32() -> Result<()> {
    let (x, w) = (randn(&[2, 5, 96], DType::BF16)?, randn(&[96, 33], DType::BF16)?);
    let (bias, residual) = (randn(&[33], DType::F32)?, randn(&[2, 5, 33], DType::F32)?);
    for activation in Activation::ALL {
        let gemm = wide().alpha(0.1).bias(&bias).activation(activation).residual(&residual).beta(-0.5);
        let sums = (product(&exact(&x)?, &exact(&w)?)? * 0.1)?.broadcast_add(&exact(&bias)?)?;
        let expected = (activate(activation, &sums)? + (exact(&residual)? * -0.5)?)?;
        let tolerance = if activation == Activation::GeluErf { 1e-5 } else { EXACT };
        assert_close(&gemm.forward(&x, &w)?, &expected.to_dtype(DType::F32)?, tolerance, &format!("{activation:?}"))?;
    }
    Ok(())
}

/// The gradients of the operands have their type; those of bias and residual are f32.
#[test]
fn gradients_have_the_types_of_what_they_are_of() -> Result<()> {
    let var = |dims: &[usize], dtype| Var::from_tensor(&randn(dims, dtype)?);
    let (x, w) = (var(&[6, 40], DType::BF16)?, var(&[40, 8], DType::BF16)?);
    let (bias, residual) = (var(&[8], DType::F32)?, var(&[6, 8], DType::F32)?);
    let gemm = wide().bias(&bias).activation(Activation::Silu).residual(&residual);
    let grads = gemm.forward(&x, &w)?.sum_all()?.backward()?;

    let [x64, w64, bias64] = [&x, &w, &bias].map(|var| Var::from_tensor(&exact(var).unwrap()).unwrap());
    let sums = x64.matmul(&w64)?.broadcast_add(&bias64)?.silu()?;
    let expected = sums.sum_all()?.backward()?;
    for (what, var, var64, tolerance) in
        [("lhs", &x, &x64, 2e-2), ("rhs", &w, &w64, 2e-2), ("bias", &bias, &bias64, 1e-5)]
    {
        let grad = grads.get(var).unwrap();
        assert_eq!(grad.dtype(), var.dtype(), "{what}");
        assert_close(grad, &expected.get(var64).unwrap().to_dtype(var.dtype())?, tolerance, what)?;
    }
    assert_eq!(grads.get(&residual).unwrap().to_vec2::<f32>()?, [[1.0; 8]; 6]);
    Ok(())
}

#[test]
fn other_types_of_a_result_are_refused_with_what_is_possible() -> Result<()> {
    let (x, w) = (Tensor::ones((2, 3), DType::BF16, &Device::Cpu)?, Tensor::ones((3, 4), DType::BF16, &Device::Cpu)?);
    let said = |result: Result<Tensor>| result.unwrap_err().to_string();
    let text = said(Gemm::new().out_dtype(DType::F64).forward(&x, &w));
    assert!(text.contains("no result in F64 of operands in BF16; f32 of f16 and bf16"), "{text}");
    let f32s = [x.to_dtype(DType::F32)?, w.to_dtype(DType::F32)?];
    let text = said(Gemm::new().out_dtype(DType::BF16).forward(&f32s[0], &f32s[1]));
    assert!(text.contains("no result in BF16 of operands in F32"), "{text}");
    let bias = Tensor::ones(4, DType::BF16, &Device::Cpu)?;
    let text = said(wide().bias(&bias).forward(&x, &w));
    assert!(text.contains("the bias is in BF16, the result in F32; convert the bias"), "{text}");
    // The operands' own type is what there is without asking.
    let same = Gemm::new().out_dtype(DType::BF16).bias(&bias).forward(&x, &w)?;
    assert_eq!(
        (same.dtype(), same.max(D::Minus1)?.to_dtype(DType::F32)?.to_vec1::<f32>()?),
        (DType::BF16, vec![4.0; 2])
    );
    Ok(())
}
