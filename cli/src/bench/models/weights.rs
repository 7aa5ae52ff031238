//! Seeded random weights: the same tensor for the same name, drawn by the same kind of device, scaled so that activations stay near 1.

use super::super::random::{deviation, seed, uniform};
use candle::{DType, Device, Result, Shape, Tensor};
use candle_nn::{var_builder::SimpleBackend, Init};

/// A source of every tensor that a model asks for. Each tensor is made when the model asks, so that memory holds the model and one tensor in f32.
#[derive(Default)]
pub struct Seeded {
    /// The CPU draws the numbers of a GPU's tensors, too: a model on the CPU and a model on a GPU have the same weights.
    pub by_cpu: bool,
    /// Numbers are rounded to this type before the model's: models in this type and in a wider type have the same weights.
    pub rounded_to: Option<DType>,
}

impl Seeded {
    /// A tensor in the type of the model.
    fn rounded(&self, numbers: Tensor, dtype: DType) -> Result<Tensor> {
        numbers.to_dtype(self.rounded_to.unwrap_or(dtype))?.to_dtype(dtype)
    }
}

impl SimpleBackend for Seeded {
    fn get(&self, shape: Shape, name: &str, hint: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        if matches!(hint, Init::Const(value) if value == 1.0) {
            return Tensor::ones(shape, dtype, device); // norms
        }
        let (std, seed) = (deviation(&shape), seed(name));
        if device.is_cpu() || self.by_cpu {
            // The CPU's generator takes no seed.
            let values: Vec<f32> = uniform(seed).map(|x| std * x).take(shape.elem_count()).collect();
            return self.rounded(Tensor::from_vec(values, shape, &Device::Cpu)?, dtype)?.to_device(device);
        }
        device.set_seed(seed)?;
        self.rounded(Tensor::randn(0f32, std, shape, device)?, dtype)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle::bail!("{name} is asked for without a shape, which random weights cannot give")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}
