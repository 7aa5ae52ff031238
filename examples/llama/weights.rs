//! Seeded random weights: the same tensor for the same name and kind of device, scaled so that activations stay near 1.

use candle::{DType, Device, Result, Shape, Tensor};
use candle_nn::{var_builder::SimpleBackend, Init};

/// A source of every tensor that a model asks for.
pub struct Seeded;

impl SimpleBackend for Seeded {
    fn get(&self, shape: Shape, name: &str, hint: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        if matches!(hint, Init::Const(value) if value == 1.0) {
            return Tensor::ones(shape, dtype, device); // norms
        }
        // Rows of length k with this deviation give outputs of variance 1. Rows of embeddings are looked up and get the same deviation.
        let std = (1.0 / *shape.dims().last().unwrap_or(&1) as f32).sqrt();
        let seed = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        if device.is_cpu() {
            // The CPU's generator takes no seed.
            let values: Vec<f32> = uniform(seed).map(|x| std * x).take(shape.elem_count()).collect();
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

/// Numbers of mean 0 and variance 1, by splitmix64.
fn uniform(seed: u64) -> impl Iterator<Item = f32> {
    let states = std::iter::successors(Some(seed), |state| Some(state.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    states.map(|state| {
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((mixed ^ (mixed >> 31)) >> 40) as f32 / (1 << 24) as f32;
        3f32.sqrt() * (2.0 * unit - 1.0)
    })
}
