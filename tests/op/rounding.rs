//! Results in 16 bits are rounded once: sums, scale, bias, activation and residual are in f32.

use crate::{exact, product, randn};
use candle::{DType, Device, Result, Tensor, Var, D};
use candle_tilegemm::cublaslt::{self, fused_matmul, CublasLt};
use candle_tilegemm::nn::moe::{moe_gemm, FusedMoe, MoeCfg, Routing};
use candle_tilegemm::problem::Gate;
use candle_tilegemm::{Activation, Gemm};

const HALF: [DType; 2] = [DType::F16, DType::BF16];

/// The most that one rounding changes a number by, relative to the number.
fn unit(dtype: DType) -> f64 {
    2f64.powi(if dtype == DType::F16 { -11 } else { -8 })
}

fn filled(value: f64, dims: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::full(value, dims, &Device::Cpu)?.to_dtype(dtype)
}

/// The activation of each number, in f64.
fn activate(activation: Activation, x: &Tensor) -> Result<Tensor> {
    let numbers: Vec<f64> = values(x)?.iter().map(|x| activation.apply(*x)).collect();
    Tensor::from_vec(numbers, x.shape(), &Device::Cpu)
}

fn values(t: &Tensor) -> Result<Vec<f64>> {
    exact(t)?.flatten_all()?.to_vec1()
}

/// Whether every number is the expected one, rounded once; `sums` is the size of what was added up, in f32.
fn assert_rounded_once(actual: &Tensor, expected: &Tensor, sums: f64, what: &str) -> Result<()> {
    let dtype = actual.dtype();
    let bound = exact(expected)?.abs()?.affine(1.001 * unit(dtype), 4e-7 * sums + 2f64.powi(-25))?;
    let excess = ((exact(actual)? - exact(expected)?)?.abs()? - bound)?.flatten_all()?.max(D::Minus1)?;
    let excess = excess.to_scalar::<f64>()?;
    assert!(excess <= 0.0, "{what}: {excess:e} beyond one rounding");
    Ok(())
}

/// Scores of attention beyond the largest f16, which their scale brings back.
#[test]
fn scores_beyond_the_largest_number_are_scaled_before_they_are_rounded() -> Result<()> {
    let (q, k) = (filled(64.0, &[2, 9, 80], DType::F16)?, filled(64.0, &[2, 9, 80], DType::F16)?);
    let scores = Gemm::new().alpha(1.0 / 80f64.sqrt()).forward(&q, &k.t()?)?;
    let expected = filled(327_680.0 / 80f64.sqrt(), &[2, 9, 9], DType::F64)?; // 36,636
    assert_rounded_once(&scores, &expected, 4e4, "scores")?;
    // A residual brings them back, too.
    let residual = filled(-60_000.0, &[2, 9, 9], DType::F16)?;
    let less = Gemm::new().alpha(0.25).residual(&residual).forward(&q, &k.t()?)?;
    assert_rounded_once(&less, &filled(21_920.0, &[2, 9, 9], DType::F64)?, 8e4, "a residual")
}

/// A sum one step of f32 above the middle between two numbers of 16 bits is rounded up.
#[test]
fn sums_just_above_a_tie_are_rounded_up() -> Result<()> {
    for (dtype, step) in [(DType::F16, -10), (DType::BF16, -7)] {
        // 1 + half a step + 2^-23
        let factors = [1.0, 2f64.powi(step - 1), 2f64.powi(-23)];
        let x = Tensor::new(&[factors], &Device::Cpu)?.to_dtype(dtype)?;
        let ones = filled(1.0, &[3, 2], dtype)?;
        let up = 1.0 + 2f64.powi(step);
        for gemm in [Gemm::new(), Gemm::new().activation(Activation::Relu)] {
            assert_eq!(values(&gemm.forward(&x, &ones)?)?, [up; 2], "{dtype:?}");
        }
        let wide = Gemm::new().activation(Activation::Relu).residual(&filled(0.0, &[1, 2], dtype)?);
        assert_eq!(values(&wide.forward(&x, &ones)?)?, [up; 2], "{dtype:?} with a residual");
    }
    Ok(())
}

/// The sum of the first half of K is beyond the largest f16, and every partial sum needs more digits than f16 has.
#[test]
fn partial_sums_are_in_f32() -> Result<()> {
    let half = 4096;
    let x = Tensor::cat(&[filled(20.0, &[3, half], DType::F16)?, filled(-20.0, &[3, half], DType::F16)?], 1)?;
    let one = filled(1.0, &[2 * half, 5], DType::F16)?;
    assert_eq!(values(&Gemm::new().forward(&x, &one)?)?, [0.0; 15]);
    for dtype in HALF {
        for (lhs, rhs) in [(vec![3, 5000], vec![5000, 7]), (vec![2, 3, 3000], vec![3000, 7])] {
            let (x, w) = (randn(&lhs, dtype)?, randn(&rhs, dtype)?);
            let expected = product(&exact(&x)?, &exact(&w)?)?;
            assert_rounded_once(&Gemm::new().forward(&x, &w)?, &expected, 100.0, &format!("{dtype:?} {lhs:?}"))?;
        }
    }
    Ok(())
}

/// Windows, transposed views, single rows and columns, and matrices that a batch repeats.
#[test]
fn every_layout_is_read_where_it_lies() -> Result<()> {
    for dtype in HALF {
        let wide = randn(&[3, 10, 12], dtype)?;
        let window = wide.narrow(1, 2, 5)?.narrow(2, 3, 8)?;
        let columns = randn(&[3, 8, 5], dtype)?.t()?;
        let repeated = randn(&[5, 8], dtype)?.broadcast_as((3, 5, 8))?;
        let strided = randn(&[3, 8, 9], dtype)?.t()?.narrow(1, 4, 1)?; // one row
        let rhs = randn(&[3, 8, 7], dtype)?;
        let rhs_columns = randn(&[3, 7, 8], dtype)?.t()?;
        let rhs_column = randn(&[3, 8, 9], dtype)?.narrow(2, 4, 1)?; // one column
        for (i, lhs) in [window, columns, repeated, strided].iter().enumerate() {
            for (j, rhs) in [&rhs, &rhs_columns, &rhs_column].iter().enumerate() {
                let expected = product(&exact(lhs)?, &exact(rhs)?)?;
                let what = format!("{dtype:?} {i} {j}");
                assert_rounded_once(&Gemm::new().forward(lhs, rhs)?, &expected, 20.0, &what)?;
            }
        }
    }
    Ok(())
}

#[test]
fn every_epilogue_is_rounded_once() -> Result<()> {
    for dtype in HALF {
        let (x, w) = (randn(&[2, 9, 80], dtype)?, randn(&[2, 80, 33], dtype)?);
        let (bias, residual) = (randn(&[33], dtype)?, Var::from_tensor(&randn(&[2, 9, 33], dtype)?)?);
        for activation in Activation::ALL {
            let gemm = Gemm::new().alpha(0.3).bias(&bias).activation(activation).beta(-2.5);
            let sums = (product(&exact(&x)?, &exact(&w)?)? * 0.3)?.broadcast_add(&exact(&bias)?)?;
            let expected = (activate(activation, &sums)? + (exact(&residual)? * -2.5)?)?;
            let what = format!("{dtype:?} {activation:?}");
            let detached = gemm.clone().residual(&residual.as_detached_tensor()).forward(&x, &w)?;
            assert_rounded_once(&detached, &expected, 20.0, &what)?;
            // A residual that needs a gradient changes nothing.
            let tracked = gemm.residual(&residual).forward(&x, &w)?;
            assert_eq!(values(&tracked)?, values(&detached)?, "{what}");
            let gradients = tracked.sum_all()?.backward()?;
            assert_eq!(values(gradients.get(&residual).unwrap())?, [-2.5; 2 * 9 * 33], "{what}");
        }
    }
    Ok(())
}

/// A sum of 1000 ones in bf16 stays at 256.
#[test]
fn gradients_are_added_up_in_f32() -> Result<()> {
    for dtype in HALF {
        let x = filled(1.0, &[10, 300, 4], dtype)?;
        let (w, bias) = (Var::from_tensor(&randn(&[4, 3], dtype)?)?, Var::from_tensor(&randn(&[3], dtype)?)?);
        let gradients = Gemm::new().bias(&bias).forward(&x, &w)?.sum_all()?.backward()?;
        let rounded = values(&filled(3000.0, &[1], dtype)?)?[0];
        assert_eq!(values(gradients.get(&bias).unwrap())?, [rounded; 3], "{dtype:?} bias");
        assert_eq!(values(gradients.get(&w).unwrap())?, [rounded; 12], "{dtype:?} weight");
    }
    // Two matrices of a batch whose parts of the gradient are 2049, which f16 rounds to 2048, and 1.
    let x = Tensor::new(&[[[2049f32 / 3.0]; 3], [[1.0 / 3.0]; 3]], &Device::Cpu)?.to_dtype(DType::F16)?;
    let w = Var::from_tensor(&filled(1.0, &[1, 1], DType::F16)?)?;
    let gradient = Gemm::new().forward(&x.reshape((2, 3, 1))?, &w)?.sum_all()?.backward()?;
    let expected = (values(&x)?.iter().sum::<f64>() * 0.5).round() * 2.0; // numbers of f16 above 2048 are even
    assert_eq!(values(gradient.get(&w).unwrap())?, [expected]);
    Ok(())
}

/// An operand that the batch shares gets the sum of the gradients of all its matrices: over the outer or the inner batch dimension, over both, and
/// over every other one of four.
#[test]
fn gradients_of_broadcast_operands_are_rounded_once() -> Result<()> {
    const SHAPES: [(&[usize], &[usize]); 8] = [
        (&[700, 4, 2], &[4, 5]),
        (&[3, 4], &[700, 4, 5]),
        (&[40, 20, 2, 4], &[20, 4, 5]),
        (&[20, 40, 2, 4], &[20, 1, 4, 5]),
        (&[1, 20, 2, 4], &[40, 20, 4, 5]),
        (&[20, 1, 2, 4], &[20, 40, 4, 5]),
        (&[1, 30, 2, 4], &[40, 1, 4, 5]),
        (&[9, 1, 8, 1, 2, 4], &[7, 1, 10, 4, 5]),
    ];
    for (dtype, (lhs, rhs)) in HALF.into_iter().flat_map(|dtype| SHAPES.map(|shapes| (dtype, shapes))) {
        let (lhs, rhs) = (Var::from_tensor(&randn(lhs, dtype)?)?, Var::from_tensor(&randn(rhs, dtype)?)?);
        let exact_vars = [Var::from_tensor(&exact(&lhs)?)?, Var::from_tensor(&exact(&rhs)?)?];
        // The first batch is of columns: rows that do not follow one another.
        let view = |lhs: &Tensor| if lhs.rank() == 3 { lhs.t() } else { Ok(lhs.clone()) };
        let ours = Gemm::new().alpha(0.5).broadcast_batch().forward(&view(&lhs)?, &rhs)?;
        let weights = randn(ours.dims(), dtype)?;
        let ours = (ours * &weights)?.sum_all()?.backward()?;
        let [exact_lhs, exact_rhs] = &exact_vars;
        let candles = ((product(&view(exact_lhs)?, exact_rhs)? * exact(&weights)?)?.sum_all()? * 0.5)?.backward()?;
        for (ours_of, candles_of) in [(&lhs, exact_lhs), (&rhs, exact_rhs)] {
            let what = format!("{dtype:?} {:?} @ {:?}: d {:?}", lhs.dims(), rhs.dims(), ours_of.dims());
            let (ours, candles) = (ours.get(ours_of).unwrap(), candles.get(candles_of).unwrap());
            assert_rounded_once(ours, candles, 100.0, &what)?;
        }
    }
    Ok(())
}

/// The slope is of the sums, not of what is stored of them.
#[test]
fn slopes_are_of_sums_in_f32() -> Result<()> {
    for dtype in HALF {
        // One row: its gradient of the bias is the gradient of the sums, rounded once.
        let (x, w) = (randn(&[1, 64], dtype)?, randn(&[64, 200], dtype)?);
        let (bias, weights) = (Var::from_tensor(&randn(&[200], dtype)?)?, randn(&[1, 200], dtype)?);
        for activation in Activation::ALL {
            let gemm = Gemm::new().alpha(0.2).bias(&bias).activation(activation);
            let gradients = (gemm.forward(&x, &w)? * &weights)?.sum_all()?.backward()?;
            let sums = (exact(&x)?.matmul(&exact(&w)?)? * 0.2)?.broadcast_add(&exact(&bias)?)?;
            let slopes: Vec<f64> = values(&sums)?.iter().map(|x| activation.slope(*x)).collect();
            let expected = (Tensor::new(slopes, &Device::Cpu)? * exact(&weights)?.flatten_all()?)?;
            assert_rounded_once(gradients.get(&bias).unwrap(), &expected, 10.0, &format!("{dtype:?} {activation:?}"))?;
        }
    }
    Ok(())
}

/// candle-cublaslt's activation comes after `beta * out`.
#[test]
fn an_activation_after_the_residual_is_of_sums_in_f32() -> Result<()> {
    let lt = CublasLt::new(&Device::Cpu)?;
    for dtype in HALF {
        let (a, b) = (randn(&[50, 32], dtype)?, randn(&[40, 32], dtype)?);
        let (out, bias) = (Var::from_tensor(&randn(&[40, 50], dtype)?)?, randn(&[50], dtype)?);
        for (act, activation) in [
            (cublaslt::Activation::Relu, Activation::Relu),
            (cublaslt::Activation::Gelu, Activation::GeluTanh),
            (cublaslt::Activation::GeluErf, Activation::GeluErf),
        ] {
            let run = |out: &Tensor| {
                fused_matmul(&a, &b, Some(out), Some(0.5), Some(-1.5), Some(&bias), Some(act), lt.clone())
            };
            let sums = ((exact(&b)?.matmul(&exact(&a)?.t()?)? * 0.5)? - (exact(&out)? * 1.5)?)?;
            let sums = sums.broadcast_add(&exact(&bias)?)?;
            let expected = activate(activation, &sums)?;
            let result = run(&out)?;
            assert_rounded_once(&result, &expected, 10.0, &format!("{dtype:?} {act:?}"))?;
            let gradients = result.sum_all()?.backward()?;
            let slopes: Vec<f64> = values(&sums)?.iter().map(|x| -1.5 * activation.slope(*x)).collect();
            let slopes = Tensor::from_vec(slopes, (40, 50), &Device::Cpu)?;
            assert_rounded_once(gradients.get(&out).unwrap(), &slopes, 20.0, &format!("{dtype:?} {act:?} gradient"))?;
            // The limit at -inf, where candle's own gelus are NaN.
            assert_eq!(values(&run(&filled(f64::INFINITY, &[40, 50], dtype)?)?)?, [0.0; 2000], "{dtype:?} {act:?}");
        }
        let other = out.to_dtype(DType::F32)?;
        let error =
            fused_matmul(&a, &b, Some(&other), None, Some(1.0), None, Some(cublaslt::Activation::Relu), lt.clone());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("is in F32, the operands in"), "{error}");
    }
    Ok(())
}

/// The product of each pair of tokens (or, with `by_pair`, of pairs) with the matrix of its expert, in f64.
fn of_experts(x: &Tensor, weights: &Tensor, experts: &[u32], by_pair: bool) -> Result<Tensor> {
    let (x, weights) = (exact(x)?, exact(weights)?);
    let row = |(pair, expert): (usize, &u32)| {
        let x = x.get(if by_pair { pair } else { pair / 2 })?.unsqueeze(0)?;
        x.matmul(&weights.get(*expert as usize)?.t()?)
    };
    Tensor::cat(&experts.iter().enumerate().map(row).collect::<Result<Vec<_>>>()?, 0)
}

/// Two experts for each of 20 tokens, with factors for pairs.
fn routed(factors: &[f32]) -> Result<(Vec<u32>, Routing)> {
    let experts: Vec<u32> = (0..40).map(|pair| (7 * pair + pair / 2) % 3).collect();
    let chosen = Tensor::from_slice(&experts, (20, 2), &Device::Cpu)?;
    let routing = Routing::new(3, &chosen, &Tensor::from_slice(factors, (20, 2), &Device::Cpu)?)?;
    Ok((experts, routing))
}

#[test]
fn products_of_experts_are_rounded_once() -> Result<()> {
    let factors: Vec<f32> = (0..40).map(|pair| 0.3 + 0.01 * pair as f32).collect();
    let (experts, routing) = routed(&factors)?;
    let scales = Tensor::from_iter(factors.iter().map(|x| f64::from(*x)), &Device::Cpu)?.unsqueeze(1)?;
    for dtype in HALF {
        let weights = randn(&[3, 66, 80], dtype)?;
        let (tokens, pairs) = (randn(&[20, 80], dtype)?, randn(&[40, 80], dtype)?);
        let plain = of_experts(&tokens, &weights, &experts, false)?;
        assert_rounded_once(&routing.by_tokens().forward(&tokens, &weights)?, &plain, 40.0, &format!("{dtype:?}"))?;
        let scaled = of_experts(&pairs, &weights, &experts, true)?.broadcast_mul(&scales)?;
        let got = routing.by_pairs().forward(&pairs, &weights)?;
        assert_rounded_once(&got, &scaled, 40.0, &format!("{dtype:?} scaled"))?;
        for activation in Activation::ALL {
            let expected =
                (activate(activation, &plain.narrow(1, 0, 33)?.contiguous()?)? * plain.narrow(1, 33, 33)?)?;
            let got = routing.by_tokens().gate(Gate::Halves, activation).forward(&tokens, &weights)?;
            // A gate of up to 40 multiplies the sum's error.
            assert_rounded_once(&got, &expected, 2000.0, &format!("{dtype:?} gated, {activation:?}"))?;
        }
    }
    // Sums beyond the largest f16, which the factor of the pair brings back.
    let (x, weights) = (filled(64.0, &[40, 80], DType::F16)?, filled(64.0, &[3, 5, 80], DType::F16)?);
    let (_, routing) = routed(&[0.125; 40])?;
    let groups = Tensor::from_iter((0..40u32).map(|row| row / 14), &Device::Cpu)?;
    let (list, factor) = (Tensor::arange(0u32, 40, &Device::Cpu)?, filled(0.125, &[40], DType::F32)?);
    for y in
        [routing.by_pairs().forward(&x, &weights)?, moe_gemm(&x, &weights, &Some(factor), &list, &groups, 1, true)?]
    {
        assert_eq!(values(&y)?, [40_960.0; 200]);
    }
    Ok(())
}

/// The sum over a token's experts and the residual, of the results of the two products.
#[test]
fn sums_over_experts_are_rounded_once() -> Result<()> {
    let cfg = MoeCfg {
        hidden_size: 48,
        num_experts: 3,
        num_experts_per_tok: 2,
        moe_intermediate_size: 32,
        norm_topk_prob: true,
        act: candle_nn::Activation::Silu,
        decoder_sparse_step: None,
    };
    for dtype in HALF {
        let (router, x, residual) = (randn(&[3, 48], dtype)?, randn(&[1, 20, 48], dtype)?, randn(&[1, 20, 48], dtype)?);
        let (gate_up, down) = (randn(&[3, 64, 48], dtype)?, randn(&[3, 48, 32], dtype)?);
        let layer = FusedMoe::from_weights(router.clone(), gate_up.clone(), down.clone(), &cfg)?;
        let tokens = x.squeeze(0)?;
        let logits = Gemm::new().out_dtype(DType::F32).forward(&tokens, &router.t()?)?;
        let routing = Routing::by_logits(&logits, 2, true)?;
        let inner = routing.by_tokens().gate(Gate::Halves, Activation::Silu).forward(&tokens, &gate_up)?;
        let results = exact(&routing.by_pairs().forward(&inner, &down)?)?.reshape((20, 2, 48))?;
        let expected = (results.sum(1)? + exact(&residual)?.squeeze(0)?)?.unsqueeze(0)?;
        assert_rounded_once(&layer.forward_residual(&x, &residual)?, &expected, 200.0, &format!("{dtype:?}"))?;
    }
    Ok(())
}
