//! Narrow weights, from the checkpoints of tests/data/narrow and from numbers.

mod config;
mod experts;
mod files;
mod layers;
mod quantizers;
mod ranks;
// The checks of a GPU, too.
#[path = "../../support/narrow.rs"]
mod shared;
mod traps;

use candle::safetensors::BufferedSafetensors;
use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm::nn::narrow::{Checkpoint, Codes, QuantWeight, ScaleFormat};
use candle_tilegemm::nn::QuantizationConfig;

/// The config and the tensors of a checkpoint of tests/data/narrow.
fn checkpoint(name: &str) -> (QuantizationConfig, VarBuilder<'static>) {
    let config = QuantizationConfig::from_json(&std::fs::read_to_string(path(name, "json")).unwrap()).unwrap();
    (config, Checkpoint::from(file_of(name)).var_builder(DType::BF16, &Device::Cpu))
}

fn path(name: &str, extension: &str) -> String {
    format!("{}/tests/data/narrow/{name}.{extension}", env!("CARGO_MANIFEST_DIR"))
}

/// The tensors of a checkpoint of tests/data/narrow.
fn file_of(name: &str) -> BufferedSafetensors {
    BufferedSafetensors::new(std::fs::read(path(name, "safetensors")).unwrap()).unwrap()
}

/// A builder of tensors by their names.
fn builder(tensors: &[(&str, Tensor)]) -> VarBuilder<'static> {
    let tensors = tensors.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect();
    VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu)
}

fn tensor<T: candle::WithDType>(values: Vec<T>, shape: &[usize]) -> Tensor {
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Whether numbers have the same bits, or are NaN both.
fn assert_same(actual: &[f32], expected: &[f32], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (x, y)) in actual.iter().zip(expected).enumerate() {
        assert!(
            x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan()),
            "{what}: number {i} is {x:e}, expected {y:e}"
        );
    }
}

/// The weights by the description of the layout: what kernels read.
fn by_layout(weight: &QuantWeight) -> Vec<f32> {
    let ([n, k], scales, row_bytes) = (weight.shape(), weight.scales(), weight.row_bytes());
    let ([rows, group], [by_row, by_group], size) = (scales.shared(), scales.strides(), scales.format().bytes());
    assert!(row_bytes.is_multiple_of(16));
    assert_eq!(weight.bytes().len(), n * row_bytes);
    let nibbles = [0usize, 8, 16, 24, 1, 9, 17, 25];
    let code = |n: usize, k: usize| -> u8 {
        let row = &weight.bytes()[n * row_bytes..];
        if weight.codes().bits() == 8 {
            return row[k];
        }
        let (span, place) = (k / 32, k % 32);
        // Neighbours 2t + 8i and 2t + 8i + 1 are in word t.
        let word = place % 8 / 2;
        let nibble = nibbles.iter().position(|at| at + 2 * word == place).unwrap();
        row[span * 16 + word * 4 + nibble / 2] >> (nibble % 2 * 4) & 15
    };
    let middle = match weight.codes() {
        Codes::U4 => 8.0,
        Codes::U8 => 128.0,
        _ => 0.0,
    };
    let mut weights = vec![0.0; n * k];
    for row in 0..n {
        for column in 0..k {
            let at = row / rows * by_row + column / group * by_group;
            let bytes = &scales.bytes()[at * size..(at + 1) * size];
            let scale = match (scales.format(), bytes) {
                (ScaleFormat::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
                (ScaleFormat::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f32(),
                (ScaleFormat::BF16, &[a, b]) => f32::from_bits(u32::from(u16::from_le_bytes([a, b])) << 16),
                (ScaleFormat::E8M0, &[255]) => f32::NAN,
                (ScaleFormat::E8M0, &[e]) => 2f64.powi(i32::from(e) - 127) as f32,
                (ScaleFormat::E4M3, &[x]) => float8::F8E4M3::from_bits(x).to_f32(),
                other => panic!("{other:?}"),
            };
            let zero = weight.zeros().map_or(middle, |zeros| f32::from(zeros[at]));
            let x = code(row, column);
            let number = match weight.codes() {
                Codes::F8E4M3 => float8::F8E4M3::from_bits(x).to_f32(),
                Codes::I8 => f32::from(x as i8),
                Codes::U8 | Codes::U4 => f32::from(x),
                Codes::E2M1 => {
                    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(x & 7)];
                    if x > 7 {
                        -magnitude
                    } else {
                        magnitude
                    }
                }
                other => panic!("{other}"),
            };
            let to = weight.gather().map_or(column, |gather| gather[column] as usize);
            weights[row * k + to] = (number - zero) * scale * weight.alpha();
        }
        // What a row is padded by is zero.
        let last = (k.max(1) - 1) / group * by_group + row / rows * by_row;
        let zero = weight.zeros().map_or(middle as u8, |zeros| zeros[last]);
        let end = if weight.codes().bits() == 4 { k.div_ceil(32) * 32 } else { k };
        assert!((k..end).all(|k| code(row, k) == zero), "row {row} is padded by zeros");
    }
    weights
}
