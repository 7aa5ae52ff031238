//! Rounding to the nearest, and matrices over one another.

use super::{assert_same, by_layout, tensor, values};
use crate::randn;
use candle::DType;
use candle_tilegemm::nn::narrow::{Codes, Granularity, QuantWeight, Quantizer, ScaleFormat};

fn int4(group: Option<usize>, zeros: bool) -> Quantizer {
    Quantizer::Int4 { group, zeros }
}

/// Each number is as near as a code can be: half a step of the codes around it.
#[test]
fn numbers_go_to_the_nearest_code() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        // Neither number is a multiple of groups or blocks.
        let wide = randn(&[45, 300], dtype).unwrap();
        let numbers = values(&wide);
        for (to, codes) in [
            (Quantizer::Fp8(Granularity::Tensor), Codes::F8E4M3),
            (Quantizer::Fp8(Granularity::Channel), Codes::F8E4M3),
            (Quantizer::Fp8(Granularity::Group(64)), Codes::F8E4M3),
            (Quantizer::Fp8(Granularity::Block([16, 128])), Codes::F8E4M3),
            (int4(Some(32), false), Codes::U4),
            (int4(Some(128), true), Codes::U4),
            (int4(None, true), Codes::U4),
            (Quantizer::Int8 { group: Some(64) }, Codes::I8),
            (Quantizer::Int8 { group: None }, Codes::I8),
            (Quantizer::Mxfp4, Codes::E2M1),
        ] {
            let narrow = QuantWeight::quantize(&wide, to).unwrap();
            assert_eq!((narrow.codes(), narrow.shape()), (codes, [45, 300]));
            let weights = narrow.dequantize();
            assert_same(&by_layout(&narrow), &weights, "the layout");
            let scales = narrow.scales();
            let ([rows, group], [by_row, by_group]) = (scales.shared(), scales.strides());
            for (at, (x, w)) in numbers.iter().zip(&weights).enumerate() {
                let [n, k] = [at / 300, at % 300];
                let scale = scales.value(n / rows * by_row + k / group * by_group);
                let half = match codes {
                    Codes::F8E4M3 => (x.abs() / 16.0).max(scale / 1024.0),
                    // Beyond 6 of a power of two up to 8; otherwise up to 1 between 4 and 6.
                    Codes::E2M1 => scale * if x.abs() > 6.0 * scale { 2.0 } else { 1.0 },
                    // -8 to 7 for -7.5 to 7.5, and the factor's own rounding.
                    _ => scale * 0.51,
                };
                assert!((x - w).abs() <= half * 1.001, "{to:?} {dtype:?}: {x} became {w}, a factor of {scale}");
            }
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    for to in [
        Quantizer::Fp8(Granularity::Block([2, 2])),
        int4(Some(32), false),
        int4(None, true),
        Quantizer::Int8 { group: None },
        Quantizer::Mxfp4,
    ] {
        let narrow = QuantWeight::quantize(&tensor(vec![0f32; 4 * 40], &[4, 40]), to).unwrap();
        assert!(narrow.dequantize().iter().all(|x| *x == 0.0), "{to:?}");
        assert!(narrow.scales().values().iter().all(|scale| *scale == 1.0), "{to:?}");
    }
}

#[test]
fn nothing_that_is_not_finite_becomes_finite() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for to in [
            Quantizer::Fp8(Granularity::Tensor),
            Quantizer::Fp8(Granularity::Channel),
            int4(Some(32), false),
            int4(Some(32), true),
            Quantizer::Int8 { group: Some(32) },
            Quantizer::Mxfp4,
        ] {
            let mut numbers = vec![1f32; 2 * 64];
            numbers[3] = bad;
            let narrow = QuantWeight::quantize(&tensor(numbers, &[2, 64]), to).unwrap();
            let weights = narrow.dequantize();
            assert!(!weights[3].is_finite(), "{to:?}: {bad} became {}", weights[3]);
            let untouched = if to == Quantizer::Fp8(Granularity::Tensor) && bad.is_infinite() { 0 } else { 64 };
            assert!(weights[128 - untouched..].iter().all(|x| (x - 1.0).abs() < 0.1), "{to:?} {bad}: {weights:?}");
        }
    }
}

#[test]
fn factors_are_in_f16_where_it_has_them() {
    let format = |x: f32| {
        let narrow = QuantWeight::quantize(&tensor(vec![x; 32], &[1, 32]), int4(None, false)).unwrap();
        assert!((narrow.dequantize()[0] / x - 1.0).abs() < 0.1);
        narrow.scales().format()
    };
    assert_eq!(
        [1.0, 1e4, 1e-6, 1e8].map(format),
        [ScaleFormat::F16, ScaleFormat::F16, ScaleFormat::BF16, ScaleFormat::BF16]
    );
}

#[test]
fn powers_of_two_end_at_the_smallest() {
    // 2^-130, which `powi` gives in optimised code alone.
    let least = f32::from_bits(1 << 19);
    let narrow = QuantWeight::quantize(&tensor(vec![least; 32], &[1, 32]), Quantizer::Mxfp4).unwrap();
    assert_eq!(narrow.scales().bytes(), [0]);
    let narrow = QuantWeight::quantize(&tensor(vec![f32::MAX; 32], &[1, 32]), Quantizer::Mxfp4).unwrap();
    assert_eq!((narrow.scales().bytes(), narrow.dequantize()[0]), (&[252u8][..], 6.0 * 2f32.powi(125)));
}

#[test]
fn groups_of_nothing_are_refused() {
    for to in [int4(Some(0), true), Quantizer::Int8 { group: Some(0) }, Quantizer::Fp8(Granularity::Block([0, 4]))] {
        let error = QuantWeight::quantize(&tensor(vec![0f32; 4], &[2, 2]), to).unwrap_err().to_string();
        assert!(error.contains("groups and blocks have at least one number"), "{error}");
    }
}

/// Matrices over one another have the weights of both.
#[test]
fn matrices_are_stacked() {
    let of = |n: usize, to| QuantWeight::quantize(&randn(&[n, 100], DType::F32).unwrap(), to).unwrap();
    for (to, second, shared) in [
        (Quantizer::Fp8(Granularity::Tensor), Quantizer::Fp8(Granularity::Tensor), [1, 100]),
        (Quantizer::Fp8(Granularity::Tensor), Quantizer::Fp8(Granularity::Channel), [1, 100]),
        (Quantizer::Fp8(Granularity::Block([8, 32])), Quantizer::Fp8(Granularity::Block([8, 32])), [8, 32]),
        (int4(Some(32), false), int4(Some(32), true), [1, 32]),
        (Quantizer::Mxfp4, Quantizer::Mxfp4, [1, 32]),
    ] {
        let parts = [of(16, to), of(5, second), of(3, to)];
        // The second ends within a block of 8 rows.
        let shared = if shared[0] == 8 { [1, 32] } else { shared };
        let stack = QuantWeight::stack(&parts).unwrap();
        assert_eq!((stack.shape(), stack.scales().shared()), ([24, 100], shared));
        let expected: Vec<f32> = parts.iter().flat_map(QuantWeight::dequantize).collect();
        assert_same(&stack.dequantize(), &expected, &format!("{to:?}"));
        assert_same(&by_layout(&stack), &expected, &format!("{to:?} by the layout"));
    }
    let blocks = Quantizer::Fp8(Granularity::Block([8, 32]));
    let parts = [of(16, blocks), of(5, blocks)];
    let stack = QuantWeight::stack(&parts).unwrap();
    assert_eq!(stack.scales().shared(), [8, 32]);
    assert_same(&stack.dequantize(), &parts.iter().flat_map(QuantWeight::dequantize).collect::<Vec<_>>(), "blocks");
    for (other, expected) in [(Quantizer::Mxfp4, "100 columns of e2m1"), (int4(Some(64), false), "in groups of 64")] {
        let error = QuantWeight::stack(&[of(4, int4(Some(32), false)), of(4, other)]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(QuantWeight::stack(&[]).is_err());
}

/// Kernels for groups of 32 take factors of 16 bits alone.
#[test]
fn factors_of_a_stack_stay_in_16_bits_where_these_have_them() {
    let of =
        |scale: f32| QuantWeight::quantize(&tensor(vec![7.5 * scale; 64], &[2, 32]), int4(Some(32), false)).unwrap();
    let parts = [of(0.5), of(2f32.powi(-30))];
    assert_eq!(parts.each_ref().map(|part| part.scales().format()), [ScaleFormat::F16, ScaleFormat::BF16]);
    let stack = QuantWeight::stack(&parts).unwrap();
    assert_eq!(stack.scales().format(), ScaleFormat::BF16);
    assert_same(&stack.dequantize(), &parts.each_ref().map(QuantWeight::dequantize).concat(), "16 bits");
}

/// The tensors have the bytes of the parts.
#[test]
fn parts_go_to_a_device() {
    let wide = randn(&[9, 70], DType::F32).unwrap();
    for (to, dtype) in [
        (Quantizer::Fp8(Granularity::Channel), DType::F32),
        (int4(Some(32), true), DType::F16),
        (Quantizer::Mxfp4, DType::U8),
    ] {
        let narrow = QuantWeight::quantize(&wide, to).unwrap();
        let parts = narrow.to_device(wide.device()).unwrap();
        assert_eq!(parts.codes.dims(), [9, narrow.row_bytes()]);
        assert_eq!(parts.codes.flatten_all().unwrap().to_vec1::<u8>().unwrap(), narrow.bytes());
        assert_eq!((parts.scales.dims(), parts.scales.dtype()), (&[narrow.scales().count()][..], dtype));
        if dtype != DType::U8 {
            assert_eq!(values(&parts.scales), narrow.scales().values());
        }
        assert_eq!(parts.zeros.map(|zeros| zeros.to_vec1().unwrap()), narrow.zeros().map(<[u8]>::to_vec));
        assert!(parts.gather.is_none());
    }
}
