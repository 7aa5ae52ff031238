//! Seeded random weights: the same tensor for the same name and device kind, of a size that keeps activations near 1.

use candle::{DType, Device, Result, Shape, Tensor};
use candle_nn::{var_builder::SimpleBackend, Init};
use rand::rngs::StdRng;
use rand::SeedableRng;
use rand_distr::{Distribution, Normal};

/// Gives every tensor that a model asks for.
pub struct Seeded;

impl SimpleBackend for Seeded {
    fn get(&self, shape: Shape, name: &str, hint: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        if matches!(hint, Init::Const(value) if value == 1.0) {
            return Tensor::ones(shape, dtype, device); // norms
        }
        // Rows of length k give outputs of variance 1; embeddings, whose rows are looked up, have it anyway.
        let std = (1.0 / *shape.dims().last().unwrap_or(&1) as f32).sqrt();
        let seed = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        if device.is_cpu() {
            let normal = Normal::new(0.0, std).map_err(candle::Error::wrap)?;
            let values: Vec<f32> = normal.sample_iter(StdRng::seed_from_u64(seed)).take(shape.elem_count()).collect();
            return Tensor::from_vec(values, shape, device)?.to_dtype(dtype);
        }
        device.set_seed(seed)?;
        Tensor::randn(0f32, std, shape, device)?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle::bail!("{name} is asked for without a shape, which random weights cannot give")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}
