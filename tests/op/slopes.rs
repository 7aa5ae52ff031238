//! Slopes of activations, as gradients have them.

use crate::exact;
use candle::{DType, Device, Result, Tensor, Var};
use candle_tilegemm::{Activation, Gemm};

/// Points and the slopes there, of the formulas in 60 digits (mpmath), rounded to f64.
#[rustfmt::skip]
const SLOPES: [(Activation, [(f64, f64); 13]); 3] = [
    (Activation::GeluErf, [(-6.0, -3.5468709453902015e-08), (-4.5, -6.852916185634458e-05), (-3.0, -0.011945647204183927), (-2.0, -0.0852318010781969), (-0.5, 0.13250487534383715), (-0.125, 0.4007820643017934), (0.0, 0.5), (0.3, 0.7323277668271099), (0.75, 0.9992257217392351), (1.0, 1.0833154705876864), (2.5, 1.037611085908145), (4.0, 1.0005036496612265), (6.0, 1.0000000354687095)]),
    (Activation::GeluTanh, [(-6.0, -7.709973930953696e-10), (-4.5, -2.9322270442755096e-05), (-3.0, -0.011584166630969726), (-2.0, -0.08609925662361838), (-0.5, 0.1326300964653577), (-0.125, 0.40078459383720855), (0.0, 0.5), (0.3, 0.7322954516388018), (0.75, 0.9989382561374143), (1.0, 1.0829640838457826), (2.5, 1.037951576212666), (4.0, 1.0003351231971227), (6.0, 1.0000000007709975)]),
    (Activation::Silu, [(-6.0, -0.012326432591525513), (-4.5, -0.03791109111942038), (-3.0, -0.08810410601516962), (-2.0, -0.09078424878489548), (-0.5, 0.2600388126973482), (-0.125, 0.4376623797495416), (0.0, 0.5), (0.3, 0.6477800103188828), (0.75, 0.8425999444967535), (1.0, 0.9276705118714867), (2.5, 1.0994011113415267), (4.0, 1.052664614891073), (6.0, 1.0123264325915255)]),
];

/// The gradient of `activation(x)` by each number.
fn slopes(activation: Activation, x: &Var) -> Result<Tensor> {
    let one = Tensor::ones((1, 1), x.dtype(), &Device::Cpu)?;
    let gradients = Gemm::new().activation(activation).forward(x, &one)?.sum_all()?.backward()?;
    Ok(gradients.get(x).unwrap().clone())
}

fn column(points: &[f64], dtype: DType) -> Result<Var> {
    Var::from_tensor(&Tensor::from_slice(points, (points.len(), 1), &Device::Cpu)?.to_dtype(dtype)?)
}

#[test]
fn slopes_have_every_digit_of_the_dtype() -> Result<()> {
    for (activation, expected) in SLOPES {
        let points = expected.map(|(x, _)| x);
        for (dtype, tolerance) in [(DType::F64, 1e-14), (DType::F32, 2e-6)] {
            let got = exact(&slopes(activation, &column(&points, dtype)?)?)?.flatten_all()?.to_vec1::<f64>()?;
            for ((x, expected), got) in expected.into_iter().zip(got) {
                // In f32 some points themselves are rounded.
                let error = (got - expected).abs();
                assert!(error <= tolerance * expected.abs(), "{activation:?} at {x}, {dtype:?}: {got:e}, {expected:e}");
            }
        }
    }
    Ok(())
}

#[test]
fn slopes_have_their_limits() -> Result<()> {
    const POINTS: [f64; 6] = [f64::NEG_INFINITY, -2000.0, -0.0, 0.0, 2000.0, f64::INFINITY];
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        for activation in Activation::ALL {
            let middle = match activation {
                Activation::Identity | Activation::Relu => 1.0,
                _ => 0.5,
            };
            let below = if activation == Activation::Identity { 1.0 } else { 0.0 };
            let got = exact(&slopes(activation, &column(&POINTS, dtype)?)?)?.flatten_all()?.to_vec1::<f64>()?;
            assert_eq!(got, [below, below, middle, middle, 1.0, 1.0], "{activation:?} in {dtype:?}");
            let nan = exact(&slopes(activation, &column(&[f64::NAN], dtype)?)?)?.flatten_all()?.to_vec1::<f64>()?;
            assert_eq!(nan[0].is_nan(), activation != Activation::Identity, "{activation:?} of NaN in {dtype:?}");
        }
    }
    Ok(())
}

#[test]
fn slopes_have_a_gradient_of_their_own() -> Result<()> {
    const STEP: f64 = 1e-5;
    let points: Vec<f64> = (-30..30).map(|i| f64::from(i) * 0.17 + 0.01).collect();
    let x = column(&points, DType::F64)?;
    for activation in [Activation::GeluErf, Activation::GeluTanh, Activation::Silu] {
        let gradients = slopes(activation, &x)?.sum_all()?.backward()?;
        let curvatures = gradients.get(&x).unwrap().flatten_all()?.to_vec1::<f64>()?;
        for (x, got) in points.iter().zip(curvatures) {
            let expected = (activation.slope(x + STEP) - activation.slope(x - STEP)) / (2.0 * STEP);
            assert!((got - expected).abs() < 1e-8, "{activation:?} at {x}: {got}, not {expected}");
        }
    }
    Ok(())
}
