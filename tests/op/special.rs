//! What is not finite: operands that are not read, and functions at their limits.

use crate::{exact, randn};
use candle::{DType, Device, Result, Tensor, Var};
use candle_tilegemm::{Activation, Gemm};

const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

fn filled(value: f64, dims: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::full(value, dims, &Device::Cpu)?.to_dtype(dtype)
}

fn values(t: &Tensor) -> Result<Vec<f64>> {
    exact(t)?.flatten_all()?.to_vec1()
}

#[test]
fn an_alpha_of_0_reads_no_operand() -> Result<()> {
    for dtype in DTYPES {
        let (bias, residual) = (randn(&[3], dtype)?, randn(&[2, 5, 3], dtype)?);
        for activation in Activation::ALL {
            let gemm = Gemm::new().bias(&bias).activation(activation).residual(&residual).beta(-0.5);
            let run = |gemm: Gemm, x| gemm.forward(&filled(x, &[2, 5, 4], dtype)?, &filled(x, &[4, 3], dtype)?);
            let expected = values(&run(gemm.clone(), 0.0)?)?;
            for x in [f64::NAN, f64::INFINITY] {
                assert_eq!(values(&run(gemm.clone().alpha(0.0), x)?)?, expected, "{dtype:?} {activation:?} of {x}");
                assert_eq!(values(&run(Gemm::new().alpha(0.0), x)?)?, [0.0; 30], "{dtype:?} of {x}");
            }
        }
    }
    Ok(())
}

#[test]
fn an_alpha_of_0_gives_operands_gradients_of_0() -> Result<()> {
    let lhs = Var::from_tensor(&filled(f64::NAN, &[2, 5, 4], DType::F64)?)?;
    let rhs = Var::from_tensor(&filled(f64::INFINITY, &[4, 3], DType::F64)?)?;
    let bias = Var::from_tensor(&randn(&[3], DType::F64)?)?;
    for activation in Activation::ALL {
        let gemm = Gemm::new().alpha(0.0).bias(&bias).activation(activation);
        let gradients = gemm.forward(&lhs, &rhs)?.sum_all()?.backward()?;
        assert_eq!(values(gradients.get(&lhs).unwrap())?, [0.0; 40], "{activation:?}");
        assert_eq!(values(gradients.get(&rhs).unwrap())?, [0.0; 12], "{activation:?}");
        assert!(values(gradients.get(&bias).unwrap())?.iter().all(|x| x.is_finite()), "{activation:?}");
    }
    Ok(())
}

/// Contiguous and not, alone and beside a bias, with and without a gradient.
#[test]
fn a_beta_of_0_reads_no_residual() -> Result<()> {
    for dtype in DTYPES {
        let (lhs, rhs, bias) = (randn(&[5, 4], dtype)?, randn(&[4, 3], dtype)?, randn(&[3], dtype)?);
        for (x, transposed) in [(f64::NAN, false), (f64::INFINITY, false), (f64::NAN, true)] {
            let residual = Var::from_tensor(&filled(x, if transposed { &[3, 5] } else { &[5, 3] }, dtype)?)?;
            for has_bias in [false, true] {
                let gemm = Gemm::new().activation(Activation::Silu);
                let gemm = if has_bias { gemm.bias(&bias) } else { gemm };
                let expected = values(&gemm.forward(&lhs, &rhs)?)?;
                for residual in [residual.as_tensor().clone(), residual.as_detached_tensor()] {
                    let residual = if transposed { residual.t()? } else { residual };
                    let result = gemm.clone().residual(&residual).beta(0.0).forward(&lhs, &rhs)?;
                    assert_eq!(values(&result)?, expected, "{dtype:?} {x} transposed {transposed} bias {has_bias}");
                }
                let view = if transposed { residual.t()? } else { residual.as_tensor().clone() };
                let gradients = gemm.residual(&view).beta(0.0).forward(&lhs, &rhs)?.sum_all()?.backward()?;
                assert_eq!(values(gradients.get(&residual).unwrap())?, [0.0; 15], "{dtype:?} {x} bias {has_bias}");
            }
        }
    }
    Ok(())
}

/// The class of a number: NaN, infinite with its sign, zero, or its value.
fn class(x: f64) -> String {
    match x {
        x if x.is_nan() => "NaN".into(),
        0.0 => "0".into(), // and -0
        x => x.to_string(),
    }
}

#[test]
fn activations_of_what_is_not_finite_are_the_same_in_every_dtype() -> Result<()> {
    const POINTS: [f64; 5] = [f64::NAN, f64::NEG_INFINITY, f64::INFINITY, 0.0, -0.0];
    for dtype in DTYPES {
        for activation in Activation::ALL {
            let x = Tensor::new(&POINTS, &Device::Cpu)?.to_dtype(dtype)?.reshape((5, 1))?;
            let (one, none) = (filled(1.0, &[1, 1], dtype)?, filled(0.0, &[1, 5], dtype)?);
            let below = if activation == Activation::Identity { "-inf" } else { "0" };
            // As products, and as the bias of a product.
            let as_product = Gemm::new().activation(activation).forward(&x, &one)?;
            let as_bias = Gemm::new().activation(activation).bias(&x.flatten_all()?).forward(&one, &none)?;
            for result in [as_product, as_bias] {
                let got: Vec<String> = values(&result)?.into_iter().map(class).collect();
                assert_eq!(got, ["NaN", below, "inf", "0", "0"], "{dtype:?} {activation:?}");
            }
        }
    }
    Ok(())
}
