//! Products with quantised weights on a GPU.

use super::places::{with, Use::Read, Use::Write};
use super::Launcher;
use crate::candle::blocks::format_of;
use crate::candle::lowering::format_of as number_format;
use crate::candle::tensors::Rows;
use crate::launch::Pointers;
use crate::problem::{power_of_two_in, Activation, BiasAxis, Epilogue, Format, Layout, Operand, Problem};
use ::candle::quantized::{QMatMul, QTensor};
use ::candle::{CudaDevice, DType, Result, Tensor};

/// The format of weights in blocks that this crate's kernels multiply x with; candle takes the others, whose errors candle words.
pub(in crate::candle) fn format_for(x: &Tensor, weight: &QMatMul) -> Option<Format> {
    let QMatMul::QTensor(weight) = weight else { return None };
    let is_whole = weight.rank() == 2 && x.dims().last() == weight.shape().dims().last();
    let is_ours = x.device().is_cuda() && weight.device().same_device(x.device());
    let is_float = matches!(x.dtype(), DType::F32 | DType::BF16 | DType::F16);
    format_of(weight.dtype()).filter(|_| is_whole && is_ours && is_float)
}

/// The operands of `activation(x @ weight^T + bias) + c`, or `* c` with `gates_c`: checked, in the type of x.
pub(in crate::candle) struct Operands<'a> {
    pub x: Rows<'a>,
    pub weight: &'a QTensor,
    pub bias: Option<&'a Tensor>,
    pub c: Option<Rows<'a>>,
    pub gates_c: bool,
    pub out: Rows<'a>,
}

/// The product with weights of this format. Allocates nothing.
pub(in crate::candle) fn product(device: &CudaDevice, of: &Operands, b: Format, activation: Activation) -> Result<()> {
    let (a, weight) = (number_format(of.x.tensor.dtype())?, of.weight);
    let (n, k) = weight.shape().dims2()?;
    let m = of.x.rows;
    let problem = Problem::dense(m, n, k, 1, Layout::NT, a).with(|problem| {
        let at = |rows: Rows| Operand::row_major(a, rows.stride, [0, 0]);
        (problem.a, problem.b.format, problem.d) = (at(of.x), b, at(of.out));
        let mut epilogue = Epilogue::new(1.0, if of.c.is_some() { 1.0 } else { 0.0 });
        (epilogue.bias, epilogue.activation) = (of.bias.map(|_| BiasAxis::N), activation);
        (epilogue.c, epilogue.gates_c) = (of.c.map(at), of.gates_c);
        problem.epilogue = epilogue;
    });
    let stream = device.cuda_stream();
    let launcher = Launcher::on(device, &stream)?;
    let (w, _guard) = weight.device_ptr_with_guard(&stream)?;
    let tensors = [Read(Some(of.x.tensor)), Read(of.bias), Read(of.c.map(|c| c.tensor)), Write(Some(of.out.tensor))];
    with(device, tensors, |[x, bias, c, d], _| {
        let problem = problem.with(|problem| {
            let operands = [(&mut problem.a, x as u64), (&mut problem.b, w as u64), (&mut problem.d, d as u64)];
            operands.into_iter().for_each(|(operand, at)| operand.pointer_align = power_of_two_in(at));
            problem.epilogue.c.iter_mut().for_each(|operand| operand.pointer_align = power_of_two_in(c as u64));
        });
        // SAFETY: the operands have been checked: the rows stay inside their storage, which `with` holds, and D is apart from what is read, or C.
        unsafe { launcher.launch(&problem, Pointers::new(x, w.cast(), d).with_c(c).with_bias(bias)) }
    })
}
