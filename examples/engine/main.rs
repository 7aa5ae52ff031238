//! A product without candle: the dispatcher plans, and the plan is launched over device pointers of cudarc.
//!
//! The example checks one in seventeen results against sums in f64 on the host, and prints the plan and its time. Without a GPU it prints the plan for
//! an H100 and says so.
//!
//! ```sh
//! cargo run --release -p candle-tilegemm-engine
//! ```

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Plan, Planned, Policy};
use candle_tilegemm::launch::{self, Pointers, Queue};
use candle_tilegemm::{Format, Layout, Problem};
use cudarc::driver::{sys, CudaContext, DevicePtr, DevicePtrMut};
use half::bf16;
use std::error::Error;
use std::ptr::null_mut;

/// D = A * B: A is m x k by rows, B is k x n by columns (`Layout::NT`), as the weights of a linear layer lie in memory.
const M: usize = 64;
const N: usize = 4096;
const K: usize = 4096;
const RUNS: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    // That the kernels of this program are those of its table.
    println!("{} kernels are linked", launch::verify_library()?);
    let problem = Problem::dense(M, N, K, 1, Layout::NT, Format::BF16);
    // Without cuBLAS, which would need a handle in the queue.
    let policy = Policy::own();
    match launch::device_info(0) {
        Ok(device) => {
            println!("{}", device.name);
            let plan = launch::dispatcher(0)?.plan(&problem, policy)?;
            run(&plan)
        }
        Err(error) => {
            println!("{error}\nthe plan for an H100:");
            let plan = Dispatcher::new(DeviceInfo::h100()).plan(&problem, policy)?;
            print(&plan);
            Ok(())
        }
    }
}

fn print(plan: &Plan) {
    println!("{} runs on {} {}, estimated {:.1} us", plan.asked, plan.name(), plan.config, plan.estimate_us);
}

fn run(plan: &Planned) -> Result<(), Box<dyn Error>> {
    print(plan);
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    // Allocates the workspace of the stream and loads the kernels; a program that captures CUDA graphs calls it before the capture.
    // SAFETY: the stream is one of the current device, to which `CudaContext::new` has bound the thread.
    unsafe { launch::prepare(stream.cu_stream().cast())? };

    let (a, b) = (numbers(M * K, 1), numbers(K * N, 2));
    let (a_device, b_device) = (stream.clone_htod(&a)?, stream.clone_htod(&b)?);
    let mut d_device = stream.alloc_zeros::<bf16>(M * N)?;
    let us = {
        let (a, _reads_a) = a_device.device_ptr(&stream);
        let (b, _reads_b) = b_device.device_ptr(&stream);
        let (d, _writes_d) = d_device.device_ptr_mut(&stream);
        let pointers = Pointers::new(a as *const _, b as *const _, d as *mut _);
        let queue = Queue::new(stream.cu_stream().cast(), null_mut());
        // SAFETY: the operands are as large as the problem says, on the current device, and stay allocated until the events below are over. D is
        // apart from A and B. Allocations of CUDA are aligned to 256 bytes. The policy has no plans for cuBLAS, whose handle is null.
        let launch = || unsafe { launch::launch(plan, pointers, queue) };
        launch()?;
        let event = || stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT));
        let start = event()?;
        (0..RUNS).try_for_each(|_| launch())?;
        1e3 * start.elapsed_ms(&event()?)? / RUNS as f32
    };
    let d = stream.clone_dtoh(&d_device)?;
    println!("{us:.1} us with operands that may be in the cache, mean of {RUNS}");
    let worst = (0..M * N).step_by(17).map(|at| error(&a, &b, at / N, at % N, d[at])).fold(0.0, f64::max);
    println!("the largest error is {worst:.2} of what rounding allows");
    match worst <= 1.0 {
        true => Ok(()),
        false => Err("the result is wrong".into()),
    }
}

/// Numbers between -1 and 1, the same in every run.
fn numbers(count: usize, seed: u64) -> Vec<bf16> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        bf16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..count).map(|_| next()).collect()
}

/// The error of an element of D, as a share of the bound for sums in f32 that are rounded to bf16 once.
fn error(a: &[bf16], b: &[bf16], row: usize, column: usize, got: bf16) -> f64 {
    let products = (0..K).map(|k| a[row * K + k].to_f64() * b[column * K + k].to_f64());
    let (sum, sum_abs) = products.fold((0.0, 0.0), |(sum, sum_abs), product| (sum + product, sum_abs + product.abs()));
    let bound = sum.abs() / 256.0 + K as f64 * f64::from(f32::EPSILON) / 2.0 * sum_abs;
    let error = (got.to_f64() - sum).abs() / bound;
    // `f64::max` would pass over NaN.
    if error.is_nan() {
        f64::INFINITY
    } else {
        error
    }
}
