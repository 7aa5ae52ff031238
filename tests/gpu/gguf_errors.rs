//! The errors of products with quantised weights beside those of candle's kernels: the rule of docs/gguf.md.

use crate::data::Kind;
use crate::device::Gpu;
use crate::oracle::{dot, wide};
use crate::Test;
use candle::quantized::{GgmlDType, QMatMul, QTensor};
use candle::{Device, Module, Result, Tensor};
use candle_tilegemm::internal::blocks::ggml_type;
use candle_tilegemm::nn::QLinear;
use candle_tilegemm::Format;
use rayon::prelude::*;
use std::sync::Arc;

/// N, K, and rows: up to eight and more are other kernels, of candle and of ours.
const COLUMNS: usize = 64;
const K: usize = 4096;
const ROWS: [usize; 3] = [1, 8, 72];
/// The data on which our root mean square is at most candle's.
const JUDGED: [Kind; 3] = [Kind::Normal, Kind::HeavyTailed, Kind::OutlierRows];
/// The largest error of ours over the sum of |w x|, on all data.
const BOUND: f64 = 1.0 / 256.0;

pub fn tests() -> Vec<(String, Test)> {
    let test = |(format, name): (Format, GgmlDType)| -> (String, Test) {
        let text = format!("{format}_is_as_exact_as_candle");
        (text, Box::new(move |gpu| errors(gpu, name).map_err(|error| error.to_string())?))
    };
    Format::blocks().filter_map(|format| Some((format, ggml_type(format)?))).map(test).collect()
}

/// `count` rows of activations (side 0) or of weights.
fn rows(kind: Kind, side: u64, count: usize) -> Vec<f32> {
    (0..count).into_par_iter().flat_map_iter(|index| kind.vector(side, K, index)).collect()
}

fn errors(gpu: &Gpu, format: GgmlDType) -> Result<std::result::Result<(), String>> {
    let device = Device::Cuda(gpu.device.clone());
    let mut wrong = Vec::new();
    for kind in Kind::OF_BLOCKS {
        let weights = Tensor::from_vec(rows(kind, 1, COLUMNS), (COLUMNS, K), &Device::Cpu)?;
        let on_the_cpu = QTensor::quantize(&weights, format)?;
        let numbers = wide(&on_the_cpu.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?);
        let weights = QTensor::quantize_onto(&weights, format, &device)?;
        let candles = QMatMul::from_arc(Arc::new(weights))?;
        let ours = QLinear::from(candles.clone());
        for m in ROWS {
            let x = rows(kind, 0, m);
            let exact: Vec<(f64, f64)> =
                wide(&x).par_chunks(K).flat_map_iter(|x| numbers.chunks(K).map(move |w| dot(x, w))).collect();
            let x = Tensor::from_vec(x, (m, K), &device)?;
            let errors_of = |layer: &dyn Module| -> Result<[f64; 2]> {
                let y = layer.forward(&x)?.flatten_all()?.to_vec1::<f32>()?;
                Ok(kind.errors(&y, exact.iter().copied()))
            };
            let ([max, rms], [_, candles]) = (errors_of(&ours)?, errors_of(&candles)?);
            // With this feature candle's calls are ours.
            let is_judged = JUDGED.contains(&kind) && !cfg!(feature = "interpose-kernels");
            if max > BOUND || (is_judged && rms > candles) {
                wrong.push(format!("{kind}, {m} rows: largest {max:.2e}, rms {rms:.2e}, candle's rms {candles:.2e}"));
            }
        }
    }
    Ok(if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) })
}
