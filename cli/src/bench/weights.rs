//! Seeded random weights: the same tensor for the same name, drawn by the same kind of device, scaled so that activations stay near 1.

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

/// The deviation of weights with which activations stay near 1: rows of length k give outputs of variance 1. Rows of embeddings are looked up and get the same
/// deviation. A filter of a convolution is a row of its three last dimensions.
pub fn deviation(shape: &Shape) -> f32 {
    let of_row = if shape.rank() == 4 { &shape.dims()[1..] } else { &shape.dims()[shape.rank().saturating_sub(1)..] };
    (1.0 / of_row.iter().product::<usize>() as f32).sqrt()
}

/// The seed of a name.
pub fn seed(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Words of 64 random bits, by splitmix64.
pub fn words(seed: u64) -> impl Iterator<Item = u64> {
    let states = std::iter::successors(Some(seed), |state| Some(state.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    states.map(|state| {
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// Numbers of mean 0 and variance 1.
pub fn uniform(seed: u64) -> impl Iterator<Item = f32> {
    words(seed).map(|word| {
        let unit = (word >> 40) as f32 / (1 << 24) as f32;
        3f32.sqrt() * (2.0 * unit - 1.0)
    })
}
