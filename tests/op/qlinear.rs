//! Layers from GGUF files: the functions of candle-transformers' `quantized_nn`, on the CPU.

use candle::quantized::{gguf_file, GgmlDType, QMatMul, QTensor};
use candle::{DType, Device, Module, Tensor};
use candle_tilegemm::nn::{qlinear, qlinear_b, qlinear_no_bias, QLinear};
use candle_tilegemm::Activation;
use candle_transformers::quantized_nn as theirs;
use candle_transformers::quantized_var_builder::VarBuilder;
use std::fs::File;
use std::sync::Arc;

const IN: usize = 64;
const OUT: usize = 5;

#[test]
fn layers_of_a_file_are_those_of_candle() {
    let random = |shape: &[usize]| Tensor::randn(0f32, 1f32, shape, &Device::Cpu).unwrap();
    let weight = QTensor::quantize(&random(&[OUT, IN]), GgmlDType::Q4_0).unwrap();
    let bias = QTensor::quantize(&random(&[OUT]), GgmlDType::F32).unwrap();
    let path = std::env::temp_dir().join(format!("tilegemm-qlinear-{}.gguf", std::process::id()));
    let tensors = [("layer.weight", &weight), ("layer.bias", &bias)];
    gguf_file::write(&mut File::create(&path).unwrap(), &[], &tensors).unwrap();
    let vb = VarBuilder::from_gguf(&path, &Device::Cpu).unwrap().pp("layer");
    std::fs::remove_file(&path).unwrap();

    let x = random(&[3, IN]);
    let numbers = |layer: &dyn Module| layer.forward(&x).unwrap().to_vec2::<f32>().unwrap();
    let with_bias = numbers(&theirs::linear(IN, OUT, vb.clone()).unwrap());
    let without = numbers(&theirs::linear_no_bias(IN, OUT, vb.clone()).unwrap());
    assert_ne!(with_bias, without);
    let tensor = |shape, name: &str| vb.get(shape, name);
    assert_eq!(numbers(&qlinear(IN, OUT, tensor).unwrap()), with_bias);
    assert_eq!(numbers(&qlinear_b(IN, OUT, true, tensor).unwrap()), with_bias);
    assert_eq!(numbers(&qlinear_b(IN, OUT, false, tensor).unwrap()), without);
    assert_eq!(numbers(&qlinear_no_bias(IN, OUT, tensor).unwrap()), without);
    // A tensor of another shape has candle's words.
    let [ours, candle] = [
        qlinear(IN + 32, OUT, tensor).unwrap_err().to_string(),
        theirs::linear(IN + 32, OUT, vb.clone()).unwrap_err().to_string(),
    ];
    assert_eq!(ours.lines().next(), candle.lines().next());
}

fn random(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::randn(0f32, 1f32, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn values(t: &Tensor) -> Vec<f32> {
    t.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The same weights in blocks, dequantised, and dequantised to f16, with a bias.
fn layers(dtype: DType) -> [QLinear; 3] {
    let weight = Arc::new(QTensor::quantize(&random(&[OUT, IN], DType::F32), GgmlDType::Q8_0).unwrap());
    let bias = random(&[OUT], dtype);
    let dequantised = weight.dequantize(&Device::Cpu).unwrap().to_dtype(dtype).unwrap();
    let f16 = weight.dequantize_f16(&Device::Cpu).unwrap();
    [QMatMul::QTensor(weight), QMatMul::Tensor(dequantised), QMatMul::TensorF16(f16)]
        .map(|weight| QLinear::from_weights(weight, Some(bias.clone())))
}

#[test]
fn an_input_that_is_not_contiguous_is_copied() {
    let wide = random(&[2, IN + 6, 7], DType::F32);
    for layer in layers(DType::F32) {
        for x in [wide.narrow(1, 3, IN).unwrap().t().unwrap(), wide.t().unwrap().narrow(2, 2, IN).unwrap()] {
            assert!(!x.is_contiguous());
            let [got, expected] = [&x, &x.contiguous().unwrap()].map(|x| values(&layer.forward(x).unwrap()));
            assert_eq!(got, expected, "{layer:?}");
        }
    }
}

/// What the layer adds up and applies in f32 is what a layer in f32 does, whose result is then rounded.
#[test]
fn a_result_in_16_bits_is_rounded_once() {
    for dtype in [DType::F16, DType::BF16] {
        for (kind, layer) in layers(dtype).into_iter().enumerate() {
            // A layer in f32 of the same numbers; blocks and f16 stay as they are.
            let weight = match layer.dequantised() {
                Some(weight) => QMatMul::Tensor(weight.to_dtype(DType::F32).unwrap()),
                None => QMatMul::QTensor(layer.blocks().unwrap().as_qtensor().unwrap().clone()),
            };
            let bias = layer.bias().unwrap().to_dtype(DType::F32).unwrap();
            let (x, beside) = (random(&[9, IN], DType::BF16), random(&[9, OUT], dtype));
            let x = (x * 0.125).unwrap().to_dtype(dtype).unwrap(); // as exact in f16 as in bf16, but for tiny numbers
            let wide = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
            let x32 = if kind == 2 { wide(&x.to_dtype(DType::F16).unwrap()) } else { wide(&x) };
            for activation in Activation::ALL {
                let ours = layer.clone().with_activation(activation);
                let exact = QLinear::from_weights(weight.clone(), Some(bias.clone())).with_activation(activation);
                for (what, got, expected) in [
                    ("alone", ours.forward(&x), exact.forward(&x32)),
                    ("residual", ours.forward_residual(&x, &beside), exact.forward_residual(&x32, &wide(&beside))),
                    ("gated", ours.forward_gated(&x, &beside), exact.forward_gated(&x32, &wide(&beside))),
                ] {
                    let (got, expected) = (got.unwrap(), expected.unwrap());
                    assert_eq!(got.dtype(), dtype);
                    // Half the distance to the next number, and sums in f32 in another order.
                    let half = if dtype == DType::BF16 { 1.0 / 256.0 } else { 1.0 / 2048.0 };
                    for (got, expected) in values(&got).into_iter().zip(values(&expected)) {
                        let off = (got - expected).abs();
                        assert!(
                            off <= half * expected.abs() + 1e-6,
                            "{dtype:?} {kind} {activation:?} {what}: {got}, {expected}"
                        );
                    }
                }
            }
        }
    }
}

/// candle's own gelu of -inf is NaN.
#[test]
fn activations_of_infinities_are_their_limits() {
    let weight = QMatMul::Tensor(Tensor::new(&[[1f32]], &Device::Cpu).unwrap());
    let x = Tensor::new(&[[f32::NEG_INFINITY], [f32::INFINITY]], &Device::Cpu).unwrap();
    for activation in Activation::ALL.into_iter().filter(|activation| *activation != Activation::Identity) {
        let layer = QLinear::from(weight.clone()).with_activation(activation);
        assert_eq!(values(&layer.forward(&x).unwrap()), [0.0, f32::INFINITY], "{activation:?}");
    }
}

#[test]
fn a_bias_or_residual_of_another_shape_or_type_is_refused() {
    let (x, other) = (random(&[3, IN], DType::F32), random(&[3, OUT + 1], DType::F32));
    let [blocks, dequantised, _] = layers(DType::F32);
    for layer in [blocks, dequantised] {
        let error = layer.forward_residual(&x, &other).unwrap_err().to_string();
        assert!(error.contains("QLinear: the residual is F32 [3, 6], expected F32 [3, 5]"), "{error}");
        let error = layer.forward_gated(&x, &random(&[3, OUT], DType::F16)).unwrap_err().to_string();
        assert!(error.contains("QLinear: the gated tensor is F16 [3, 5], expected F32 [3, 5]"), "{error}");
    }
}
