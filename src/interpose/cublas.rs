//! `cublasGemmStridedBatchedEx`: the interposed definition, and the path of a call through the dispatcher.

use super::arguments::Arguments;
use super::count::{count_forwarded, count_ours, count_refused, Forwarded};
use super::failure::{after_failure, after_panic, Next, Progress};
use super::mode::{exact_sums, is_dry_run, mode, Mode};
use super::tell::{tell, Told};
use crate::dispatch::Policy;
use crate::error::{Error, Result};
use crate::kernel::Role;
use crate::launch::cublas::api::{self, cublas};
use crate::launch::{self, Pointers, Queue};
use crate::problem::f32_mode::{compute_type, f32_mode};
use crate::problem::{power_of_two_in, Epilogue, F32Mode, Format, Operand, Problem};
use crate::trace;
use ::candle::cuda_backend::cudarc::cublas::sys as cudarc_sys;
use std::cell::Cell;
use std::ffi::{c_int, c_longlong, c_void};
use std::panic::AssertUnwindSafe;

thread_local! {
    static PROBING: Cell<bool> = const { Cell::new(false) };
}

/// Whether candle's calls arrive here. The check makes one call through candle's own binding and sees whether the call
/// reaches this definition. The check needs no GPU.
pub fn is_active() -> bool {
    use cudarc_sys::{cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cudaDataType_t};
    use std::ptr::{null, null_mut};
    PROBING.set(true);
    // SAFETY: with a null handle cuBLAS refuses before it reads any other argument, and our definition only sets the
    // flag.
    let status = unsafe {
        cudarc_sys::cublasGemmStridedBatchedEx(
            null_mut(),
            cublasOperation_t::CUBLAS_OP_N,
            cublasOperation_t::CUBLAS_OP_N,
            0,
            0,
            0,
            null(),
            null(),
            cudaDataType_t::CUDA_R_32F,
            0,
            0,
            null(),
            cudaDataType_t::CUDA_R_32F,
            0,
            0,
            null(),
            null_mut(),
            cudaDataType_t::CUDA_R_32F,
            0,
            0,
            0,
            cublasComputeType_t::CUBLAS_COMPUTE_32F,
            cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    };
    PROBING.set(false);
    status == cudarc_sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS
}

const STATUS_SUCCESS: c_int = 0;
const STATUS_NOT_INITIALIZED: c_int = 1;
const STATUS_EXECUTION_FAILED: c_int = 13;
const STATUS_NOT_SUPPORTED: c_int = 15;

/// The arguments of one call in cuBLAS's convention: column-major, C = alpha * op(A) @ op(B) + beta * C.
#[derive(Clone, Copy)]
struct Call {
    handle: *mut c_void,
    ops: [c_int; 2],
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    beta: *const c_void,
    pointers: [*const c_void; 3],
    types: [c_int; 3],
    ld: [c_int; 3],
    strides: [c_longlong; 3],
    batch: c_int,
    compute_type: c_int,
    algo: c_int,
}

/// Replaces cuBLAS's own definition.
///
/// # Safety
/// As for `cublasGemmStridedBatchedEx` (cuBLAS documentation, section 2.8.17).
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGemmStridedBatchedEx(
    handle: *mut c_void,
    transa: c_int,
    transb: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: *const c_void,
    a_type: c_int,
    lda: c_int,
    stride_a: c_longlong,
    b: *const c_void,
    b_type: c_int,
    ldb: c_int,
    stride_b: c_longlong,
    beta: *const c_void,
    c: *mut c_void,
    c_type: c_int,
    ldc: c_int,
    stride_c: c_longlong,
    batch: c_int,
    compute_type: c_int,
    algo: c_int,
) -> c_int {
    if PROBING.get() || is_dry_run() {
        return STATUS_SUCCESS;
    }
    let call = Call {
        handle,
        ops: [transa, transb],
        m,
        n,
        k,
        alpha,
        beta,
        pointers: [a, b, c],
        types: [a_type, b_type, c_type],
        ld: [lda, ldb, ldc],
        strides: [stride_a, stride_b, stride_c],
        batch,
        compute_type,
        algo,
    };
    let progress = Cell::new(Progress::Nothing);
    // A panic must not cross the C boundary.
    // SAFETY: the caller's promises are passed on.
    let status = std::panic::catch_unwind(AssertUnwindSafe(|| unsafe { take(&call, &progress) }));
    // SAFETY: as above.
    status.unwrap_or_else(|_| unsafe { go_on(&call, after_panic(progress.get(), mode()), Forwarded::Failed) })
}

/// Finishes a call that failed on our side: forwards, refuses or fails the call.
///
/// # Safety
/// As for [`cublasGemmStridedBatchedEx`].
unsafe fn go_on(call: &Call, next: Next, reason: Forwarded) -> c_int {
    let status = match next {
        // SAFETY: the arguments are the caller's, unchanged.
        Next::Forward => return unsafe { forward(call, reason) },
        Next::Refuse => STATUS_NOT_SUPPORTED,
        Next::Fail => STATUS_EXECUTION_FAILED,
    };
    count_refused();
    status
}

/// Runs the call on our kernels or forwards the call to cuBLAS.
unsafe fn take(call: &Call, progress: &Cell<Progress>) -> c_int {
    let mode = mode();
    if mode == Mode::Off {
        // SAFETY: the arguments are the caller's, unchanged.
        return unsafe { forward(call, Forwarded::Off) };
    }
    // SAFETY: alpha and beta are readable if the call is valid.
    let outcome = unsafe { call.problem() }.and_then(|problem| {
        // SAFETY: the caller's pointers satisfy cuBLAS's requirements, and our launch requires the same.
        let outcome = unsafe { run(call, &problem, mode, progress) };
        if mode == Mode::Trace && matches!(outcome, Err(Error::Unsupported { .. } | Error::Forced { .. })) {
            trace::unplanned(&problem);
        }
        outcome.map_err(|error| (reason_of(&error), Some(error)))
    });
    match outcome {
        Ok(Taken::Ours) => {
            count_ours();
            STATUS_SUCCESS
        }
        Ok(Taken::Changed) => {
            count_forwarded(Forwarded::Chosen);
            STATUS_SUCCESS
        }
        // SAFETY: the arguments are the caller's, unchanged.
        Ok(Taken::No) => unsafe { forward(call, Forwarded::Chosen) },
        Err((reason, Some(error))) => {
            let next = after_failure(progress.get(), &error, mode);
            match next {
                Next::Forward => report(call, reason, &error),
                Next::Refuse => {
                    tell(&format!(
                        "TILEGEMM=force, and a call inside the contract was not taken ({reason:?}): {error}"
                    ));
                }
                Next::Fail => tell(&format!("a product that is added to C failed; C may have part of it: {error}")),
            }
            // SAFETY: the arguments are the caller's, unchanged.
            unsafe { go_on(call, next, reason) }
        }
        Err((reason, None)) => {
            if mode == Mode::Trace {
                let Call { m, n, k, batch, .. } = *call;
                trace::outside(format!("{n}x{m}x{k} batch {batch}: forwarded to cuBLAS ({reason:?})"));
            }
            // SAFETY: the arguments are the caller's, unchanged.
            unsafe { forward(call, reason) }
        }
    }
}

/// Reports why an eligible call goes to cuBLAS. Each distinct product is one event. The first failure (of
/// a setting, the library or a launch) also goes to stderr, because a program without a subscriber sees no event.
fn report(call: &Call, reason: Forwarded, error: &Error) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    static TOLD: Told = Told::new();
    if TOLD.is_new((call.ops, [call.m, call.n, call.k, call.batch], call.types, reason)) {
        tracing::warn!(target: "tilegemm::interpose", %error, "forwarded to cuBLAS");
    }
    if reason == Forwarded::Failed {
        ONCE.call_once(|| tell(&format!("products go to cuBLAS: {error}")));
    }
}

fn reason_of(error: &Error) -> Forwarded {
    match error {
        Error::Unsupported { .. } | Error::Forced { .. } => Forwarded::Unsupported,
        _ => Forwarded::Failed,
    }
}

/// The outcome of a call inside the contract.
enum Taken {
    /// One of our kernels runs the call.
    Ours,
    /// cuBLAS runs the call with changed arguments: a batch over one matrix becomes a single product (a batch of 1024
    /// single rows takes 200 times as long), the compute type becomes TF32 because the process asks for TF32, or sums
    /// are in f32 ([`exact_sums`]).
    Changed,
    /// The dispatcher chose cuBLAS, and the call is forwarded unchanged.
    No,
}

unsafe fn run(call: &Call, problem: &Problem, mode: Mode, progress: &Cell<Progress>) -> Result<Taken> {
    let policy = match launch::policy()? {
        policy if policy.forced().is_some() => policy,
        // cuBLAS rounds a 16-bit product before it adds beta * C.
        policy if mode == Mode::Force || (problem.epilogue.reads_c() && wants_exact(problem)?) => {
            Policy::own().with_workspace(policy.workspace).with_batch_invariance(policy.batch_invariant)
        }
        policy => policy,
    };
    let dispatcher = launch::dispatcher(launch::current_device()?)?;
    dispatcher.with_plan(problem, policy, |plan| {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the caller's handle, and a valid place to write to.
        if unsafe { (cublas()?.get_stream)(call.handle, &mut stream) } != STATUS_SUCCESS {
            return Err(Error::Vendor("cublasGetStream failed on the caller's handle".into()));
        }
        // SAFETY: the stream of the caller's handle.
        let ready = unsafe { launch::ready(plan, stream)? };
        let vendor = ready.kernel.role == Role::Vendor;
        if vendor && call.is_as_planned(&ready.canonical.problem) && !wants_exact(problem)? {
            launch::begin(plan, ready);
            return Ok(Taken::No);
        }
        // Row-major D^T = B^T @ A^T: our A is cuBLAS's B.
        let [a, b, c] = call.pointers;
        let pointers = Pointers { c, ..Pointers::new(b, a, c.cast_mut()) };
        progress.set(Progress::launching(problem));
        // SAFETY: the caller's pointers and the call's sizes agree; the stream is the stream of the caller's handle.
        unsafe { launch::launch(plan, pointers, Queue::new(stream, call.handle))? };
        Ok(if vendor { Taken::Changed } else { Taken::Ours })
    })?
}

/// Whether the call needs sums in f32, so that an unchanged call to cuBLAS is not allowed.
fn wants_exact(problem: &Problem) -> Result<bool> {
    Ok(!problem.is_f32() && exact_sums()?)
}

unsafe fn forward(call: &Call, reason: Forwarded) -> c_int {
    count_forwarded(reason);
    let Ok(library) = cublas() else { return STATUS_NOT_INITIALIZED };
    let Call { handle, ops, m, n, k, alpha, beta, pointers, types, ld, strides, batch, compute_type, algo } = *call;
    // SAFETY: the arguments are the caller's, unchanged.
    unsafe {
        (library.gemm_strided_batched_ex)(
            handle,
            ops[0],
            ops[1],
            m,
            n,
            k,
            alpha,
            pointers[0],
            types[0],
            ld[0],
            strides[0],
            pointers[1],
            types[1],
            ld[1],
            strides[1],
            beta,
            pointers[2].cast_mut(),
            types[2],
            ld[2],
            strides[2],
            batch,
            compute_type,
            algo,
        )
    }
}

impl Call {
    /// The product that the call asks for, in row-major terms. This function is the contract of the interposer.
    ///
    /// # Safety
    /// alpha and beta are readable where the handle is in host pointer mode.
    unsafe fn problem(&self) -> std::result::Result<Problem, (Forwarded, Option<Error>)> {
        let not_ours = |reason| Err((reason, None));
        let mut pointer_mode = 0;
        let library = cublas().map_err(|error| (Forwarded::Failed, Some(error)))?;
        // SAFETY: the caller's handle, and a valid place to write to.
        let status = unsafe { (library.get_pointer_mode)(self.handle, &mut pointer_mode) };
        if status != STATUS_SUCCESS || pointer_mode != 0 {
            return not_ours(Forwarded::PointerMode);
        }
        let Some([operands, out]) = self.formats() else { return not_ours(Forwarded::Types) };
        let Some(asked) = F32Mode::of_compute_type(self.compute_type) else { return not_ours(Forwarded::ComputeType) };
        let f32_mode = match operands {
            Format::F32 => asked.map_or_else(f32_mode, Ok).map_err(|error| (Forwarded::Failed, Some(error)))?,
            _ => F32Mode::default(),
        };
        let Call { ops, m, n, k, batch, ld, .. } = *self;
        let arguments = Arguments { ops, sizes: [m, n, k], batch, ld };
        if !arguments.are_valid() || self.alpha.is_null() || self.beta.is_null() {
            return not_ours(Forwarded::Arguments);
        }
        // SAFETY: host pointer mode, and f32 scalars, as the compute type says.
        let [alpha, beta] = [self.alpha, self.beta].map(|scalar| unsafe { *scalar.cast::<f32>() });
        let operand = |index: usize, format: Format, rows_contiguous: bool| {
            let ld = i64::from(self.ld[index]);
            let strides = if rows_contiguous { [ld, 1] } else { [1, ld] };
            let pointer_align = power_of_two_in(self.pointers[index] as u64);
            Operand { pointer_align, ..Operand::new(format, strides, [0, self.strides[index]]) }
        };
        let d = operand(2, out, true);
        let mut epilogue = Epilogue::new(f64::from(alpha), f64::from(beta));
        epilogue.c = epilogue.reads_c().then_some(d);
        epilogue.in_place = epilogue.reads_c();
        let sizes = [self.n, self.m, self.k].map(|size| size as usize);
        let (a, b) = (operand(1, operands, ops[1] == api::OP_N), operand(0, operands, ops[0] == api::OP_N));
        Ok(Problem { epilogue, f32_mode, ..Problem::new(sizes, [1, self.batch as usize], a, b, d) })
    }

    /// The formats of the operands and of the result.
    fn formats(&self) -> Option<[Format; 2]> {
        match self.types {
            [api::CUDA_R_16F, api::CUDA_R_16F, api::CUDA_R_16F] => Some([Format::F16; 2]),
            [api::CUDA_R_16BF, api::CUDA_R_16BF, api::CUDA_R_16BF] => Some([Format::BF16; 2]),
            [api::CUDA_R_32F, api::CUDA_R_32F, api::CUDA_R_32F] => Some([Format::F32; 2]),
            [api::CUDA_R_16F, api::CUDA_R_16F, api::CUDA_R_32F] => Some([Format::F16, Format::F32]),
            [api::CUDA_R_16BF, api::CUDA_R_16BF, api::CUDA_R_32F] => Some([Format::BF16, Format::F32]),
            _ => None,
        }
    }

    /// Whether cuBLAS, given the unchanged call, computes the planned product.
    fn is_as_planned(&self, canonical: &Problem) -> bool {
        let same_batch = canonical.batch_count() == self.batch as usize;
        same_batch && (canonical.f32_mode != F32Mode::Tf32 || self.compute_type == compute_type::F32_FAST_TF32)
    }
}
