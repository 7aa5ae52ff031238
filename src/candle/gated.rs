//! Products with a gate in their epilogue.

#[cfg(feature = "cuda")]
use super::cuda;
use super::gates;
use super::into::Gated;
use super::lowering::Third;
use super::op::Gemm;
#[cfg(feature = "cuda")]
use super::tensors::key;
use super::tensors::{unwritten, Block, FLOATS};
use crate::problem::Activation;
use ::candle::{bail, DType, Device, Result, Tensor};

const BLOCK: Block = Block("gemm");

fn columns(tensor: &Tensor) -> usize {
    tensor.dims().last().copied().unwrap_or(0)
}

impl Gemm {
    /// The gated product, into memory of its own.
    pub(super) fn forward_gated(&self, lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
        let (same, both) = self.check(lhs, rhs)?;
        // A product into a tensor copies nothing.
        let [lhs, rhs] = match lhs.device() {
            Device::Cuda(_) => [in_lines(lhs)?, in_lines(&same)?],
            _ => [lhs.clone(), same],
        };
        let bias = self.bias.as_ref().map(Tensor::contiguous).transpose()?;
        let out = unwritten(&halved(both.dims()), self.out_dtype.unwrap_or(lhs.dtype()), lhs.device())?;
        let memory = || unwritten(both.dims(), out.dtype(), out.device());
        self.write_gated([&lhs, &rhs], bias.as_ref(), both.dims(), &out, &memory)?;
        Ok(out)
    }

    /// The same into a tensor that exists.
    pub(super) fn gated_into(&self, lhs: &Tensor, rhs: &Tensor, out: &Tensor) -> Result<()> {
        let (same, both) = self.check(lhs, rhs)?;
        #[cfg(feature = "cuda")]
        if lhs.device().is_cuda() && key(&same) != key(rhs) {
            bail!("gemm: rhs is not contiguous, and gets other batch dimensions; call `.contiguous()?` on it before a product into a tensor");
        }
        let memory = || {
            let Some(scratch) = &self.scratch else {
                bail!("gemm: no kernel fuses this gate; give memory for the product by `scratch`, or call `forward`");
            };
            let count = both.elem_count();
            BLOCK.same("the scratch", scratch, out)?;
            if scratch.elem_count() < count || !scratch.is_contiguous() {
                bail!("gemm: the scratch is {:?}; expected {count} contiguous numbers", scratch.shape());
            }
            for (what, tensor) in [("lhs", Some(lhs)), ("rhs", Some(rhs)), ("the bias", self.bias.as_ref())] {
                tensor.map_or(Ok(()), |tensor| BLOCK.apart(what, tensor, scratch))?;
            }
            BLOCK.apart("the scratch", scratch, out)?;
            scratch.flatten_all()?.narrow(0, 0, count)?.reshape(&both)
        };
        self.write_gated([lhs, &same], self.bias.as_ref(), both.dims(), out, &memory)
    }

    /// `shape` is that of the product without its gate; `both` makes memory for it.
    fn write_gated(
        &self,
        [lhs, rhs]: [&Tensor; 2],
        bias: Option<&Tensor>,
        shape: &[usize],
        out: &Tensor,
        both: &dyn Fn() -> Result<Tensor>,
    ) -> Result<()> {
        let Some((gate, function)) = self.gate else { bail!("gemm: this product has no gate") };
        BLOCK.among("lhs", lhs, &FLOATS)?;
        if self.activation != Activation::Identity || self.residual.is_some() {
            bail!("gemm: a gated product has neither an activation beside its gate nor a residual");
        }
        if !columns(rhs).is_multiple_of(2) {
            bail!("gemm: rhs has {} columns; expected gates, and as many numbers that they multiply", columns(rhs));
        }
        let op = self.op_of(bias.is_some().then_some(Third::Bias), None);
        let of = Gated { op: &op, lhs, rhs, bias, gate, function, out };
        of.product(out).check(self.out_dtype.unwrap_or(lhs.dtype()), &halved(shape))?;
        match lhs.device() {
            _ if out.elem_count() == 0 => Ok(()),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => cuda::gated::product(device, &of, both),
            Device::Cpu => {
                let _ = both;
                self.on_cpu(&of)
            }
            other => BLOCK.elsewhere(other),
        }
    }

    /// Sums in f32, and one rounding behind the gate.
    fn on_cpu(&self, of: &Gated) -> Result<()> {
        let bias = self.bias.as_ref().map(|bias| bias.to_dtype(DType::F32)).transpose()?;
        let mut plain = self.clone();
        (plain.gate, plain.scratch, plain.bias, plain.out_dtype) = (None, None, bias, Some(DType::F32));
        let both = plain.forward(of.lhs, of.rhs)?;
        let n = columns(&both);
        let (x, out) = (BLOCK.rows("the product", &both, n)?, BLOCK.rows("the result", of.out, n / 2)?);
        gates::on_cpu(x, of.gate, of.function, out)
    }
}

/// The shape of the result.
fn halved(shape: &[usize]) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let Some(columns) = shape.last_mut() {
        *columns /= 2;
    }
    shape
}

/// The tensor where it lies, or a dense copy where its matrices have neither rows nor columns of numbers side by side, or it has several dimensions of them.
fn in_lines(tensor: &Tensor) -> Result<Tensor> {
    match tensor.stride() {
        [.., row, column] if tensor.rank() <= 3 && (*row == 1 || *column == 1) => Ok(tensor.clone()),
        _ => tensor.contiguous(),
    }
}
