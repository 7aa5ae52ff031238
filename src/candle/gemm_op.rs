//! The custom op behind [`Gemm`](crate::Gemm): forward on both devices, backward.

use super::activation::slope;
use super::cpu::{self, sums_of};
#[cfg(feature = "cuda")]
use super::cuda;
use super::lowering::{product_shape, GemmOp, Third};
use crate::problem::Activation;
#[cfg(feature = "cuda")]
use ::candle::backend::BackendStorage;
use ::candle::{CpuStorage, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Tensor, D};

impl GemmOp {
    /// Runs the op; `third` is its bias or residual.
    pub(super) fn apply(self, lhs: &Tensor, rhs: &Tensor, third: Option<&Tensor>) -> Result<Tensor> {
        match third {
            Some(third) => lhs.apply_op3(rhs, &third.contiguous()?, self),
            None => lhs.apply_op2(rhs, self),
        }
    }

    /// `alpha * lhs @ rhs + bias`, with the precision of this op, in `out` or the type of the operands.
    fn product(&self, lhs: &Tensor, rhs: &Tensor, bias: Option<&Tensor>, out: Option<DType>) -> Result<Tensor> {
        let third = bias.map(|_| Third::Bias);
        let op =
            Self { beta: 1.0, activation: Activation::Identity, third, residual: None, gates_c: false, out, ..*self };
        op.apply(lhs, rhs, bias)
    }

    /// Gradients of the operands, rounded once, and of the biased product before the activation, in the type of sums where there is an activation.
    fn operand_gradients(
        &self,
        lhs: &Tensor,
        rhs: &Tensor,
        bias: Option<&Tensor>,
        grad: &Tensor,
    ) -> Result<[Tensor; 3]> {
        let mut grad = grad.clone();
        if self.activation != Activation::Identity {
            let sums = sums_of(lhs.dtype());
            let bias = bias.map(|bias| bias.to_dtype(sums)).transpose()?;
            let product = self.product(lhs, rhs, bias.as_ref(), Some(sums))?;
            grad = (grad.to_dtype(sums)? * slope(self.activation, &product)?)?;
        }
        let narrow = grad.to_dtype(lhs.dtype())?;
        // Both are products of columns: K is the rows of `of_rows`.
        let over = broadcast_over(lhs, &narrow);
        let [a, b] = [of_rows(&narrow.t()?, &over)?, of_rows(&rhs.t()?, &over)?];
        let d_lhs = self.product(&a.t()?, &b, None, None)?.reshape(lhs.shape())?;
        let over = broadcast_over(rhs, &narrow);
        let [a, b] = [of_rows(lhs, &over)?, of_rows(&narrow, &over)?];
        let d_rhs = self.product(&a.t()?, &b, None, None)?.reshape(rhs.shape())?;
        Ok([d_lhs, d_rhs, grad])
    }
}

/// Which batch dimensions of a product an operand is broadcast over.
fn broadcast_over(operand: &Tensor, product: &Tensor) -> Vec<bool> {
    let added = product.rank() - operand.rank();
    let has = |dim: usize| dim >= added && operand.dims()[dim - added] == product.dims()[dim];
    (0..product.rank() - 2).map(|dim| !has(dim)).collect()
}

/// The tensor with the batch dimensions `over` as a part of its rows. A product over these rows adds up over the batch, and rounds once.
fn of_rows(tensor: &Tensor, over: &[bool]) -> Result<Tensor> {
    if !over.contains(&true) {
        return Ok(tensor.clone());
    }
    let batch = over.len();
    let tensor = (tensor.rank()..batch + 2).try_fold(tensor.clone(), |tensor, _| tensor.unsqueeze(0))?;
    let (merged, kept): (Vec<usize>, Vec<usize>) = (0..batch).partition(|dim| over[*dim]);
    let size = |dim: &usize| tensor.dims()[*dim];
    let rows = merged.iter().map(size).product::<usize>() * size(&batch);
    let shape: Vec<usize> = kept.iter().map(size).chain([rows, size(&(batch + 1))]).collect();
    tensor.permute([kept, merged, vec![batch, batch + 1]].concat())?.reshape(shape)
}

/// The gradient of a residual. A residual that is not read has a gradient of zeros.
fn of_residual(beta: f64, grad: &Tensor) -> Result<Tensor> {
    match beta {
        1.0 => Ok(grad.clone()),
        0.0 => grad.zeros_like(),
        beta => grad.affine(beta, 0.0),
    }
}

/// A result that has `beta * residual` already, with the residual's gradient: an op with a bias has no input left for the residual.
pub(super) struct WithResidual {
    pub beta: f64,
}

impl CustomOp2 for WithResidual {
    fn name(&self) -> &'static str {
        "tilegemm-residual"
    }

    fn cpu_fwd(&self, result: &CpuStorage, layout: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((result.clone(), layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        result: &::candle::CudaStorage,
        layout: &Layout,
        _: &::candle::CudaStorage,
        _: &Layout,
    ) -> Result<(::candle::CudaStorage, Shape)> {
        Ok((result.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((Some(grad.clone()), Some(of_residual(self.beta, grad)?)))
    }
}

type CpuInput<'a> = (&'a CpuStorage, &'a Layout);

impl CustomOp2 for GemmOp {
    fn name(&self) -> &'static str {
        "tilegemm"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let inputs: [CpuInput; 2] = [(s1, l1), (s2, l2)];
        Ok((cpu::forward(self, inputs, None)?, product_shape(l1.dims(), l2.dims())?))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        s1: &::candle::CudaStorage,
        l1: &Layout,
        s2: &::candle::CudaStorage,
        l2: &Layout,
    ) -> Result<(::candle::CudaStorage, Shape)> {
        Ok((cuda::forward(self, [(s1, l1), (s2, l2)], None)?, product_shape(l1.dims(), l2.dims())?))
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
        Ok((cpu::forward(self, inputs, Some((s3, l3)))?, product_shape(l1.dims(), l2.dims())?))
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
        Ok((cuda::forward(self, [(s1, l1), (s2, l2)], Some((s3, l3)))?, product_shape(l1.dims(), l2.dims())?))
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
            Some(bias) => {
                let rows = d_product.to_dtype(sums_of(lhs.dtype()))?.reshape(((), bias.dim(D::Minus1)?))?;
                rows.sum(0)?.to_dtype(bias.dtype())?
            }
            None => of_residual(self.beta, grad)?,
        };
        Ok((Some(d_lhs), Some(d_rhs), Some(d_third)))
    }
}
