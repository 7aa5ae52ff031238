//! Products in groups of rows: the lists on the device, candle's own kernels for experts, a loop of cuBLAS products, and the f64 product.

use super::check::product_in_f64;
use super::operands::{address, Operands};
use super::timing::Timer;
use crate::lists::Routing;
use crate::Result;
use candle::cuda_backend::kernels::ffi::{moe_gemm_gguf, moe_gemm_gguf_prefill, moe_gemm_wmma};
use candle::{DType, Device, Tensor};
use candle_tilegemm::dispatch::Dispatcher;
use candle_tilegemm::internal::blocks::OF_EXPERTS;
use candle_tilegemm::launch::{GroupPointers, Pointers, VendorCall};
use candle_tilegemm::{Format, Layout, Problem};
use std::ffi::c_void;
use std::ptr::null;

/// The name of candle's kernel for experts with weights of 16 bits in records.
pub const CANDLES: &str = "moe_gemm_wmma";
/// candle_transformers passes `is_prefill` for a prompt; here a product of more tokens than these counts as one of a prompt.
const MOST_DECODED: usize = 8;

/// The lists of a routing on the device. All copies of the operands share the lists: in a model the router has just written them.
pub struct Lists {
    pub routing: Routing,
    pairs: Tensor,
    experts: Tensor,
    factors: Option<Tensor>,
}

impl Lists {
    pub fn new(routing: &Routing, device: &Device) -> Result<Self> {
        let list = |values: &[u32]| Tensor::from_slice(values, values.len(), device);
        let factors = routing.factors.as_ref().map(|values| Tensor::from_slice(values, values.len(), device));
        Ok(Self {
            routing: routing.clone(),
            pairs: list(&routing.pairs)?,
            experts: list(&routing.experts)?,
            factors: factors.transpose()?,
        })
    }

    pub fn pointers(&self) -> Result<GroupPointers> {
        let factors = match &self.factors {
            Some(factors) => address(factors)? as *const c_void,
            None => null(),
        };
        Ok(GroupPointers::new(address(&self.experts)? as _).with_lists(address(&self.pairs)? as _, factors))
    }

    /// The row of A of each row of the product.
    fn rows_of_a(&self) -> Result<Tensor> {
        let rows = self.routing.rows_of_a();
        Ok(Tensor::from_slice(&rows, rows.len(), self.pairs.device())?)
    }

    /// The rows of a product in the order of their pairs, times the factors, in f64, from a flat tensor of rows in the order of the list.
    pub fn in_order_of_pairs(&self, d: &Tensor) -> Result<Tensor> {
        let rows = self.routing.rows_of_pairs();
        let places = Tensor::from_slice(&rows, rows.len(), self.pairs.device())?;
        let d = d.to_dtype(DType::F64)?.reshape((rows.len(), d.elem_count() / rows.len()))?;
        let d = d.index_select(&places, 0)?;
        let d = match &self.factors {
            Some(factors) => d.broadcast_mul(&factors.to_dtype(DType::F64)?.unsqueeze(1)?)?,
            None => d,
        };
        Ok(d.flatten_all()?)
    }
}

/// A of a copy as rows of K numbers.
fn rows_of(a: &Tensor, k: usize) -> Result<Tensor> {
    Ok(a.reshape((a.elem_count() / k, k))?)
}

/// The product of an expert with this many rows.
fn of_expert(problem: &Problem, rows: usize) -> Problem {
    let dense = Problem::dense(rows, problem.n, problem.k, 1, Layout::NT, problem.a.format);
    dense.with(|p| (p.b.format, p.d.format) = (problem.b.format, problem.d.format))
}

/// Whether candle's kernels for experts and quantised weights are in this build.
///
/// # Errors
/// The build has our kernels in their place.
pub fn has_candles_kernels() -> Result {
    match cfg!(feature = "interpose-kernels") {
        true => {
            Err("this build has our kernels in place of candle's: leave out the feature `interpose-kernels`".into())
        }
        false => Ok(()),
    }
}

/// candle's functions for experts.
enum Function {
    /// Weights of 16 bits: the number of the type.
    Dense(i32),
    /// The blocks of a GGUF file: the number of the format.
    Blocks(i32),
    /// The same in the form for prompts: A of each copy in bf16, which candle writes before, and which is not timed.
    BlocksOfPrompt(i32, Vec<Tensor>),
}

/// candle's own kernels for experts.
pub struct CandlesKernel {
    function: Function,
    /// Scratch memory for the rows and the first row of each expert.
    counts: Tensor,
    firsts: Tensor,
    /// Experts, experts of a token, M, N and K.
    sizes: [i32; 5],
    /// The form for prompts, which waits for the GPU within the call, so that no graph can hold it.
    pub is_prefill: bool,
}

impl CandlesKernel {
    pub fn new(problem: &Problem, operands: &Operands) -> Result<Self> {
        has_candles_kernels()?;
        let (lists, groups) = (operands.lists()?, problem.groups.ok_or("the product has no groups")?);
        let Problem { m, n, k, .. } = *problem;
        let tokens = lists.routing.tokens;
        let is_prefill = tokens > MOST_DECODED;
        let format = OF_EXPERTS.iter().position(|format| *format == problem.b.format);
        let in_bf16 = |copy| Ok(operands.inputs(copy)[0].to_dtype(DType::BF16)?);
        let function = match (problem.a.format, problem.b.format, format) {
            (Format::F16, Format::F16, _) => Function::Dense(0),
            (Format::BF16, Format::BF16, _) => Function::Dense(1),
            (Format::F32, _, Some(number)) if is_prefill => {
                Function::BlocksOfPrompt(number as i32, (0..operands.copies()).map(in_bf16).collect::<Result<_>>()?)
            }
            (Format::F32, _, Some(number)) => Function::Blocks(number as i32),
            (a, b, _) => return Err(format!("candle's kernels for experts have no {a} times {b}").into()),
        };
        let device = lists.pairs.device();
        let size = |size: usize| i32::try_from(size).map_err(|_| format!("{size} does not fit candle's kernel"));
        Ok(Self {
            function,
            counts: Tensor::zeros(groups.count, DType::U32, device)?,
            firsts: Tensor::zeros(groups.count + 1, DType::U32, device)?,
            sizes: [size(groups.count)?, size(m / tokens)?, size(m)?, size(n)?, size(k)?],
            is_prefill,
        })
    }

    /// The kernel's name in records.
    pub fn name(&self) -> &'static str {
        match self.function {
            Function::Dense(_) => CANDLES,
            Function::Blocks(_) => "moe_gemm_gguf",
            Function::BlocksOfPrompt(..) => "moe_gemm_gguf_prefill",
        }
    }

    /// # Safety
    /// As for [`candle_tilegemm::launch::launch`], for a product of the sizes of `new`; `pointers` are those of this copy of the operands; `stream` is a stream
    /// of the current device.
    pub unsafe fn launch(&self, copy: usize, pointers: Pointers, stream: *mut c_void) -> Result {
        let [experts, top_k, m, n, k] = self.sizes;
        let GroupPointers { bounds, pairs, scales, .. } = pointers.groups;
        let Pointers { a, b, d, .. } = pointers;
        let [pairs, of_pairs] = [pairs, bounds].map(|list| list.cast::<i32>());
        let (factors, stream) = (scales.cast::<f32>(), stream as i64);
        // SAFETY: the caller's promises; the scratch memory has a number for each expert, and one more.
        unsafe {
            match &self.function {
                Function::Dense(dtype) => {
                    let (counts, firsts) = (address(&self.counts)? as *mut i32, address(&self.firsts)? as *mut i32);
                    let prefill = self.is_prefill;
                    moe_gemm_wmma(
                        a, b, pairs, of_pairs, factors, d, counts, firsts, experts, top_k, m, n, k, *dtype, prefill,
                        stream,
                    );
                }
                Function::Blocks(format) => {
                    moe_gemm_gguf(a.cast(), b, pairs, of_pairs, factors, d, experts, top_k, m, n, k, *format, stream);
                }
                Function::BlocksOfPrompt(format, rows) => {
                    let (a, bf16) = (address(&rows[copy % rows.len()])? as *const c_void, 1);
                    let b = b.cast();
                    moe_gemm_gguf_prefill(
                        a, b, pairs, of_pairs, factors, d, experts, top_k, m, n, k, bf16, *format, stream,
                    );
                }
            }
        }
        Ok(())
    }
}

/// A product of cuBLAS for each expert that has rows, on rows of A that lie in the order of the product. The host knows the routing. The
/// rows of D stay in this order and get no factors, so that the loop does less than the other arms.
pub struct Loop {
    /// A of each copy, in the order of the rows of the product.
    rows: Vec<Tensor>,
    /// The call of each expert that has rows, the expert, and the first of the rows.
    calls: Vec<(VendorCall, usize, usize)>,
    problem: Problem,
}

impl Loop {
    pub fn new(problem: &Problem, operands: &Operands) -> Result<Self> {
        if problem.b.format.is_gguf_block() {
            return Err("cuBLAS has no product with quantised weights".into());
        }
        let lists = operands.lists()?;
        let places = lists.rows_of_a()?;
        let gather = |copy| -> Result<Tensor> {
            let [a, ..] = operands.inputs(copy);
            Ok(rows_of(a, problem.k)?.index_select(&places, 0)?)
        };
        let call = |(expert, rows): (usize, std::ops::Range<usize>)| -> Result<_> {
            Ok((VendorCall::of(&of_expert(problem, rows.len()))?, expert, rows.start))
        };
        Ok(Self {
            rows: (0..operands.copies()).map(gather).collect::<Result<_>>()?,
            calls: lists.routing.of_experts().map(call).collect::<Result<_>>()?,
            problem: *problem,
        })
    }

    /// # Safety
    /// `pointers` are those of this copy of the operands of `new`, which outlive the launch.
    pub unsafe fn launch(&self, copy: usize, pointers: Pointers, timer: &Timer) -> Result {
        let Problem { n, k, a, b, d, .. } = self.problem;
        let rows = address(&self.rows[copy % self.rows.len()])? as *const c_void;
        let at =
            |pointer: *const c_void, format: Format, elements: usize| pointer.wrapping_byte_add(format.bytes(elements));
        for (call, expert, first) in &self.calls {
            let d = at(pointers.d, d.format, first * n).cast_mut();
            let of_expert = Pointers::new(at(rows, a.format, first * k), at(pointers.b, b.format, expert * n * k), d);
            // SAFETY: the expert's matrix and rows lie inside of the operands.
            unsafe { call.run(of_expert, timer.queue().cublas)? };
        }
        Ok(())
    }
}

/// D of the first copy of the operands, computed in f64, expert by expert: the matrices of all experts in f64 would not fit.
pub fn grouped_in_f64(
    timer: &Timer,
    dispatcher: &Dispatcher,
    problem: &Problem,
    operands: &Operands,
) -> Result<Tensor> {
    // Numbers of a matrix B, or blocks.
    let (lists, matrix) = (operands.lists()?, problem.n * problem.k / problem.b.format.block().elements);
    let [a, b, ..] = operands.first();
    let (a, places) = (rows_of(a, problem.k)?, lists.rows_of_a()?);
    let product = |(expert, rows): (usize, std::ops::Range<usize>)| -> Result<Tensor> {
        let dense = of_expert(problem, rows.len());
        let x = a.index_select(&places.narrow(0, rows.start, rows.len())?, 0)?;
        let w = b.narrow(0, expert * matrix, matrix)?;
        product_in_f64(timer, dispatcher, &dense, &Operands::of(&dense, &x, &w)?)
    };
    let products = lists.routing.of_experts().map(product).collect::<Result<Vec<_>>>()?;
    lists.in_order_of_pairs(&Tensor::cat(&products, 0)?)
}
