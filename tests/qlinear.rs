//! Layers from GGUF files: the functions of candle-transformers' `quantized_nn`, on the CPU.

use candle::quantized::{gguf_file, GgmlDType, QTensor};
use candle::{Device, Module, Tensor};
use candle_tilegemm::nn::{qlinear, qlinear_b, qlinear_no_bias};
use candle_transformers::quantized_nn as theirs;
use candle_transformers::quantized_var_builder::VarBuilder;
use std::fs::File;

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
