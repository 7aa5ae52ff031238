//! Products with quantised weights on a GPU.

use super::into::placed;
use super::places::{with, Use, Use::Read, Use::Write};
use super::Launcher;
use crate::candle::blocks::format_of;
use crate::candle::lowering::format_of as number_format;
use crate::candle::tensors::Rows;
use crate::dispatch::MOST_BESIDE;
use crate::launch::{launch_beside, Pointers};
use crate::problem::{Activation, BiasAxis, Epilogue, Format, Layout, Operand, Problem};
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
    /// Whether the result is c itself.
    pub in_place: bool,
    pub out: Rows<'a>,
}

/// A product with weights in blocks.
pub(in crate::candle) struct Product<'a> {
    pub of: Operands<'a>,
    pub b: Format,
    pub activation: Activation,
}

impl Product<'_> {
    fn problem(&self) -> Result<Problem> {
        let of = &self.of;
        let a = number_format(of.x.tensor.dtype())?;
        let (n, k) = of.weight.shape().dims2()?;
        Ok(Problem::dense(of.x.rows, n, k, 1, Layout::NT, a).with(|problem| {
            let at = |rows: Rows| Operand::row_major(a, rows.stride, [0, 0]);
            (problem.a, problem.b.format, problem.d) = (at(of.x), self.b, at(of.out));
            let mut epilogue = Epilogue::new(1.0, if of.c.is_some() { 1.0 } else { 0.0 });
            (epilogue.bias, epilogue.activation) = (of.bias.map(|_| BiasAxis::N), self.activation);
            (epilogue.c, epilogue.gates_c, epilogue.in_place) = (of.c.map(at), of.gates_c, of.in_place);
            problem.epilogue = epilogue;
        }))
    }

    fn tensors(&self) -> [Use<'_>; 4] {
        let of = &self.of;
        [Read(Some(of.x.tensor)), Read(of.bias), Read(of.c.map(|c| c.tensor)), Write(Some(of.out.tensor))]
    }
}

/// One product. Allocates nothing.
pub(in crate::candle) fn product(device: &CudaDevice, product: &Product) -> Result<()> {
    let problem = product.problem()?;
    let stream = device.cuda_stream();
    let launcher = Launcher::on(device, &stream)?;
    let (w, _guard) = product.of.weight.device_ptr_with_guard(&stream)?;
    with(device, product.tensors(), |[x, bias, c, d], _| {
        let problem = placed(problem, [x, w.cast_mut().cast(), c, d]);
        // SAFETY: the operands have been checked: the rows stay inside their storage, which `with` holds, and D is apart from what is read, or C.
        unsafe { launcher.launch(&problem, Pointers::new(x, w.cast(), d).with_c(c).with_bias(bias)) }
    })
}

/// Products of one x into columns of one result, side by side where kernels may ([`launch_beside`]). Allocates nothing on the device.
pub(in crate::candle) fn products(device: &CudaDevice, products: &[Product]) -> Result<()> {
    const OPERANDS: usize = 4;
    if products.len() < 2 || products.len() > MOST_BESIDE {
        return products.iter().try_for_each(|one| product(device, one));
    }
    let stream = device.cuda_stream();
    let launcher = Launcher::on(device, &stream)?;
    let weights: Vec<_> =
        products.iter().map(|one| one.of.weight.device_ptr_with_guard(&stream)).collect::<Result<_>>()?;
    let problems: Vec<_> = products.iter().map(Product::problem).collect::<Result<_>>()?;
    let mut tensors = [Read(None); MOST_BESIDE * OPERANDS];
    for (tensors, one) in tensors.chunks_exact_mut(OPERANDS).zip(products) {
        tensors.copy_from_slice(&one.tensors());
    }
    with(device, tensors, |addresses, _| -> Result<()> {
        let (mut plans, mut pointers) = (Vec::with_capacity(products.len()), Vec::with_capacity(products.len()));
        for ((problem, (w, _)), at) in problems.iter().zip(&weights).zip(addresses.chunks_exact(OPERANDS)) {
            let [x, bias, c, d] = [at[0], at[1], at[2], at[3]];
            let problem = placed(*problem, [x, w.cast_mut().cast(), c, d]);
            plans.push(launcher.dispatcher.plan(&problem, launcher.policy)?);
            pointers.push(Pointers::new(x, w.cast(), d).with_c(c).with_bias(bias));
        }
        let all: Vec<_> = plans.iter().map(|plan| &**plan).zip(pointers).collect();
        // SAFETY: as for one product; the products write columns of their own, and read c only there.
        Ok(unsafe { launch_beside(&all, launcher.queue) }?)
    })
}
