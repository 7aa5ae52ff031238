//! The check of an arm: its result against an f64 product of the same operands.
//!
//! The f64 result comes from our reference kernel where that kernel is quick, else from cuBLAS in f64, which shares no
//! kernel with the arms. So every arm is compared with the f64 result of another kernel.

use super::address::address;
use super::gguf;
use super::grouped::{of_expert, rows_of};
use super::operands::Operands;
use super::timing::Timer;
use crate::Result;
use candle::{DType as CandleDType, Device, Tensor};
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::launch::{self, Pointers};
use candle_tilegemm::problem::MAX_ALIGN;
use candle_tilegemm::{F32Mode, Format, Problem};

/// Products up to this many operations are checked with the reference kernel.
const SMALL_FLOP: f64 = 1e10;
/// The record's value for an error of NaN or infinity: JSON has no NaN.
pub const NOT_A_NUMBER: f64 = 1e300;

/// The reference result of one row.
pub struct Reference {
    d: Tensor,
    rms: f64,
    /// The largest error that rounding explains.
    pub tolerance: f64,
}

impl Reference {
    pub fn new(timer: &Timer, dispatcher: &Dispatcher, problem: &Problem, operands: &Operands) -> Result<Self> {
        let d = product_in_f64(timer, dispatcher, problem, operands)?;
        let rms = d.sqr()?.mean_all()?.to_scalar::<f64>()?.sqrt();
        if !(rms.is_finite() && rms > 0.0) {
            return Err(
                format!("the reference of {problem} is {rms} in the mean: there is nothing to compare with").into()
            );
        }
        Ok(Self { d, rms, tolerance: tolerance(problem) })
    }

    /// Largest difference between `d` and the reference, over the reference's root mean square.
    pub fn error_of(&self, d: &Tensor) -> Result<f64> {
        let difference = (d.to_dtype(CandleDType::F64)? - &self.d)?.abs()?;
        // A NaN shows in the sum; a maximum may pass over NaN.
        let sum = difference.sum_all()?.to_scalar::<f64>()?;
        if !sum.is_finite() {
            return Ok(NOT_A_NUMBER);
        }
        Ok(difference.max_all()?.to_scalar::<f64>()? / self.rms)
    }
}

/// D of the first copy of the operands, computed in f64.
pub fn product_in_f64(
    timer: &Timer,
    dispatcher: &Dispatcher,
    problem: &Problem,
    operands: &Operands,
) -> Result<Tensor> {
    if problem.groups.is_some() {
        return grouped_in_f64(timer, dispatcher, problem, operands);
    }
    let [a, b, d, c, bias] = operands.first();
    let exact = |tensor: &Tensor| tensor.to_dtype(CandleDType::F64);
    let b = if problem.b.format.is_gguf_block() { &gguf::numbers(problem, b)? } else { b };
    let [of_a, of_b] = operands.numbers()?;
    let (a, b) = (of_a.map_or_else(|| exact(a), Ok)?, of_b.map_or_else(|| exact(b), Ok)?);
    let (c, bias) = (exact(c)?, exact(bias)?);
    let d = Tensor::zeros(d.elem_count(), CandleDType::F64, &Device::Cuda(timer.device().clone()))?;
    let problem64 = problem.with(|p| {
        let operands = [&mut p.a, &mut p.b, &mut p.d].into_iter().chain(p.epilogue.c.as_mut());
        operands.for_each(|operand| {
            // The operands in f64 are new tensors, unless the problem is in f64 itself.
            operand.pointer_align = if operand.format == Format::F64 { operand.pointer_align } else { MAX_ALIGN };
            (operand.format, operand.scale) = (Format::F64, None);
        });
        p.fast_accumulation = false;
    });
    let plan = dispatcher.plan(&problem64, Policy::force(judge(dispatcher, &problem64, problem)?.name)?)?;
    let mut pointers = Pointers::new(address(&a)? as _, address(&b)? as _, address(&d)? as _);
    if problem.epilogue.reads_c() {
        pointers.c = address(&c)? as _;
    }
    if problem.epilogue.bias.is_some() {
        pointers.bias = address(&bias)? as _;
    }
    // SAFETY: the tensors have the problem's extents in f64, and live until the synchronisation.
    unsafe { launch::launch(&plan, pointers, timer.queue())? };
    timer.synchronize()?;
    Ok(d)
}

/// D of the first copy of the operands, computed in f64, expert by expert: the matrices of all experts in f64 would not fit.
fn grouped_in_f64(timer: &Timer, dispatcher: &Dispatcher, problem: &Problem, operands: &Operands) -> Result<Tensor> {
    // Numbers of a matrix B, or blocks.
    let (lists, matrix) = (operands.lists()?, problem.n * problem.k / problem.b.format.block().elements);
    let [a, b, ..] = operands.first();
    let is_narrow = problem.b.format.is_narrow();
    // Codes are f32 numbers, whose rounding is far below that of sums.
    let numbers = |tensor: Tensor| tensor.to_dtype(CandleDType::F32);
    let of_a = operands.numbers()?[0].take().map(numbers).transpose()?;
    let (a, places) = (rows_of(of_a.as_ref().unwrap_or(a), problem.k)?, lists.rows_of_a()?);
    let product = |(expert, rows): (usize, std::ops::Range<usize>)| -> Result<Tensor> {
        let dense = of_expert(problem, rows.len());
        let x = a.index_select(&places.narrow(0, rows.start, rows.len())?, 0)?;
        if is_narrow {
            let dense = dense.with(|p| (p.a.format, p.b.format) = (Format::F32, Format::F32));
            let w = numbers(operands.matrix(expert)?)?;
            return product_in_f64(timer, dispatcher, &dense, &Operands::of(&dense, &numbers(x)?, &w)?);
        }
        let w = b.narrow(0, expert * matrix, matrix)?;
        product_in_f64(timer, dispatcher, &dense, &Operands::of(&dense, &x, &w)?)
    };
    let products = lists.routing.of_experts().map(product).collect::<Result<Vec<_>>>()?;
    lists.in_order_of_pairs(&Tensor::cat(&products, 0)?)
}

/// The kernel that computes the reference.
fn judge(dispatcher: &Dispatcher, problem64: &Problem, asked: &Problem) -> Result<&'static KernelDesc> {
    let vendor = asked.flops() > SMALL_FLOP && asked.epilogue.is_linear() && asked.a.format != Format::F64;
    let canonical = problem64.canonical().problem;
    let able = |role: Role| {
        let runs =
            |k: &&KernelDesc| k.role == role && k.is_built() && k.supports(&canonical, dispatcher.device()).is_ok();
        KERNELS.iter().find(runs)
    };
    let vendor = if vendor { able(Role::Vendor) } else { None };
    Ok(vendor.or_else(|| able(Role::LastResort)).ok_or("there is no f64 reference kernel in this build")?)
}

/// The tolerance covers the rounding of the result, which reaches 6 times the mean, and the rounding of sums of K terms
/// in f32, whose errors grow like sqrt(K). A kernel that skips one K tile exceeds the tolerance for every K of the
/// suite. Products with quantised weights round activations and weights to bf16 on their way, which changes each product of two numbers as the rounding to bf16
/// changes a result. candle's steps of activations are 1/127 of the largest of 32: half a per cent of N(0, 1) data in the mean, a twelfth of the tolerance.
pub fn tolerance(problem: &Problem) -> f64 {
    let (result, sum) = match problem.d.format {
        _ if problem.b.format.is_gguf_block() => (2f64.powi(-8), 2f64.powi(-24)),
        // Weights and f32 are rounded to 16 bits on their way; sums of fp8 keep some 13 bits.
        _ if problem.b.format.is_narrow() => {
            (2f64.powi(-8), 2f64.powi(if problem.fast_accumulation { -13 } else { -18 }))
        }
        // Truncation costs each input up to 2^-10, and the tensor cores' accumulators truncate too.
        Format::F32 if problem.f32_mode == F32Mode::Tf32 => (2f64.powi(-10), 2f64.powi(-23)),
        Format::BF16 => (2f64.powi(-8), 2f64.powi(-24)),
        Format::F16 => (2f64.powi(-11), 2f64.powi(-24)),
        Format::F32 => (2f64.powi(-24), 2f64.powi(-24)),
        _ => (2f64.powi(-53), 2f64.powi(-53)),
    };
    16.0 * result + 20.0 * sum * (problem.k as f64).sqrt()
}
