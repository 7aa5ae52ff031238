//! The custom op behind [`Gemm`](crate::Gemm): forward on both devices, backward.

use super::activation::slope;
use super::cpu;
#[cfg(feature = "cuda")]
use super::cuda;
use super::lowering::{readable, GemmOp, Third};
use crate::problem::Activation;
use ::candle::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, D};

impl GemmOp {
    /// Runs the op on operands that are [`readable`]; `third` is its bias or residual.
    pub(super) fn apply(self, lhs: &Tensor, rhs: &Tensor, third: Option<&Tensor>) -> Result<Tensor> {
        match third {
            Some(third) => lhs.apply_op3(rhs, &third.contiguous()?, self),
            None => lhs.apply_op2(rhs, self),
        }
    }

    /// `alpha * lhs @ rhs + bias`, with the precision of this op.
    fn product(&self, lhs: Tensor, rhs: Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let third = bias.map(|_| Third::Bias);
        let op = Self { beta: 1.0, activation: Activation::Identity, third, residual: None, ..*self };
        let (lhs, rhs) = readable(lhs, rhs)?;
        op.apply(&lhs, &rhs, bias)
    }

    /// Gradients of the operands, and of the biased product before the activation.
    fn operand_gradients(
        &self,
        lhs: &Tensor,
        rhs: &Tensor,
        bias: Option<&Tensor>,
        grad: &Tensor,
    ) -> Result<[Tensor; 3]> {
        let grad = match self.activation {
            Activation::Identity => grad.clone(),
            activation => (grad * slope(activation, &self.product(lhs.clone(), rhs.clone(), bias)?)?)?,
        };
        let narrow = grad.to_dtype(lhs.dtype())?;
        let to_operands = Self { out: None, residual: None, ..*self };
        let d_lhs = to_operands.product(narrow.clone(), rhs.t()?, None)?;
        let d_rhs = to_operands.product(lhs.t()?, narrow, None)?;
        Ok([d_lhs, d_rhs, grad])
    }
}

type CpuInput<'a> = (&'a CpuStorage, &'a Layout);

impl CustomOp2 for GemmOp {
    fn name(&self) -> &'static str {
        "tilegemm"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let inputs: [CpuInput; 2] = [(s1, l1), (s2, l2)];
        Ok((cpu::forward(self, inputs, None)?, Self::shape(l1, l2)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        s1: &::candle::CudaStorage,
        l1: &Layout,
        s2: &::candle::CudaStorage,
        l2: &Layout,
    ) -> Result<(::candle::CudaStorage, Shape)> {
        Ok((cuda::forward(self, [(s1, l1), (s2, l2)], None)?, Self::shape(l1, l2)))
    }

    fn bwd(&self, lhs: &Tensor, rhs: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [d_lhs, d_rhs, _] = self.operand_gradients(lhs, rhs, None, grad)?;
        Ok((Some(d_lhs), Some(d_rhs)))
    }
}

impl CustomOp3 for GemmOp {
    fn name(&self) -> &'static str {
        "tilegemm"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let inputs: [CpuInput; 2] = [(s1, l1), (s2, l2)];
        Ok((cpu::forward(self, inputs, Some((s3, l3)))?, Self::shape(l1, l2)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        s1: &::candle::CudaStorage,
        l1: &Layout,
        s2: &::candle::CudaStorage,
        l2: &Layout,
        s3: &::candle::CudaStorage,
        l3: &Layout,
    ) -> Result<(::candle::CudaStorage, Shape)> {
        Ok((cuda::forward(self, [(s1, l1), (s2, l2)], Some((s3, l3)))?, Self::shape(l1, l2)))
    }

    fn bwd(
        &self,
        lhs: &Tensor,
        rhs: &Tensor,
        third: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let bias = (self.third == Some(Third::Bias)).then_some(third);
        let [d_lhs, d_rhs, d_product] = self.operand_gradients(lhs, rhs, bias, grad)?;
        let d_third = match bias {
            Some(bias) => d_product.reshape(((), bias.dim(D::Minus1)?))?.sum(0)?,
            None if self.beta == 1.0 => grad.clone(),
            None if self.beta == 0.0 => grad.zeros_like()?,
            None => grad.affine(self.beta, 0.0)?,
        };
        Ok((Some(d_lhs), Some(d_rhs), Some(d_third)))
    }
}
