//! Products in groups of rows: candle's own kernels for experts, and a loop of cuBLAS products.

use super::address::address;
use super::operands::Operands;
use super::timing::Timer;
use crate::Result;
use candle::cuda_backend::kernels::ffi::{moe_gemm_gguf, moe_gemm_gguf_prefill, moe_gemm_wmma};
use candle::{DType, Tensor};
use candle_tilegemm::internal::blocks::OF_EXPERTS;
use candle_tilegemm::launch::{GroupPointers, Pointers, VendorCall};
use candle_tilegemm::{Format, Layout, Problem};
use std::ffi::c_void;

/// The name of candle's kernel for experts with weights of 16 bits in records.
pub const CANDLES: &str = "moe_gemm_wmma";
/// candle_transformers passes `is_prefill` for a prompt; here a product of more tokens than these counts as one of a prompt.
const MOST_DECODED: usize = 8;

/// A of a copy as rows of K numbers.
pub fn rows_of(a: &Tensor, k: usize) -> Result<Tensor> {
    Ok(a.reshape((a.elem_count() / k, k))?)
}

/// The product of an expert with this many rows.
pub fn of_expert(problem: &Problem, rows: usize) -> Problem {
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
        if problem.b.format.is_gguf_block() || problem.b.format.is_narrow() {
            return Err("cuBLAS has no product with quantised or narrow weights".into());
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
