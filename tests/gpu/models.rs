//! Unmodified models of candle-transformers on the GPU, by stock and through the interposer, against the CPU in f32 with the same weights.

use crate::device::Gpu;
use crate::models::{weights, Family, FAMILIES};
use crate::Test;
use candle::{DType, Device, Result, Tensor};
use candle_tilegemm::interpose::{self, Mode};

/// The types of the models. A model that stock candle does not run in a type is left out there.
const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
/// Errors that differ by the order of sums alone: rounding of the type, which grows from layer to layer.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2e-2,
        DType::F16 => 3e-3,
        _ => 1e-5,
    }
}

/// A test for each family.
pub fn tests() -> Vec<(String, Test)> {
    let test = |family: &'static Family| -> (String, Test) {
        let run = move |gpu: &Gpu| all(family, &Device::Cuda(gpu.device.clone())).map_err(|error| error.to_string());
        (format!("model_{}", family.name), Box::new(run))
    };
    FAMILIES.iter().map(test).collect()
}

fn outputs(family: &Family, dtype: DType, rounded_to: DType, device: &Device) -> Result<Vec<Tensor>> {
    let outputs = (family.run)(&weights(dtype, rounded_to, device))?;
    outputs.into_iter().map(|output| output.to_device(&Device::Cpu)?.to_dtype(DType::F64)).collect()
}

/// The largest relative error of the outputs, Euclidean.
fn error(outputs: &[Tensor], expected: &[Tensor]) -> Result<f64> {
    let norm = |t: Tensor| t.sqr()?.sum_all()?.to_scalar::<f64>();
    let errors = outputs.iter().zip(expected).map(|(output, expected)| {
        let error = (norm((output - expected)?)? / norm(expected.clone())?.max(1e-30)).sqrt();
        Ok(if error.is_nan() { f64::INFINITY } else { error })
    });
    errors.collect::<Result<Vec<f64>>>().map(|errors| errors.into_iter().fold(0.0, f64::max))
}

fn all(family: &Family, gpu: &Device) -> Result<()> {
    let mut ran = 0;
    for dtype in DTYPES {
        let expected = outputs(family, DType::F32, dtype, &Device::Cpu)?;
        interpose::set_mode(Mode::Off);
        let stock = outputs(family, dtype, dtype, gpu);
        interpose::set_mode(Mode::On);
        let stock = match stock {
            Ok(stock) => error(&stock, &expected)?,
            Err(error) if dtype != DType::F32 => {
                let error = error.to_string();
                println!(
                    "{} in {dtype:?}: stock does not run: {}",
                    family.name,
                    error.lines().next().unwrap_or_default()
                );
                continue;
            }
            Err(error) => return Err(error),
        };
        if stock.is_infinite() {
            println!("{} in {dtype:?}: stock overflows", family.name);
            continue;
        }
        let before = interpose::stats();
        let ours = error(&outputs(family, dtype, dtype, gpu)?, &expected)?;
        let counted = interpose::stats().since(&before);
        println!(
            "{} in {dtype:?}: errors {ours:.1e}, stock {stock:.1e}; {} of {} products on our kernels",
            family.name,
            counted.ours,
            counted.calls()
        );
        if ours > 2.0 * stock + rounding(dtype) {
            candle::bail!("{} in {dtype:?}: error {ours:.2e}, stock's {stock:.2e}", family.name);
        }
        if counted.ours == 0 || counted.refused > 0 {
            candle::bail!("{} in {dtype:?}: {counted:?}", family.name);
        }
        ran += 1;
    }
    println!("{}: {ran} types", family.name);
    Ok(())
}
