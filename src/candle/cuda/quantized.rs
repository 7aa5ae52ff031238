//! Products with quantised weights on a GPU: in blocks of GGUF files, and narrow ones with factors.

use super::into::placed;
use super::places::{with, Use, Use::Read, Use::Write};
use super::Launcher;
use crate::candle::lowering::format_of as number_format;
use crate::candle::qweights::QWeights;
use crate::candle::tensors::Rows;
use crate::dispatch::MOST_BESIDE;
use crate::launch::{launch_beside, Pointers};
use crate::problem::{Activation, BiasAxis, Epilogue, Format, Layout, Operand, Problem, Scale};
use ::candle::cuda_backend::cudarc::driver::{CudaStream, SyncOnDrop};
use ::candle::{bail, CudaDevice, DType, Result, Tensor};
use std::ffi::c_void;

/// The format of weights in blocks that this crate's kernels multiply x with; candle takes the others, whose errors candle words.
pub(in crate::candle) fn format_for(x: &Tensor, weight: &QWeights) -> Option<Format> {
    let is_whole = weight.shape().rank() == 2 && x.dims().last() == weight.shape().dims().last();
    let is_ours = x.device().is_cuda() && weight.device().same_device(x.device());
    let is_float = matches!(x.dtype(), DType::F32 | DType::BF16 | DType::F16);
    weight.format().filter(|_| is_whole && is_ours && is_float)
}

/// Weights, (n, k), on the device.
#[derive(Clone, Copy)]
pub(in crate::candle) enum Weights<'a> {
    Blocks(&'a QWeights, Format),
    Narrow(Narrow<'a>),
}

/// Narrow weights, (n, k): `(code - zero) * factor * alpha`.
#[derive(Clone, Copy)]
pub(in crate::candle) struct Narrow<'a> {
    pub sizes: [usize; 2],
    pub format: Format,
    pub scale: Scale,
    pub alpha: f32,
    pub codes: &'a Tensor,
    pub factors: &'a Tensor,
    pub zeros: Option<&'a Tensor>,
}

impl Weights<'_> {
    fn sizes(&self) -> Result<(usize, usize)> {
        match self {
            Self::Blocks(weight, _) => weight.shape().dims2(),
            Self::Narrow(weight) => Ok(weight.sizes.into()),
        }
    }

    /// The product of dense operands with these weights in place of B.
    pub(super) fn of(&self, problem: Problem) -> Problem {
        match self {
            Self::Blocks(_, format) => problem.with(|problem| problem.b.format = *format),
            Self::Narrow(weight) => problem.with_weights(weight.format, None).with(|problem| {
                problem.b.scale = Some(weight.scale);
                problem.epilogue = problem.epilogue.with_alpha(f64::from(weight.alpha));
            }),
        }
    }

    /// What a launch reads, beside blocks of candle's.
    pub(super) fn tensors(&self) -> [Use<'_>; 3] {
        match self {
            Self::Blocks(weight, _) => [Read(weight.bytes()), Read(None), Read(None)],
            Self::Narrow(weight) => [Read(Some(weight.codes)), Read(Some(weight.factors)), Read(weight.zeros)],
        }
    }

    /// The address of candle's blocks, which lie in no tensor; until the guard goes, the stream runs behind all other users of them.
    pub(super) fn blocks<'a>(&'a self, stream: &'a CudaStream) -> Result<Option<(*const u8, SyncOnDrop<'a>)>> {
        match self {
            Self::Blocks(weight, _) => {
                weight.as_qtensor().map(|weight| weight.device_ptr_with_guard(stream)).transpose()
            }
            Self::Narrow(_) => Ok(None),
        }
    }
}

/// Codes of x, whose factors are those of `scale`.
#[derive(Clone, Copy)]
pub(in crate::candle) struct NarrowX<'a> {
    pub format: Format,
    pub scale: Scale,
    pub factors: &'a Tensor,
}

/// The operands of `activation(x @ weight^T + bias) + c`, or `* c` with `gates_c`: checked, in the type of x.
pub(in crate::candle) struct Operands<'a> {
    pub x: Rows<'a>,
    /// What x is, where it is not in the type of the result.
    pub narrow_x: Option<NarrowX<'a>>,
    pub weight: Weights<'a>,
    pub bias: Option<&'a Tensor>,
    pub c: Option<Rows<'a>>,
    pub gates_c: bool,
    /// Whether the result is c itself.
    pub in_place: bool,
    pub out: Rows<'a>,
}

/// A product with quantised weights.
pub(in crate::candle) struct Product<'a> {
    pub of: Operands<'a>,
    pub activation: Activation,
}

/// The tensors of a product: x, its factors, bias, C and D, and of narrow weights codes, factors and zeros. Blocks that candle does not have are codes.
const TENSORS: usize = 8;

impl Product<'_> {
    fn problem(&self) -> Result<Problem> {
        let of = &self.of;
        let d = number_format(of.out.tensor.dtype())?;
        if of.bias.is_some_and(|bias| !bias.is_contiguous()) {
            bail!("a product with quantised weights: the bias is not contiguous; call `.contiguous()?` on it");
        }
        let (n, k) = of.weight.sizes()?;
        let problem = of.weight.of(Problem::dense(of.x.rows, n, k, 1, Layout::NT, d));
        Ok(problem.with(|problem| {
            let at = |rows: Rows| Operand::row_major(d, rows.stride, [0, 0]);
            (problem.a, problem.d) = (at(of.x), at(of.out));
            if let Some(x) = of.narrow_x {
                (problem.a.format, problem.a.scale) = (x.format, Some(x.scale));
            }
            let mut epilogue = Epilogue::new(problem.epilogue.alpha(), if of.c.is_some() { 1.0 } else { 0.0 });
            (epilogue.bias, epilogue.activation) = (of.bias.map(|_| BiasAxis::N), self.activation);
            (epilogue.c, epilogue.gates_c, epilogue.in_place) = (of.c.map(at), of.gates_c, of.in_place);
            problem.epilogue = epilogue;
        }))
    }

    fn tensors(&self) -> [Use<'_>; TENSORS] {
        let of = &self.of;
        let [codes, factors, zeros] = of.weight.tensors();
        let [x, d] = [Read(Some(of.x.tensor)), Write(Some(of.out.tensor))];
        let of_x = Read(of.narrow_x.map(|x| x.factors));
        [x, of_x, Read(of.bias), Read(of.c.map(|c| c.tensor)), d, codes, factors, zeros]
    }
}

/// The problem and the pointers at these addresses of the tensors, and of blocks.
fn at(problem: Problem, addresses: &[*mut c_void], blocks: Option<*const u8>) -> (Problem, Pointers) {
    let &[x, of_x, bias, c, d, codes, factors, zeros] = addresses else {
        unreachable!("a product has {TENSORS} tensors")
    };
    let w = blocks.map_or(codes, |blocks| blocks.cast_mut().cast());
    let pointers = Pointers::new(x, w, d).with_c(c).with_bias(bias);
    let pointers = pointers.with_scale_of_a(of_x).with_scale_of_b(factors, zeros);
    (placed(problem, [x, w, c, d]), pointers)
}

/// One product. Allocates nothing.
pub(in crate::candle) fn product(device: &CudaDevice, product: &Product) -> Result<()> {
    let problem = product.problem()?;
    let stream = device.cuda_stream();
    let launcher = Launcher::on(device, &stream)?;
    let blocks = product.of.weight.blocks(&stream)?;
    with(device, product.tensors(), |addresses, _| {
        let (problem, pointers) = at(problem, &addresses, blocks.as_ref().map(|(at, _)| *at));
        // SAFETY: the operands have been checked: the rows stay inside their storage, which `with` holds, and D is apart from what is read, or C.
        unsafe {
            match product.of.weight {
                Weights::Blocks(..) => launcher.launch(&problem, pointers),
                // Kernels of f32 leave gates of C to a kernel of their own.
                Weights::Narrow(_) => launcher.launch_with_epilogue(&problem, pointers, product.of.in_place),
            }
        }
    })
}

/// Products of one x into columns of one result, side by side where kernels may ([`launch_beside`]). Allocates nothing on the device.
pub(in crate::candle) fn products(device: &CudaDevice, products: &[Product]) -> Result<()> {
    if products.len() < 2 || products.len() > MOST_BESIDE {
        return products.iter().try_for_each(|one| product(device, one));
    }
    let stream = device.cuda_stream();
    let launcher = Launcher::on(device, &stream)?;
    let weights: Vec<_> = products.iter().map(|one| one.of.weight.blocks(&stream)).collect::<Result<_>>()?;
    let problems: Vec<_> = products.iter().map(Product::problem).collect::<Result<_>>()?;
    let mut tensors = [Read(None); MOST_BESIDE * TENSORS];
    for (tensors, one) in tensors.chunks_exact_mut(TENSORS).zip(products) {
        tensors.copy_from_slice(&one.tensors());
    }
    with(device, tensors, |addresses, _| -> Result<()> {
        let (mut plans, mut pointers) = (Vec::with_capacity(products.len()), Vec::with_capacity(products.len()));
        for ((problem, blocks), addresses) in problems.iter().zip(&weights).zip(addresses.chunks_exact(TENSORS)) {
            let (problem, of_problem) = at(*problem, addresses, blocks.as_ref().map(|(at, _)| *at));
            plans.push(launcher.dispatcher.plan(&problem, launcher.policy)?);
            pointers.push(of_problem);
        }
        let all: Vec<_> = plans.iter().map(|plan| &**plan).zip(pointers).collect();
        // SAFETY: as for one product; the products write columns of their own, and read c only there.
        Ok(unsafe { launch_beside(&all, launcher.queue) }?)
    })
}
