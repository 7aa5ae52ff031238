//! Products of narrow weights on the CPU.

use super::shared::{self, QUANTIZERS};
use super::{builder, tensor, values};
use crate::{assert_close, randn};
use candle::{DType, Device, Module, Tensor};
use candle_tilegemm::nn::narrow::{
    linear_of_scheme, linear_rounded, Activations, Granularity, Nvfp4, QuantWeight, Quantizer, Scheme,
};
use candle_tilegemm::nn::{MergedLinear, QuantLinear};
use candle_tilegemm::{Activation, Gemm};

const IN: usize = 70;
const OUT: usize = 11;

fn wide(tensor: &Tensor) -> Tensor {
    tensor.to_dtype(DType::F32).unwrap()
}

/// The result is that of the dequantised weights in f32, rounded once.
#[test]
fn layers_multiply_by_the_dequantised_weights() {
    for to in QUANTIZERS {
        let weight = QuantWeight::quantize(&randn(&[OUT, IN], DType::F32).unwrap(), to).unwrap();
        let dense = tensor(weight.dequantize(), &[OUT, IN]);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let (bias, beside) = (randn(&[OUT], dtype).unwrap(), randn(&[2, 3, OUT], dtype).unwrap());
            // Neither dense nor of rank 2.
            let x = randn(&[2, IN, 3], dtype).unwrap().transpose(1, 2).unwrap();
            let layer = QuantLinear::new(weight.clone(), Some(bias.clone())).unwrap().with_activation(Activation::Silu);
            let gemm = Gemm::new().bias(&wide(&bias)).activation(Activation::Silu);
            let expected = |gemm: Gemm| gemm.forward(&wide(&x), &dense.t().unwrap()).unwrap().to_dtype(dtype).unwrap();
            let gated = gemm.clone().forward(&wide(&x), &dense.t().unwrap()).unwrap() * wide(&beside);
            let gated = gated.unwrap().to_dtype(dtype).unwrap();
            for (actual, expected) in [
                (layer.forward(&x), expected(gemm.clone())),
                (layer.forward_residual(&x, &beside), expected(gemm.clone().residual(&wide(&beside)))),
                (layer.forward_gated(&x, &beside), gated),
            ] {
                let actual = actual.unwrap();
                assert_eq!((actual.dims(), actual.dtype()), (&[2, 3, OUT][..], dtype));
                assert_eq!(values(&actual), values(&expected), "{to:?} {dtype:?}");
            }
        }
    }
}

#[test]
fn every_format_multiplies_by_its_numbers() {
    shared::layers(&Device::Cpu).unwrap();
}

#[test]
fn products_go_to_tensors_that_exist() {
    shared::into(&Device::Cpu).unwrap();
}

#[test]
fn what_is_not_finite_stays_so() {
    shared::not_finite(&Device::Cpu).unwrap();
}

#[test]
fn results_beyond_f16_are_infinite() {
    shared::beyond_f16(&Device::Cpu).unwrap();
}

#[test]
fn rows_in_8_bits_that_are_not_finite_spoil_no_others() {
    shared::special_in_8_bits(&Device::Cpu, true).unwrap();
}

#[test]
fn activations_are_rounded_to_8_bits() {
    shared::eight_bits(&Device::Cpu, true).unwrap();
}

#[test]
fn gates_are_rounded_to_8_bits() {
    shared::gated_in_8_bits(&Device::Cpu).unwrap();
}

#[test]
fn layers_are_moved() {
    shared::moved(&Device::Cpu).unwrap();
}

#[test]
fn what_does_not_fit_is_refused() {
    let weight = randn(&[OUT, IN], DType::F32).unwrap();
    let bias = randn(&[OUT], DType::F32).unwrap();
    let layer = QuantLinear::quantize(&weight, Some(bias.clone()), Quantizer::Mxfp4).unwrap();
    let x = randn(&[3, IN], DType::F32).unwrap();
    let of = |dims: &[usize], dtype| randn(dims, dtype).unwrap();
    for (error, expected) in [
        (layer.forward(&of(&[3, IN + 1], DType::F32)).unwrap_err(), "x is [3, 71]; expected rows of 70 numbers"),
        (layer.forward(&of(&[3, IN], DType::F64)).unwrap_err(), "x is in F64; expected one of [F16, BF16, F32]"),
        (
            layer.forward(&of(&[3, IN], DType::BF16)).unwrap_err(),
            "the bias is F32 [11] on Cpu, expected BF16 [11] on Cpu",
        ),
        (
            layer.forward_residual(&x, &of(&[2, OUT], DType::F32)).unwrap_err(),
            "the residual is F32 [2, 11] on Cpu, expected F32 [3, 11] on Cpu",
        ),
        (
            layer.forward_into(&x, &of(&[3, OUT + 1], DType::F32)).unwrap_err(),
            "the result is [3, 12]; expected [3, 11]",
        ),
        (
            QuantLinear::quantize(&weight, Some(of(&[4], DType::F32)), Quantizer::Mxfp4).unwrap_err(),
            "the bias is [4]; expected [11]",
        ),
        (QuantLinear::fp8(&weight, &bias, None).unwrap_err(), "the weights are in F32; expected F8E4M3"),
        (
            QuantLinear::quantize(&of(&[2, 2], DType::F64), None, Quantizer::Mxfp4).unwrap_err(),
            "the weights are in F64; expected F16, BF16 or F32",
        ),
    ] {
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// One product has what each layer has: factors in e4m3, which another factor of all would change, and activations in 8 bits, which no kernel has beside blocks that
/// are cut short.
#[test]
fn layers_that_one_product_would_change_stay_apart() {
    let nvfp4 = |alpha: f32| {
        let (packed, scale) = (tensor(vec![0x2fu8; 4 * 8], &[4, 8]), tensor(vec![2f32; 4], &[4, 1]));
        let scale = scale.to_dtype(DType::F8E4M3).unwrap();
        let vb = builder(&[("weight", packed), ("weight_scale", scale), ("weight_scale_2", tensor(vec![alpha], &[1]))]);
        linear_of_scheme(16, 4, false, Scheme::Nvfp4(Nvfp4::ModelOpt), vb).unwrap()
    };
    let products = |layers: [&QuantLinear; 2]| MergedLinear::new(layers.map(Clone::clone)).unwrap().products();
    assert_eq!(products([&nvfp4(0.5), &nvfp4(0.5)]), 1);
    assert_eq!(products([&nvfp4(0.5), &nvfp4(0.25)]), 2);
    let fp8 = |n: usize, activations| {
        let weight = randn(&[n, 256], DType::F32).unwrap();
        let to = Quantizer::Fp8(Granularity::Block([128, 128]));
        QuantLinear::quantize(&weight, None, to).unwrap().with_activations(activations)
    };
    for (rows, activations, expected) in
        [([128, 64], Activations::Dynamic, 1), ([64, 128], Activations::Dynamic, 2), ([64, 128], Activations::Wide, 1)]
    {
        let layers = rows.map(|n| fp8(n, activations));
        assert_eq!(products(layers.each_ref()), expected, "{rows:?} {activations:?}");
        let x = randn(&[3, 256], DType::F32).unwrap();
        let apart = layers.each_ref().map(|layer| layer.forward(&x).unwrap());
        let merged = MergedLinear::new(layers).unwrap().forward(&x).unwrap();
        assert_close(&merged, &Tensor::cat(&apart, 1).unwrap(), 1e-5, "merged").unwrap();
    }
}

/// As kernels read it.
#[test]
fn a_bias_becomes_contiguous() {
    let column = randn(&[OUT, 3], DType::F32).unwrap().get_on_dim(1, 1).unwrap();
    assert!(!column.is_contiguous());
    let layer = QuantLinear::quantize(&randn(&[OUT, IN], DType::F32).unwrap(), Some(column.clone()), Quantizer::Mxfp4);
    let bias = layer.as_ref().unwrap().bias().unwrap();
    assert!(bias.is_contiguous());
    assert_eq!(values(bias), values(&column));
}

#[test]
fn layers_are_rounded_at_load() {
    let (weight, bias) = (randn(&[OUT, IN], DType::BF16).unwrap(), randn(&[OUT], DType::F32).unwrap());
    let vb = builder(&[("up.weight", weight.clone()), ("up.bias", bias.clone())]);
    for to in QUANTIZERS {
        let loaded = linear_rounded(IN, OUT, true, to, vb.pp("up")).unwrap();
        let made = QuantLinear::quantize(&weight, Some(bias.clone()), to).unwrap();
        assert_eq!(loaded.weight(), made.weight());
        assert_eq!(values(loaded.bias().unwrap()), values(&bias));
    }
}

/// Results on the CPU are as exact as f32 sums of the dequantised weights.
#[test]
fn products_are_those_of_f64() {
    let layer = QuantLinear::quantize(
        &randn(&[40, 300], DType::F32).unwrap(),
        None,
        Quantizer::Int4 { group: Some(64), zeros: true },
    );
    let layer = layer.unwrap();
    let x = randn(&[5, 300], DType::F32).unwrap();
    let dense = tensor(layer.weight().unwrap().dequantize(), &[40, 300]).to_dtype(DType::F64).unwrap();
    let expected = x.to_dtype(DType::F64).unwrap().matmul(&dense.t().unwrap()).unwrap().to_dtype(DType::F32).unwrap();
    assert_close(&layer.forward(&x).unwrap(), &expected, 1e-5, "int4").unwrap();
}
