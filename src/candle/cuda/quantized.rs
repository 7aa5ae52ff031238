//! Products with quantised weights on a GPU.

use super::{first, tensor, Launcher};
use crate::candle::blocks::format_of;
use crate::launch::Pointers;
use crate::problem::{power_of_two_in, Activation, BiasAxis, Epilogue, Format, Layout, Operand, Problem};
use ::candle::cuda_backend::cudarc::driver::{CudaSlice, DevicePtrMut, DeviceRepr};
use ::candle::cuda_backend::CudaDType;
use ::candle::quantized::{QMatMul, QTensor};
use ::candle::{bail, CudaDevice, DType, Device, Result, Tensor};
use half::{bf16, f16};

/// The operands of `activation(x @ weight^T + bias) + c`, or `* c` with `gates_c`.
pub(in crate::candle) struct Operands<'a> {
    pub x: &'a Tensor,
    pub weight: &'a QMatMul,
    pub bias: Option<&'a Tensor>,
    pub c: Option<&'a Tensor>,
    pub gates_c: bool,
}

impl Operands<'_> {
    /// The product on this crate's kernels, in the type of x; `None` where candle takes it, whose errors candle words.
    pub fn product(&self, activation: Activation) -> Result<Option<Tensor>> {
        let (QMatMul::QTensor(weight), Device::Cuda(device)) = (self.weight, self.x.device()) else { return Ok(None) };
        let Some(format) = format_of(weight.dtype()) else { return Ok(None) };
        let is_whole = weight.rank() == 2 && self.x.dims().last() == weight.shape().dims().last();
        if !is_whole || !weight.device().same_device(self.x.device()) {
            return Ok(None);
        }
        let product = match self.x.dtype() {
            DType::F32 => self.product_as::<f32>(device, weight, [Format::F32, format], activation),
            DType::BF16 => self.product_as::<bf16>(device, weight, [Format::BF16, format], activation),
            DType::F16 => self.product_as::<f16>(device, weight, [Format::F16, format], activation),
            _ => return Ok(None),
        };
        product.map(Some)
    }

    fn product_as<T: CudaDType + DeviceRepr>(
        &self,
        device: &CudaDevice,
        weight: &QTensor,
        [a, b]: [Format; 2],
        activation: Activation,
    ) -> Result<Tensor> {
        let (n, k) = weight.shape().dims2()?;
        let m = self.x.elem_count() / k.max(1);
        let mut shape = self.x.dims().to_vec();
        *shape.last_mut().expect("x has a dimension") = n;
        let third = |third: Option<&Tensor>, shape: &[usize], name: &str| match third {
            Some(tensor) if tensor.dims() != shape || tensor.dtype() != self.x.dtype() => {
                bail!(
                    "QLinear: the {name} is {:?} {:?}, expected {:?} {shape:?}",
                    tensor.dtype(),
                    tensor.dims(),
                    self.x.dtype()
                )
            }
            tensor => tensor.map(Tensor::contiguous).transpose(),
        };
        let of_c = if self.gates_c { "gated tensor" } else { "residual" };
        let (bias, c) = (third(self.bias, &[n], "bias")?, third(self.c, &shape, of_c)?);
        let x = self.x.contiguous()?;
        let stream = device.cuda_stream();
        // SAFETY: the kernel writes every number.
        let mut out: CudaSlice<T> = unsafe { device.alloc(m * n)? };
        {
            let x = x.storage_and_layout();
            let beside = [&bias, &c].map(|tensor| tensor.as_ref().map(Tensor::storage_and_layout));
            // Until the launch is made, the guards order this stream behind all other users of the memory.
            let (at, _a_guard) = first::<T>((&x.0, x.1), &stream)?;
            let (w, _b_guard) = weight.device_ptr_with_guard(&stream)?;
            let [bias, c] = [&beside[0], &beside[1]];
            let bias = bias.as_ref().map(|(bias, layout)| first::<T>((bias, layout), &stream)).transpose()?;
            let c = c.as_ref().map(|(c, layout)| first::<T>((c, layout), &stream)).transpose()?;
            let (d, _d_guard) = out.device_ptr_mut(&stream);
            let [bias, c] = [&bias, &c].map(|third| third.as_ref().map(|(address, _)| *address));
            let problem = Problem::dense(m, n, k, 1, Layout::NT, a).with(|problem| {
                problem.b.format = b;
                let mut epilogue = Epilogue::new(1.0, if c.is_some() { 1.0 } else { 0.0 });
                (epilogue.bias, epilogue.activation) = (bias.map(|_| BiasAxis::N), activation);
                epilogue.gates_c = self.gates_c;
                epilogue.c = c.map(|c| Operand::row_major(a, n, [0, 0]).with(|o| o.pointer_align = power_of_two_in(c)));
                problem.epilogue = epilogue;
                for (operand, address) in [(&mut problem.a, at), (&mut problem.b, w as u64), (&mut problem.d, d)] {
                    operand.pointer_align = power_of_two_in(address);
                }
            });
            let pointers =
                Pointers::new(at as _, w.cast(), d as _).with_c(c.unwrap_or(0) as _).with_bias(bias.unwrap_or(0) as _);
            // SAFETY: the tensors are contiguous, the guards above keep their storage alive, and D is freshly allocated.
            unsafe { Launcher::on(device, &stream)?.launch(&problem, pointers)? };
        }
        Ok(tensor(out, shape, device))
    }
}
