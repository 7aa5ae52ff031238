//! Activations after a product, and their slopes, for gradients.

use super::cpu::{rounded, sums_of};
#[cfg(feature = "cuda")]
use super::cuda;
use super::lowering::format_of;
use crate::problem::{Activation, Format, Real};
use ::candle::backend::BackendStorage;
use ::candle::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, WithDType};
use half::{bf16, f16};
use rayon::prelude::*;

/// The activation of each number of `x`, which is in the type of sums, rounded once to `out`.
pub(super) fn activated(activation: Activation, x: &Tensor, out: DType) -> Result<Tensor> {
    match activation {
        Activation::Identity => x.to_dtype(out),
        _ if sums_of(out) != x.dtype() => activated(activation, x, x.dtype())?.to_dtype(out),
        _ => x.contiguous()?.apply_op1(Activated { activation, out }),
    }
}

struct Activated {
    activation: Activation,
    out: DType,
}

impl Activated {
    fn of<T: WithDType, Sum: WithDType + Real>(&self, storage: &CpuStorage, layout: &Layout) -> Result<CpuStorage> {
        let start = layout.start_offset();
        let sums = &storage.as_slice::<Sum>()?[start..start + layout.shape().elem_count()];
        let value = |x: &Sum| rounded(self.activation.apply(*x));
        Ok(T::to_cpu_storage_owned(sums.par_iter().map(value).collect()))
    }
}

impl CustomOp1 for Activated {
    fn name(&self) -> &'static str {
        "tilegemm-activation"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let values = match format_of(self.out)? {
            Format::F16 => self.of::<f16, f32>(storage, layout),
            Format::BF16 => self.of::<bf16, f32>(storage, layout),
            Format::F32 => self.of::<f32, f32>(storage, layout),
            _ => self.of::<f64, f64>(storage, layout),
        };
        Ok((values?, layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &::candle::CudaStorage, layout: &Layout) -> Result<(::candle::CudaStorage, Shape)> {
        Ok((cuda::activated(self.activation, self.out, (storage, layout))?, layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some((grad.to_dtype(x.dtype())? * slope(self.activation, x)?)?))
    }
}

/// The derivative of an activation at each number of `x`, which is in the type of sums.
pub(super) fn slope(activation: Activation, x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1(Slope(activation))
}

struct Slope(Activation);

impl Slope {
    fn of<Sum: WithDType + Real>(&self, storage: &CpuStorage, layout: &Layout) -> Result<CpuStorage> {
        let start = layout.start_offset();
        let sums = &storage.as_slice::<Sum>()?[start..start + layout.shape().elem_count()];
        Ok(Sum::to_cpu_storage_owned(sums.par_iter().map(|x| self.0.slope(*x)).collect()))
    }

    /// The second derivative, by candle's own ops.
    fn curvature(&self, x: &Tensor) -> Result<Tensor> {
        let square = x.sqr()?;
        let factor = 2.0 * (2.0 / std::f64::consts::PI).sqrt();
        // y, y' and y'' of x sigmoid(y(x))
        let [y, steepness, bend] = match self.0 {
            Activation::Identity | Activation::Relu => return x.zeros_like(),
            Activation::GeluErf => {
                // (2 - x^2) times the density of the normal distribution
                let density = square.affine(-0.5, 0.0)?.exp()?.affine((0.5 / std::f64::consts::PI).sqrt(), 0.0)?;
                return density * square.affine(-1.0, 2.0)?;
            }
            Activation::GeluTanh => [
                (x * square.affine(0.044715 * factor, factor)?)?,
                square.affine(3.0 * 0.044715 * factor, factor)?,
                x.affine(6.0 * 0.044715 * factor, 0.0)?,
            ],
            Activation::Silu => [x.clone(), x.ones_like()?, x.zeros_like()?],
        };
        let gate = y.neg()?.exp()?.affine(1.0, 1.0)?.recip()?;
        let gate_slope = (&gate * gate.affine(-1.0, 1.0)?)?;
        let bends = ((x * steepness.sqr()?)? * gate.affine(-2.0, 1.0)?)? + (x * bend)?;
        gate_slope * (bends + steepness.affine(2.0, 0.0)?)?
    }
}

impl CustomOp1 for Slope {
    fn name(&self) -> &'static str {
        "tilegemm-slope"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let slopes = match format_of(storage.dtype())? {
            Format::F32 => self.of::<f32>(storage, layout),
            _ => self.of::<f64>(storage, layout),
        };
        Ok((slopes?, layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &::candle::CudaStorage, layout: &Layout) -> Result<(::candle::CudaStorage, Shape)> {
        Ok((cuda::slope(self.0, (storage, layout))?, layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some((grad * self.curvature(x)?)?))
    }
}
