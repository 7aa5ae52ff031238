//! RMS norm of rows, with an addition before it.

#[cfg(feature = "layers")]
use crate::candle::cuda::layers;
use crate::candle::numbers::{narrow, wide};
use crate::candle::tensors::{unwritten, Block, Rows, FLOATS};
use ::candle::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use rayon::prelude::*;

const BLOCK: Block = Block("RmsNorm");

/// `x / sqrt(mean(x^2) + eps) * weight` over the last dimension, with the names of `candle_nn::RmsNorm`, and an addition before it in the same kernel.
///
/// Inputs are in f16, bf16 or f32, of any rank; rows may be apart. Arithmetic is in f32, and the result is rounded once. On a GPU the norm needs the feature
/// `layers`, and takes rows of at most 16384 numbers. No gradient passes.
///
/// ```
/// use candle::{Device, Module, Tensor};
/// use candle_tilegemm::nn::RmsNorm;
///
/// let norm = RmsNorm::new(Tensor::new(&[1f32, 2.], &Device::Cpu)?, 0.0);
/// let x = Tensor::new(&[[3f32, 4.]], &Device::Cpu)?;
/// let scale = (12.5f32).sqrt();
/// assert_eq!(norm.forward(&x)?.to_vec2::<f32>()?, [[3. / scale, 8. / scale]]);
///
/// let (sum, y) = norm.add(&x, &x)?;
/// assert_eq!(sum.to_vec2::<f32>()?, [[6., 8.]]);
/// assert_eq!(y.to_vec2::<f32>()?, norm.forward(&sum)?.to_vec2::<f32>()?);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f64,
}

/// A norm of rows of `size` numbers, with weights `weight`, as [`candle_nn::rms_norm()`] makes one.
///
/// # Errors
/// Missing weights, or weights of another shape.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    Ok(RmsNorm::new(vb.get_with_hints(size, "weight", candle_nn::Init::Const(1.0))?, eps))
}

impl RmsNorm {
    /// A norm with these weights, one for each number of a row.
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self { weight, eps }
    }

    /// The weights.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// What is added to the mean of squares.
    pub fn eps(&self) -> f64 {
        self.eps
    }

    /// `x + residual`, rounded to their type, and its norm: the next residual, and the next layer's input. The bits are those of an addition and a norm
    /// apart.
    ///
    /// # Errors
    /// As for `forward`: shapes, types and devices that do not fit, and tensors that track gradients.
    pub fn add(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        let make = || unwritten(x.dims(), x.dtype(), x.device());
        let (sum, out) = (make()?, make()?);
        self.add_into(x, residual, &sum, &out)?;
        Ok((sum, out))
    }

    /// [`add`](Self::add) into tensors that exist. `sum` may be `x` or `residual`, and `out` may be `residual`. Allocates nothing, and is legal in a
    /// capture.
    ///
    /// # Errors
    /// As for [`add`](Self::add).
    pub fn add_into(&self, x: &Tensor, residual: &Tensor, sum: &Tensor, out: &Tensor) -> Result<()> {
        let rows = self.checked(x)?;
        let residual = BLOCK.rows_like("the residual", residual, rows)?;
        self.launch(
            rows,
            Some((residual, BLOCK.rows_like("the sum", sum, rows)?)),
            BLOCK.rows_like("the result", out, rows)?,
        )
    }

    /// The norm of `x` into `out`, which may be `x`, or in f32 where `x` is in 16 bits. Allocates nothing, and is legal in a capture.
    ///
    /// # Errors
    /// As for [`add`](Self::add).
    pub fn forward_into(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        let rows = self.checked(x)?;
        let out = match out.dtype() {
            DType::F32 if x.dtype() != DType::F32 => BLOCK.rows_as_many("the result", out, rows)?,
            _ => BLOCK.rows_like("the result", out, rows)?,
        };
        self.launch(rows, None, out)
    }

    fn checked<'a>(&self, x: &'a Tensor) -> Result<Rows<'a>> {
        BLOCK.among("x", x, &FLOATS)?;
        let columns = self.weight.elem_count();
        if columns == 0 || x.dims().last() != Some(&columns) {
            bail!("RmsNorm: x has the shape {:?}, and there are {columns} weights; expected rows of as many", x.dims());
        }
        BLOCK.list("the weight", &self.weight, x.dtype(), columns, x.device())?;
        BLOCK.rows("x", x, columns)
    }

    fn launch(&self, x: Rows, adds: Option<(Rows, Rows)>, out: Rows) -> Result<()> {
        match x.tensor.device() {
            Device::Cpu => self.on_cpu(x, adds, out),
            #[cfg(feature = "layers")]
            Device::Cuda(device) => layers::rms_norm(device, x, adds, &self.weight, out, self.eps as f32),
            other => BLOCK.elsewhere(other),
        }
    }

    fn on_cpu(&self, x: Rows, adds: Option<(Rows, Rows)>, out: Rows) -> Result<()> {
        let weight = wide(BLOCK.rows("the weight", &self.weight, x.columns)?)?;
        let mut values = wide(x)?;
        if let Some((residual, sum)) = adds {
            let residual = wide(residual)?;
            values.iter_mut().zip(&residual).for_each(|(x, r)| *x += r);
            narrow(sum, &values)?;
            values = wide(sum)?; // as it was rounded
        }
        values.par_chunks_mut(x.columns).for_each(|row| {
            // In f64, as a long sum in f32, one number after the other, is worse than a GPU's.
            let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / row.len() as f64;
            let factor = (1.0 / (mean + self.eps).sqrt()) as f32;
            row.iter_mut().zip(&weight).for_each(|(x, weight)| *x = *x * factor * weight);
        });
        narrow(out, &values)
    }
}

impl Module for RmsNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let out = unwritten(x.dims(), x.dtype(), x.device())?;
        self.forward_into(x, &out)?;
        Ok(out)
    }
}
