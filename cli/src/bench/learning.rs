//! The arm `learned`: what a program chooses that has called the product some times while it learns.

use super::operands::Operands;
use super::samples::Samples;
use super::timing::Timer;
use crate::Result;
use candle::cuda_backend::cudarc::driver::result::stream::launch_host_function;
use candle::cuda_backend::cudarc::driver::sys::CUevent_flags;
use candle_tilegemm::dispatch::{set_learning, Planned, Policy};
use candle_tilegemm::{launch, workspace, Problem};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// Calls of a step, after which the program waits for its results: fewer where they would take longer than this together. And steps until nothing more is tried.
const CALLS: usize = 100;
const LONG_US: f64 = 50_000.0;
const FEW_CALLS: usize = 10;
const MOST_STEPS: usize = 30;
/// What a step's calls are behind: longer than the host needs for them, so that the GPU does not wait for the host.
const AHEAD: Duration = Duration::from_millis(2);

unsafe extern "C" fn pass(_: *mut c_void) {
    std::thread::sleep(AHEAD);
}

/// The plan of programs in this process, whose dispatcher is the one that learns, as a thread makes it that has made none.
pub fn plan(problem: &Problem) -> Result<Arc<Planned>> {
    let (dispatcher, policy) = (launch::dispatcher(launch::current_device()?)?, policy()?);
    let planned = std::thread::scope(|scope| scope.spawn(|| dispatcher.plan(problem, policy)).join());
    Ok(planned.map_err(|_| "the thread of a plan panicked")??)
}

fn policy() -> Result<Policy> {
    Ok(Policy::default().with_workspace(workspace::bytes()?))
}

/// What a program that calls one product has learned.
pub struct Learned {
    /// What that cost beyond the same calls of what was learned, as a number of such calls.
    pub lost_calls: f64,
    /// Whether there was more to learn.
    pub is_cut: bool,
}

/// Calls the product while this process learns.
pub fn learn(timer: &Timer, problem: &Problem, operands: &Operands) -> Result<Learned> {
    let count = ((LONG_US / plan(problem)?.estimate_us) as usize).clamp(FEW_CALLS, CALLS);
    let (dispatcher, policy) = (launch::dispatcher(launch::current_device()?)?, policy()?);
    // A program plans each call, on another copy of the operands than the one before.
    let launch = |call| {
        let plan = dispatcher.plan(problem, policy)?;
        // SAFETY: the operands are the problem's, and outlive the launch.
        unsafe { launch::launch(&plan, operands.pointers(call % operands.copies())?, timer.queue())? };
        Ok(())
    };
    let mut learning = Vec::new();
    while learning.len() < MOST_STEPS && !plan(problem)?.is_learned() {
        set_learning(true);
        let us = calls(timer, count, launch);
        set_learning(false);
        learning.push(us?);
    }
    let is_cut = !plan(problem)?.is_learned();
    let learned = calls(timer, count, launch)?;
    let lost: f64 = learning.iter().map(|us| us - learned).sum();
    Ok(Learned { lost_calls: lost / learned * count as f64, is_cut })
}

/// Rounds of [`programs`], and how long a step of theirs is, from the least calls on.
const ROUNDS: usize = 7;
const STEP_US: f64 = 3_000.0;

/// Microseconds of a call by each of these, which take the number of the call, in programs that call nothing else and keep the GPU busy: the median of some steps
/// in turns.
pub fn programs(timer: &Timer, problem: &Problem, launches: &[impl Fn(usize) -> Result]) -> Result<Vec<f64>> {
    let count = ((STEP_US / plan(problem)?.estimate_us) as usize).clamp(FEW_CALLS, CALLS);
    let mut samples = vec![Samples::default(); launches.len()];
    for _ in 0..ROUNDS {
        for (launch, samples) in launches.iter().zip(&mut samples) {
            samples.push(calls(timer, count, launch)? / count as f64);
        }
    }
    Ok(samples.iter().map(Samples::median).collect())
}

/// Microseconds of so many launches in a row, between events behind a host function that lasts until all of them are in the stream.
fn calls(timer: &Timer, count: usize, launch: impl Fn(usize) -> Result) -> Result<f64> {
    let stream = timer.device().cuda_stream();
    let event = || stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
    // SAFETY: a live stream; the function reads nothing.
    unsafe { launch_host_function(stream.cu_stream(), pass, std::ptr::null_mut())? };
    let start = event()?;
    (0..count).try_for_each(launch)?;
    let end = event()?;
    stream.synchronize()?;
    Ok(f64::from(start.elapsed_ms(&end)?) * 1e3)
}
