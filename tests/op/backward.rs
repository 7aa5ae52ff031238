//! Gradients, against candle's autograd of the same thing composed of its own ops.

use crate::{activate, assert_close, product, randn};
use candle::{DType, Device, Result, Tensor, Var};
use candle_tilegemm::{Activation, Gemm, GemmExt};

/// Operands of one product; each is a variable.
struct Inputs {
    lhs: Var,
    rhs: Var,
    bias: Var,
    residual: Var,
}

impl Inputs {
    fn new(lhs: &[usize], rhs: &[usize]) -> Result<Self> {
        let var = |dims: &[usize]| Var::from_tensor(&randn(dims, DType::F64)?);
        let (lhs, rhs) = (var(lhs)?, var(rhs)?);
        let result = product(&lhs, &rhs)?;
        let bias = var(&result.dims()[result.rank() - 1..])?;
        Ok(Self { lhs, rhs, bias, residual: var(result.dims())? })
    }

    fn named(&self) -> [(&'static str, &Var); 4] {
        [("lhs", &self.lhs), ("rhs", &self.rhs), ("bias", &self.bias), ("residual", &self.residual)]
    }

    /// Compares the gradients of a weighted sum of two results that should be the same.
    fn assert_same_gradients(&self, ours: &Tensor, candles: &Tensor, what: &str) -> Result<()> {
        assert_close(ours, candles, 1e-10, what)?;
        let weights = randn(ours.dims(), DType::F64)?;
        let ours = (ours * &weights)?.sum_all()?.backward()?;
        let candles = (candles * &weights)?.sum_all()?.backward()?;
        for (name, var) in self.named() {
            match (ours.get(var), candles.get(var)) {
                (Some(ours), Some(candles)) => assert_close(ours, candles, 1e-10, &format!("{what}: d {name}"))?,
                (None, None) => {}
                (ours, _) => panic!("{what}: only one has a gradient of {name}; ours: {}", ours.is_some()),
            }
        }
        Ok(())
    }
}

/// Shapes of lhs and rhs: plain, batched, broadcast on either side or both, single rows and columns.
const SHAPES: [(&[usize], &[usize]); 11] = [
    (&[5, 4], &[4, 3]),
    (&[2, 5, 4], &[2, 4, 3]),
    (&[2, 5, 4], &[4, 3]),
    (&[5, 4], &[2, 4, 3]),
    (&[2, 1, 5, 4], &[3, 4, 3]),
    (&[2, 2, 3, 5, 4], &[2, 1, 4, 3]),
    (&[1, 4], &[4, 1]),
    (&[3, 5, 1], &[1, 1, 3]),
    (&[4, 3, 1, 5], &[3, 5, 6]),
    (&[3, 4, 5], &[2, 3, 5, 1]),
    (&[2, 4, 1, 5], &[2, 1, 5, 3]),
];

#[test]
fn gradients_of_the_product() -> Result<()> {
    for (lhs, rhs) in SHAPES {
        let inputs = Inputs::new(lhs, rhs)?;
        let candles = product(&inputs.lhs, &inputs.rhs)?;
        inputs.assert_same_gradients(&inputs.lhs.gemm(&inputs.rhs)?, &candles, &format!("{lhs:?} @ {rhs:?}"))?;
    }
    Ok(())
}

#[test]
fn gradients_through_views() -> Result<()> {
    let inputs = Inputs::new(&[6, 5], &[5, 8])?;
    let (lhs, rhs) = (inputs.lhs.narrow(0, 1, 4)?, inputs.rhs.narrow(1, 2, 3)?);
    let candles = product(&lhs, &rhs)?;
    inputs.assert_same_gradients(&lhs.gemm(&rhs)?, &candles, "windows")?;
    let (transposed_lhs, transposed_rhs) = (rhs.t()?, lhs.t()?);
    inputs.assert_same_gradients(&transposed_lhs.gemm(&transposed_rhs)?.t()?, &candles, "transposed windows")
}

#[test]
fn slopes_are_exact() -> Result<()> {
    const STEP: f64 = 1e-5;
    let points: Vec<f64> = (-40..40).map(|i| f64::from(i) * 0.13 + 0.01).collect();
    let x = Var::from_tensor(&Tensor::from_slice(&points, (points.len(), 1), &Device::Cpu)?)?;
    let one = Tensor::ones((1, 1), DType::F64, &Device::Cpu)?;
    for activation in Activation::ALL {
        let gradients = Gemm::new().activation(activation).forward(&x, &one)?.sum_all()?.backward()?;
        let slopes = gradients.get(&x).unwrap().flatten_all()?.to_vec1::<f64>()?;
        for (x, slope) in points.iter().zip(slopes) {
            let expected = (activation.apply(x + STEP) - activation.apply(x - STEP)) / (2.0 * STEP);
            assert!((slope - expected).abs() < 1e-9, "{activation:?} at {x}: {slope}, not {expected}");
        }
    }
    Ok(())
}

/// candle's relu has slope 1 at 0.
#[test]
fn gradients_at_zero() -> Result<()> {
    let zero = Var::zeros((2, 3), DType::F64, &Device::Cpu)?;
    let one = Tensor::eye(3, DType::F64, &Device::Cpu)?;
    for activation in Activation::ALL {
        let gradient = |result: Tensor| -> Result<Vec<f64>> {
            result.sum_all()?.backward()?.get(&zero).unwrap().flatten_all()?.to_vec1()
        };
        let ours = gradient(Gemm::new().activation(activation).forward(&zero, &one)?)?;
        assert_eq!(ours, gradient(activate(activation, &zero.matmul(&one)?)?)?, "{activation:?}");
    }
    Ok(())
}

/// An activation whose gradients candle has to the last digits: for the slopes of its own gelus it has six of the constants.
fn activate_in_steps(activation: Activation, x: &Tensor) -> Result<Tensor> {
    let half = (x * 0.5)?;
    let inner = match activation {
        Activation::GeluErf => (x * std::f64::consts::FRAC_1_SQRT_2)?.erf()?,
        Activation::GeluTanh => {
            let cube = (x.sqr()? * x)?;
            ((x + (cube * 0.044715)?)? * (2.0 / std::f64::consts::PI).sqrt())?.tanh()?
        }
        _ => return activate(activation, x),
    };
    half * (inner + 1.0)?
}

#[test]
fn gradients_through_every_epilogue() -> Result<()> {
    for (lhs, rhs) in SHAPES {
        for activation in Activation::ALL {
            for (has_bias, has_residual) in [(false, false), (true, false), (false, true), (true, true)] {
                for (alpha, beta) in [(1.0, 1.0), (0.5, -2.0)] {
                    let inputs = Inputs::new(lhs, rhs)?;
                    let mut gemm = Gemm::new().alpha(alpha).beta(beta).activation(activation);
                    let mut candles = (product(&inputs.lhs, &inputs.rhs)? * alpha)?;
                    if has_bias {
                        gemm = gemm.bias(&inputs.bias);
                        candles = candles.broadcast_add(&inputs.bias)?;
                    }
                    candles = activate_in_steps(activation, &candles)?;
                    if has_residual {
                        gemm = gemm.residual(&inputs.residual);
                        candles = (candles + (inputs.residual.as_tensor() * beta)?)?;
                    }
                    let what = format!(
                        "{lhs:?} @ {rhs:?} {activation:?} {alpha} bias {has_bias} {beta} residual {has_residual}"
                    );
                    inputs.assert_same_gradients(&gemm.forward(&inputs.lhs, &inputs.rhs)?, &candles, &what)?;
                }
            }
        }
    }
    Ok(())
}

/// A residual that needs no gradient goes along with the bias instead of being added afterwards.
#[test]
fn a_residual_without_gradient_is_added_beside_a_bias() -> Result<()> {
    let inputs = Inputs::new(&[2, 5, 4], &[4, 3])?;
    let residual = inputs.residual.as_detached_tensor();
    let gemm = Gemm::new().bias(&inputs.bias).activation(Activation::Silu).residual(&residual);
    let product = product(&inputs.lhs, &inputs.rhs)?.broadcast_add(&inputs.bias)?;
    inputs.assert_same_gradients(&gemm.forward(&inputs.lhs, &inputs.rhs)?, &(product.silu()? + residual)?, "detached")
}
