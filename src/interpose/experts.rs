//! `moe_gemm_wmma`: candle's kernel for experts, defined here in place of candle's own.
//!
//! candle-kernels has the function in a static archive, as an object of its own. A definition in the program keeps that object out of the
//! program. There is no way back to candle's kernel at run time.

use super::count::count_experts;
use super::mode::is_dry_run;
use super::tell::tell;
use crate::dispatch::Policy;
use crate::error::Result;
use crate::launch::{self, GroupPointers, Pointers, Queue};
use crate::problem::{power_of_two_in, Bounds, Format, Groups, Layout, Operand, Problem, Rows};
use crate::settings;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::hint::black_box;
use std::panic::AssertUnwindSafe;
use std::ptr::{null, null_mut};
use std::sync::Mutex;

/// candle's declaration of the function: another version of candle with another signature does not compile.
type Function = unsafe extern "C" fn(
    *const c_void,
    *const c_void,
    *const i32,
    *const i32,
    *const f32,
    *mut c_void,
    *mut i32,
    *mut i32,
    i32,
    i32,
    i32,
    i32,
    i32,
    i32,
    bool,
    i64,
);
const CANDLES: Function = ::candle::cuda_backend::kernels::ffi::moe_gemm_wmma;
const _: Function = moe_gemm_wmma;

/// A second symbol of the object that has the definition. rustc makes the linker look for each symbol that has no mangled name. Where another
/// library with a `moe_gemm_wmma` comes first in the link, this symbol still takes the object into the program: the two definitions are an error
/// of the link. Without this symbol, candle's calls would reach the other library's function, whose arguments may be others.
#[unsafe(export_name = "candle_tilegemm_experts")]
static ANCHOR: Function = moe_gemm_wmma;

/// The state of a check whether calls arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probe {
    Idle,
    Asking,
    Arrived,
}

thread_local! {
    static PROBE: Cell<Probe> = const { Cell::new(Probe::Idle) };
}

/// Whether candle's calls for experts arrive here. The check makes one call through candle's declaration and sees whether the call reaches this definition. A host
/// that loads this crate in a shared library may have a definition of its own, which the loader prefers: addresses of the function are equal there, too.
/// The check needs no GPU.
pub fn experts_are_active() -> bool {
    // The compiler may not take the declaration for the definition of this module.
    let candles = black_box(CANDLES);
    PROBE.set(Probe::Asking);
    // SAFETY: with no row, no column and no expert candle's own function reads and writes no memory; our definition only sets the flag.
    unsafe {
        candles(
            null(),
            null(),
            null(),
            null(),
            null(),
            null_mut(),
            null_mut(),
            null_mut(),
            0,
            1,
            0,
            0,
            0,
            NO_TYPE,
            false,
            0,
        );
    }
    PROBE.replace(Probe::Idle) == Probe::Arrived
}

/// The number of no type.
const NO_TYPE: i32 = -1;

/// The arguments of one call.
struct Call {
    input: *const c_void,
    weights: *const c_void,
    pairs: *const i32,
    experts: *const i32,
    scales: *const f32,
    output: *mut c_void,
    counts: [i32; 5],
    dtype: i32,
    stream: *mut c_void,
}

/// Replaces candle's own definition. Row p of the output is row `p / topk` of the input, or row p where `topk_weights` is given, times the
/// weights of the expert of p, times `topk_weights[p]`. `sorted_token_ids` lists the p, sorted by expert, and `expert_ids` their experts. The
/// scratch memory and `is_prefill` are not used.
///
/// # Safety
/// The pointers are device memory of the current device, of the sizes that candle's declaration states, and `stream` is a stream of that device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moe_gemm_wmma(
    input: *const c_void,
    weights: *const c_void,
    sorted_token_ids: *const i32,
    expert_ids: *const i32,
    topk_weights: *const f32,
    output: *mut c_void,
    _expert_counts: *mut i32,
    _expert_offsets: *mut i32,
    num_experts: i32,
    topk: i32,
    size_m: i32,
    size_n: i32,
    size_k: i32,
    dtype: i32,
    _is_prefill: bool,
    stream: i64,
) {
    if PROBE.get() != Probe::Idle {
        return PROBE.set(Probe::Arrived);
    }
    if is_dry_run() {
        return;
    }
    let call = Call {
        input,
        weights,
        pairs: sorted_token_ids,
        experts: expert_ids,
        scales: topk_weights,
        output,
        counts: [num_experts, topk, size_m, size_n, size_k],
        dtype,
        stream: stream as *mut c_void,
    };
    // A panic must not cross the C boundary.
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let problem = call.problem()?;
        // SAFETY: the caller's promises.
        unsafe { call.run(&problem) }.map_err(|error| format!("{problem}: {error}"))
    }));
    let failure = match outcome {
        Ok(Ok(())) => return count_experts(true),
        Ok(Err(failure)) => failure,
        Err(_) => "a panic in candle-tilegemm; please report it".into(),
    };
    count_experts(false);
    // SAFETY: as above.
    unsafe { call.fail(failure) };
}

impl Call {
    /// The product that the call asks for.
    fn problem(&self) -> std::result::Result<Problem, String> {
        let [experts, top_k, m, n, k] = self.counts.map(|count| usize::try_from(count).unwrap_or(0));
        let format = match self.dtype {
            0 => Format::F16,
            1 => Format::BF16,
            other => return Err(format!("moe_gemm_wmma has no type {other}; f16 is 0, bf16 is 1")),
        };
        if experts == 0 || top_k == 0 || self.counts.iter().any(|count| *count < 0) {
            return Err(format!("moe_gemm_wmma of {m} x {n} x {k} with {top_k} of {experts} experts is no product"));
        }
        let groups = Groups::routed(experts, m / top_k, top_k).with(|groups| {
            groups.bounds = Bounds::GroupOfRow;
            groups.rows = Rows::Listed { pairs_per_row: if self.scales.is_null() { top_k } else { 1 } };
            groups.scaled = !self.scales.is_null();
        });
        let at = |operand: Operand, address: *const c_void| {
            operand.with(|o| o.pointer_align = power_of_two_in(address as u64))
        };
        Ok(Problem::dense(m, n, k, 1, Layout::NT, format).with(|problem| {
            problem.a = at(problem.a, self.input);
            problem.b = at(problem.b, self.weights).with(|b| b.batch_stride = [0, (n * k) as i64]);
            problem.d = at(problem.d, self.output);
            problem.groups = Some(groups);
        }))
    }

    /// # Safety
    /// As for [`moe_gemm_wmma`].
    unsafe fn run(&self, problem: &Problem) -> Result<()> {
        let policy = launch::policy()?;
        // There is no cuBLAS handle.
        let policy = match policy.forced() {
            Some(kernel) if kernel.takes_groups() => policy,
            _ => Policy::own().with_workspace(policy.workspace).with_batch_invariance(policy.batch_invariant),
        };
        let mut groups = GroupPointers::new(self.experts.cast());
        (groups.pairs, groups.scales) = (self.pairs.cast(), self.scales.cast());
        let pointers = Pointers::new(self.input, self.weights, self.output).with_groups(groups);
        let queue = Queue::new(self.stream, null_mut());
        let dispatcher = launch::dispatcher(launch::current_device()?)?;
        // SAFETY: the caller's promises.
        dispatcher.with_plan(problem, policy, |plan| unsafe { launch::launch(plan, pointers, queue) })?
    }

    /// Tells of the failure once, and fills the result with NaN or ends the program.
    ///
    /// # Safety
    /// As for [`moe_gemm_wmma`].
    unsafe fn fail(&self, failure: String) {
        static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let mut told = TOLD.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if told.len() < 64 && told.insert(failure.clone()) {
            tell(&format!("a product of experts failed, and its result is NaN: {failure}"));
        }
        drop(told);
        if settings::on_failure().ok().flatten().as_deref() == Some("abort") {
            std::process::abort();
        }
        let [_, _, m, n, _] = self.counts.map(|count| usize::try_from(count).unwrap_or(0));
        // All bits of a NaN may be set, in f16 and in bf16.
        // SAFETY: the output has m x n numbers of two bytes.
        if let Err(error) = unsafe { launch::fill(self.stream, self.output, 0xff, m * n * 2) } {
            tell(&format!("the result of a product of experts that failed is undefined: {error}"));
        }
    }
}
