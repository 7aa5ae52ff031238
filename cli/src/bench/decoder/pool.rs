//! Random dense weights that are made as fast as a device copies.

use super::super::weights::{deviation, seed, uniform, words};
use candle::{DType, Device, Result, Shape, Tensor};
use candle_nn::{var_builder::SimpleBackend, Init};

/// A list of random numbers. A weight is a part of it, scaled so that activations stay near 1; its name says which part.
pub struct Pool {
    numbers: Tensor,
}

impl Pool {
    /// Numbers of mean 0 and variance 1 in `dtype`.
    pub fn new(dtype: DType, device: &Device) -> Result<Self> {
        let numbers = if device.is_cpu() {
            let count = 1 << 20;
            Tensor::from_vec(uniform(1).take(count).collect::<Vec<f32>>(), count, device)?
        } else {
            device.set_seed(1)?;
            Tensor::randn(0f32, 1f32, 1 << 26, device)?
        };
        Ok(Self { numbers: numbers.to_dtype(dtype)? })
    }

    /// So many numbers. Parts start anywhere: rows of two weights are not the same numbers at the same places.
    fn part(&self, count: usize, seed: u64) -> Result<Tensor> {
        let most = self.numbers.elem_count() / 2;
        let start = |word: u64, count: usize| (word >> 8) as usize % (2 * most - count);
        let mut words = words(seed);
        let mut next = |count: usize| self.numbers.narrow(0, start(words.next().unwrap_or(seed), count), count);
        if count <= most {
            return next(count);
        }
        let parts = (0..count).step_by(most).map(|at| next(most.min(count - at))).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&parts, 0)
    }
}

impl SimpleBackend for Pool {
    fn get(&self, shape: Shape, name: &str, hint: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        if matches!(hint, Init::Const(value) if value == 1.0) {
            return Tensor::ones(shape, dtype, device); // norms
        }
        let part = self.part(shape.elem_count(), seed(name))?;
        // Narrow layers ask for numbers on the host.
        part.affine(f64::from(deviation(&shape)), 0.0)?.to_dtype(dtype)?.reshape(shape)?.to_device(device)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle::bail!("{name} is asked for without a shape, which random weights cannot give")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}
