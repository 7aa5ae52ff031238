//! Kernels whose code is not on the device yet while device memory is full: they run when there is memory again. In a process of its own, where no kernel has run.

use crate::device::Gpu;
use crate::Test;
use candle::cuda_backend::cudarc::driver::result::{free_sync, malloc_sync};
use candle::cuda_backend::cudarc::driver::DevicePtr;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::launch::{self, Pointers};
use candle_tilegemm::{Error, Format, Layout, Problem};
use half::bf16;
use std::process::Command;

const NAME: &str = "kernels_load_when_there_is_memory_again";
/// Set in the process that the test starts.
const INSIDE: &str = "TILEGEMM_TEST_MEMORY_INSIDE";

pub fn tests() -> Vec<(String, Test)> {
    vec![(NAME.into(), Box::new(in_a_process))]
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn in_a_process(gpu: &Gpu) -> Result<(), String> {
    if std::env::var_os(INSIDE).is_some() {
        return with_memory_full(gpu);
    }
    let program = std::env::current_exe().map_err(text)?;
    let output = Command::new(program).args(["--exact", NAME]).env(INSIDE, "1").output().map_err(text)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    match output.status.success() && said.contains("1 passed") {
        true => Ok(()),
        false => Err(said),
    }
}

/// Takes all device memory, in pieces of up to 1 GiB and down to 1 MiB.
fn fill() -> Vec<u64> {
    let mut taken = Vec::new();
    for bytes in [1 << 30, 1 << 26, 1 << 22, 1 << 20] {
        // SAFETY: nothing reads the memory.
        while let Ok(address) = unsafe { malloc_sync(bytes) } {
            taken.push(address);
        }
    }
    taken
}

fn with_memory_full(gpu: &Gpu) -> Result<(), String> {
    const ONES: [[usize; 3]; 3] = [[1, 512, 256], [64, 512, 256], [512, 512, 256]];
    let stream = gpu.device.cuda_stream();
    let most = 512 * 512;
    let ones = stream.clone_htod(&vec![bf16::from_f32(1.0); most]).map_err(text)?;
    let d = stream.clone_htod(&vec![bf16::from_f32(0.0); most]).map_err(text)?;
    let queue = gpu.queue()?;
    let plan = |[m, n, k]: [usize; 3]| {
        let problem = Problem::dense(m, n, k, 1, Layout::NT, Format::BF16);
        Dispatcher::new(gpu.info.clone()).plan(&problem, Policy::own()).map_err(text)
    };
    let plans = ONES.map(plan).into_iter().collect::<Result<Vec<_>, _>>()?;
    let pointers = {
        let at = ones.device_ptr(&stream).0;
        Pointers::new(at as _, at as _, d.device_ptr(&stream).0 as _)
    };
    let run = |i: usize| -> Result<(), Error> {
        // SAFETY: the buffers hold what the problem spans, and live until the copies below have waited for the stream.
        unsafe { launch::launch(&plans[i], pointers, queue) }
    };
    let check = |[m, n, k]: [usize; 3]| {
        let got = stream.clone_dtoh(&d.slice(..m * n)).map_err(text)?;
        match got.iter().find(|x| x.to_f64() != k as f64) {
            Some(wrong) => Err(format!("{m} x {n} x {k} of ones is {wrong}")),
            None => Ok(()),
        }
    };
    // The device's dispatcher loads kernels that run when no other can.
    launch::dispatcher(launch::current_device().map_err(text)?).map_err(text)?;
    let taken = fill();
    for (i, sizes) in ONES.into_iter().enumerate() {
        run(i).map_err(|e| format!("{sizes:?} with memory full: {e}"))?;
        check(sizes)?;
    }
    // SAFETY: a stream of the current device.
    let prepared = unsafe { launch::prepare(stream.cu_stream().cast()) };
    if !matches!(prepared, Err(Error::MemoryFull { .. } | Error::Workspace { .. })) {
        return Err(format!("prepare with memory full: {prepared:?}"));
    }
    // SAFETY: addresses of `malloc_sync`, freed once.
    taken.into_iter().try_for_each(|address| unsafe { free_sync(address) }).map_err(text)?;
    for (i, sizes) in ONES.into_iter().enumerate() {
        let before = plans[i].calls();
        run(i).map_err(|e| format!("{sizes:?} with memory again: {e}"))?;
        check(sizes)?;
        if plans[i].calls() == before {
            return Err(format!("{} did not run with memory again", plans[i].kernel));
        }
    }
    // SAFETY: as above.
    unsafe { launch::prepare(stream.cu_stream().cast()) }
        .map(drop)
        .map_err(|e| format!("prepare with memory again: {e}"))
}
