//! Values: every layout of the operands, every epilogue.

use crate::{activate, assert_close, assert_product, product, randn, tolerance};
use candle::{DType, Device, Result, Tensor, D};
use candle_tilegemm::{stats, Activation, Gemm, GemmExt};

const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Random tensors of one shape that lie in memory in every way that candle's views make.
fn views(dims: &[usize], dtype: DType) -> Result<Vec<(&'static str, Tensor)>> {
    let rank = dims.len();
    let with = |changes: &[(usize, usize)]| {
        let mut changed = dims.to_vec();
        changes.iter().for_each(|&(dim, size)| changed[dim] = size);
        changed
    };
    let (rows, cols) = (dims[rank - 2], dims[rank - 1]);
    let mut views = vec![
        ("dense", randn(dims, dtype)?),
        ("transposed", randn(&with(&[(rank - 2, cols), (rank - 1, rows)]), dtype)?.transpose(D::Minus1, D::Minus2)?),
        (
            "a window",
            randn(&with(&[(rank - 2, rows + 2), (rank - 1, cols + 3)]), dtype)?.narrow(rank - 2, 1, rows)?.narrow(
                rank - 1,
                2,
                cols,
            )?,
        ),
        ("every other element", randn(&[dims, &[2]].concat(), dtype)?.narrow(rank, 1, 1)?.squeeze(rank)?),
        ("a repeated row", randn(&with(&[(rank - 2, 1)]), dtype)?.broadcast_as(dims)?),
    ];
    if rank > 2 {
        let swapped = with(&[(0, rows), (rank - 2, dims[0])]);
        views.push(("heads behind rows", randn(&swapped, dtype)?.transpose(0, rank - 2)?));
        views.push(("a repeated batch", randn(&with(&[(0, 1)]), dtype)?.broadcast_as(dims)?));
        views.push(("part of a batch", randn(&with(&[(0, dims[0] + 2)]), dtype)?.narrow(0, 1, dims[0])?));
    }
    if rank > 3 {
        views.push(("exchanged batches", randn(&with(&[(0, dims[1]), (1, dims[0])]), dtype)?.transpose(0, 1)?));
    }
    assert!(views.iter().all(|(_, view)| view.dims() == dims));
    Ok(views)
}

#[test]
fn every_pair_of_layouts_gives_the_product() -> Result<()> {
    let shapes: [(&[usize], &[usize]); 8] = [
        (&[5, 7], &[7, 3]),
        (&[1, 7], &[7, 3]),
        (&[5, 1], &[1, 3]),
        (&[4, 5, 7], &[4, 7, 3]),
        (&[4, 1, 7], &[4, 7, 1]),
        (&[2, 3, 5, 7], &[2, 3, 7, 4]),
        (&[2, 3, 2, 4, 5], &[2, 3, 2, 5, 4]),
        (&[2, 1, 3, 2, 4, 5], &[2, 1, 3, 2, 5, 4]),
    ];
    for dtype in DTYPES {
        for (lhs_dims, rhs_dims) in shapes {
            for (lhs_view, lhs) in views(lhs_dims, dtype)? {
                for (rhs_view, rhs) in views(rhs_dims, dtype)? {
                    let what = format!("{dtype:?} {lhs_dims:?} {lhs_view} @ {rhs_dims:?} {rhs_view}");
                    assert_product(&lhs.gemm(&rhs)?, &lhs, &rhs, &what)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn batches_are_broadcast() -> Result<()> {
    let shapes: [(&[usize], &[usize]); 15] = [
        (&[3, 4, 5], &[5, 6]),
        (&[4, 5], &[3, 5, 6]),
        (&[1, 4, 5], &[3, 5, 6]),
        (&[3, 4, 5], &[1, 5, 6]),
        (&[2, 3, 4, 5], &[5, 6]),
        (&[2, 3, 4, 5], &[3, 5, 6]),
        (&[2, 3, 4, 5], &[2, 1, 5, 6]),
        (&[2, 1, 4, 5], &[1, 3, 5, 6]),
        (&[2, 1, 3, 4, 5], &[4, 1, 5, 6]),
        (&[2, 2, 1, 3, 4, 5], &[2, 1, 5, 2]),
        // Single rows and columns beside a dimension that one operand lacks.
        (&[4, 3, 1, 5], &[3, 5, 6]),
        (&[4, 3, 1, 5], &[1, 3, 5, 6]),
        (&[4, 3, 1, 5], &[4, 1, 5, 6]),
        (&[3, 4, 5], &[2, 3, 5, 1]),
        (&[2, 1, 1, 5], &[2, 3, 5, 6]),
    ];
    for dtype in DTYPES {
        for (lhs_dims, rhs_dims) in shapes {
            for (lhs_view, lhs) in views(lhs_dims, dtype)? {
                for (rhs_view, rhs) in views(rhs_dims, dtype)? {
                    let what = format!("{dtype:?} {lhs_dims:?} {lhs_view} @ {rhs_dims:?} {rhs_view}");
                    assert_product(&lhs.gemm(&rhs)?, &lhs, &rhs, &what)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn what_matmul_takes_gives_the_very_same_bits() -> Result<()> {
    let shapes: [(&[usize], &[usize]); 7] = [
        (&[33, 65], &[65, 17]),
        (&[3, 33, 65], &[3, 65, 17]),
        (&[2, 3, 9, 8], &[2, 3, 8, 7]),
        (&[2, 3, 9, 8], &[6, 1, 8, 7]), // candle compares the number of matrices only
        (&[0, 5], &[5, 4]),
        (&[3, 4, 0], &[3, 0, 5]),
        (&[0, 4, 5], &[0, 5, 6]),
    ];
    for dtype in DTYPES {
        for (lhs_dims, rhs_dims) in shapes {
            let (lhs, rhs) = (randn(lhs_dims, dtype)?, randn(rhs_dims, dtype)?);
            // candle rounds sums of 16 bits between blocks of K; ours are in f32, and rounded once.
            let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
            let candles = lhs.to_dtype(wide)?.matmul(&rhs.to_dtype(wide)?)?.to_dtype(dtype)?;
            let ours = lhs.gemm(&rhs)?;
            assert_eq!(ours.dims(), candles.dims());
            let values = |t: &Tensor| t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
            assert_eq!(values(&ours)?, values(&candles)?, "{dtype:?} {lhs_dims:?} @ {rhs_dims:?}");
        }
    }
    Ok(())
}

#[test]
fn an_epilogue_is_what_candles_ops_make_of_the_product() -> Result<()> {
    for dtype in DTYPES {
        for (lhs_dims, rhs_dims) in [(&[9, 16][..], &[16, 5][..]), (&[2, 3, 4, 8], &[8, 5]), (&[4, 3, 0], &[0, 5])] {
            let (lhs, rhs) = (randn(lhs_dims, dtype)?, randn(rhs_dims, dtype)?);
            let product = product(&lhs, &rhs)?;
            let bias = randn(&[5], dtype)?;
            let residual = randn(product.dims(), dtype)?.transpose(0, 1)?.contiguous()?.transpose(0, 1)?;
            for activation in Activation::ALL {
                for (has_bias, has_residual) in [(false, false), (true, false), (false, true), (true, true)] {
                    let mut gemm = Gemm::new().alpha(0.5).activation(activation);
                    let mut expected = (&product * 0.5)?;
                    if has_bias {
                        gemm = gemm.bias(&bias);
                        expected = expected.broadcast_add(&bias)?;
                    }
                    expected = activate(activation, &expected)?;
                    if has_residual {
                        gemm = gemm.residual(&residual).beta(-2.0);
                        expected = (expected - (&residual * 2.0)?)?;
                    }
                    let what = format!("{dtype:?} {lhs_dims:?} {activation:?} bias {has_bias} residual {has_residual}");
                    // Three ops of candle's round three times.
                    assert_close(&gemm.forward(&lhs, &rhs)?, &expected, 4.0 * tolerance(dtype).max(1e-9), &what)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn products_are_counted_by_shape() -> Result<()> {
    // No other test of this program has these sizes.
    let (lhs, rhs) = (randn(&[2, 11, 13], DType::F32)?, randn(&[2, 19, 13], DType::F32)?);
    for _ in 0..3 {
        lhs.gemm(&rhs.t()?)?;
    }
    let counted: Vec<_> = stats::gemms().into_iter().filter(|gemm| (gemm.m, gemm.n, gemm.k) == (11, 19, 13)).collect();
    assert_eq!(counted.len(), 1, "{counted:?}");
    let gemm = &counted[0];
    assert_eq!((gemm.batch, gemm.layout, gemm.dtype, gemm.kernel, gemm.calls), (2, "nt", "f32", "candle_cpu", 3));
    Ok(())
}

#[test]
fn activations_have_their_limits() {
    for activation in Activation::ALL {
        let below = if activation == Activation::Identity { f32::NEG_INFINITY } else { 0.0 };
        let values = [(f32::NEG_INFINITY, below), (-1e30, below), (f32::INFINITY, f32::INFINITY), (1e30, 1e30)];
        for (x, expected) in values.into_iter().filter(|(x, _)| activation != Activation::Identity || x.is_infinite()) {
            assert_eq!(activation.apply(x), expected, "{activation:?} of {x}");
        }
        assert!(activation.apply(f32::NAN).is_nan(), "{activation:?}");
    }
}

#[test]
fn activations_keep_their_digits_far_below_zero() {
    for activation in [Activation::GeluErf, Activation::GeluTanh, Activation::Silu] {
        for x in (-600..=0).map(|i| i as f32 / 100.0) {
            let (got, exact) = (f64::from(activation.apply(x)), activation.apply(f64::from(x)));
            assert!((got - exact).abs() <= 3e-5 * exact.abs(), "{activation:?} of {x}: {got:e}, not {exact:e}");
        }
    }
}

/// Every shape of rank 2 to 4 with sizes up to 3 that `matmul` takes; what it refuses is broadcast or refused.
#[test]
fn what_matmul_takes_has_its_shape_and_its_values() -> Result<()> {
    let sizes = 0..4;
    let pairs = sizes.clone().flat_map(|x| sizes.clone().map(move |y| vec![x, y]));
    let batches = sizes.clone().map(|x| vec![x]).chain(pairs).chain([vec![], vec![1, 6], vec![6, 1]]);
    let batches: Vec<Vec<usize>> = batches.collect();
    let counted = |dims: &[usize]| {
        let count: usize = dims.iter().product();
        Tensor::arange(1f64, count as f64 + 1.0, &Device::Cpu)?.reshape(dims)
    };
    let mut taken = 0;
    for (l, r) in batches.iter().flat_map(|l| batches.iter().map(move |r| (l, r))) {
        for [m, n, k] in [[1, 1, 1], [2, 3, 1], [1, 3, 2], [3, 1, 2], [2, 3, 2], [2, 2, 3]] {
            let (lhs, rhs) = (counted(&[&l[..], &[m, k]].concat())?, counted(&[&r[..], &[k, n]].concat())?);
            let what = format!("{:?} @ {:?}", lhs.dims(), rhs.dims());
            let broadcast = Gemm::new().broadcast_batch().forward(&lhs, &rhs);
            assert_eq!(broadcast.is_ok(), lhs.broadcast_matmul(&rhs).is_ok(), "{what}");
            if let Ok(broadcast) = &broadcast {
                assert_product(broadcast, &lhs, &rhs, &what)?;
            }
            let ours = lhs.gemm(&rhs);
            let Ok(candles) = lhs.matmul(&rhs) else {
                assert_eq!(ours.is_ok(), broadcast.is_ok(), "{what}");
                continue;
            };
            let ours = ours?;
            assert_eq!(ours.dims(), candles.dims(), "{what}");
            let values = |t: &Tensor| t.flatten_all()?.to_vec1::<f64>();
            assert_eq!(values(&ours)?, values(&candles)?, "{what}");
            taken += 1;
        }
    }
    assert!(taken > 400, "matmul took {taken} only");
    Ok(())
}
