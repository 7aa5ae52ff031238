//! Two devices of one host: products on both from one thread and from several, workspaces and tables by device, operands of the other device.

use crate::cases::{self, Data, Variant};
use crate::device::{Gpu, Operands};
use crate::{random, Test};
use candle::cuda_backend::cudarc::driver::{result, sys};
use candle::{DType, Device, Tensor};
use candle_tilegemm::dispatch::Policy;
use candle_tilegemm::launch::{self, Pointers};
use candle_tilegemm::{Format, Gemm, GemmExt, Layout, Problem};
use half::bf16;
use std::sync::Arc;

pub fn tests() -> Vec<(String, Test)> {
    vec![
        ("two_devices_from_one_thread".into(), Box::new(from_one_thread)),
        ("two_devices_from_several_threads".into(), Box::new(from_several_threads)),
        ("two_devices_have_workspaces_of_their_own".into(), Box::new(workspaces)),
        ("two_devices_have_tables_of_their_own".into(), Box::new(tables)),
        ("two_devices_operands_of_the_other_are_refused".into(), Box::new(other_device)),
        ("two_devices_peer_memory_is_read".into(), Box::new(peer_memory)),
    ]
}

/// Why a test of two devices cannot run here.
pub fn missing() -> Option<String> {
    match result::device::get_count() {
        Ok(count) if count > 1 => None,
        _ => Some("there is one device".into()),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Random products, on one device and the other in turns.
fn in_turns(gpus: &[Gpu], first_seed: u64, count: u64) -> Result<(), String> {
    (first_seed..first_seed + count).zip(gpus.iter().cycle()).try_for_each(|(seed, gpu)| {
        random::one(gpu, seed).map_err(|error| format!("{}, seed {seed}: {error}", gpu.info.name))
    })
}

fn from_one_thread(_: &Gpu) -> Result<(), String> {
    in_turns(&[Gpu::open(0)?, Gpu::open(1)?], 0, 616)
}

/// A thread for each device, one for both in turns, and another for each device.
fn from_several_threads(_: &Gpu) -> Result<(), String> {
    let of = [&[0][..], &[1], &[0, 1], &[1, 0], &[0], &[1]];
    std::thread::scope(|scope| {
        let start = |(thread, ordinals): (usize, &'static [usize])| {
            scope.spawn(move || {
                let gpus = ordinals.iter().map(|&ordinal| Gpu::open(ordinal)).collect::<Result<Vec<_>, _>>()?;
                in_turns(&gpus, 1000 * (thread as u64 + 1), 100)
            })
        };
        let threads: Vec<_> = of.into_iter().enumerate().map(start).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

/// Products that keep parts of their operands in the workspace, launched on both devices in turns without a wait, give the bits of each alone.
fn workspaces(_: &Gpu) -> Result<(), String> {
    let gpus = [Gpu::open(0)?, Gpu::open(1)?];
    let problem = cases::problem(2048, 2048, 1024, Layout::NT, Format::F32, Variant::PLAIN);
    let operands: [Operands<f32>; 2] = [1, 2].map(|seed| cases::operands(&problem, 0, Data::Normal, seed));
    let alone =
        [gpus[0].run(Policy::own(), &problem, &operands[0])?, gpus[1].run(Policy::own(), &problem, &operands[1])?];
    let plans = [gpus[0].plan(Policy::own(), &problem)?.0, gpus[1].plan(Policy::own(), &problem)?.0];
    if plans.iter().any(|plan| plan.workspace.least == 0) {
        return Err(format!("{} needs no workspace, and proves nothing", plans[0].kernel));
    }
    let launch = |device: usize, pointers: Pointers| {
        let queue = gpus[device].queue()?;
        // SAFETY: the buffers hold what the problem spans, and live until D has been read.
        unsafe { launch::launch(&plans[device], pointers, queue) }.map_err(text)
    };
    let mut second = Err("nothing was launched".to_string());
    let first = gpus[0].with_operands(false, &operands[0], |on_first, _| {
        second = gpus[1].with_operands(false, &operands[1], |on_second, _| {
            (0..16).try_for_each(|_| launch(0, on_first).and_then(|()| launch(1, on_second)))
        });
        gpus[0].queue().map(drop)
    })?;
    // Around D there are NaNs, which are equal to nothing.
    let bits = |of: [Vec<f32>; 2]| of.map(|d| d.into_iter().map(f32::to_bits).collect::<Vec<_>>());
    match bits([first, second?]) == bits(alone) {
        true => Ok(()),
        false => Err("products on two devices in turns have other bits than alone".into()),
    }
}

/// Each device has a dispatcher with its own numbers, tables and counts.
fn tables(_: &Gpu) -> Result<(), String> {
    let dispatchers = [launch::dispatcher(0).map_err(text)?, launch::dispatcher(1).map_err(text)?];
    for (ordinal, dispatcher) in dispatchers.into_iter().enumerate() {
        let info = launch::device_info(ordinal).map_err(text)?;
        if *dispatcher.device() != info {
            return Err(format!("the dispatcher of device {ordinal} is one for {}", dispatcher.device().name));
        }
        if dispatcher.tables().used().any(|table| table.origin().gpu != info.name) {
            return Err(format!("device {ordinal}, {}, has the measured table of another card", info.name));
        }
    }
    let problem = Problem::dense(77, 520, 264, 1, Layout::NT, Format::BF16);
    let plans = [0, 1].map(|ordinal: usize| dispatchers[ordinal].plan(&problem, Policy::own()));
    let [Ok(first), Ok(second)] = plans else { return Err("no plan".into()) };
    match std::ptr::eq(dispatchers[0], dispatchers[1]) || Arc::ptr_eq(&first, &second) {
        true => Err("both devices have one dispatcher".into()),
        false => Ok(()),
    }
}

/// The op refuses operands that are not all on one device.
fn other_device(_: &Gpu) -> Result<(), String> {
    let devices = [Device::new_cuda(0).map_err(text)?, Device::new_cuda(1).map_err(text)?];
    let ones = |dims: &[usize], device: usize| Tensor::ones(dims, DType::BF16, &devices[device]).map_err(text);
    let (x, w, bias, c) = (ones(&[8, 64], 0)?, ones(&[64, 32], 0)?, ones(&[32], 1)?, ones(&[8, 32], 1)?);
    let cases = [
        ("B", x.gemm(&ones(&[64, 32], 1)?)),
        ("A", ones(&[8, 64], 1)?.gemm(&w)),
        ("the bias", Gemm::new().bias(&bias).forward(&x, &w)),
        ("the residual", Gemm::new().residual(&c).forward(&x, &w)),
    ];
    match cases.iter().find(|(_, result)| result.is_ok()) {
        Some((what, _)) => Err(format!("{what} on another device is taken")),
        None => x.gemm(&w).map(drop).map_err(text),
    }
}

/// A B in the memory of the other device, to which the program has opened the way: the bits of a B that is here.
fn peer_memory(_: &Gpu) -> Result<(), String> {
    let [here, there] = [Gpu::open(0)?, Gpu::open(1)?];
    let context = there.device.cuda_stream().context().cu_ctx();
    here.queue()?;
    // SAFETY: the contexts of both devices live as long as the process.
    match unsafe { sys::cuCtxEnablePeerAccess(context, 0) } {
        sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
        error => {
            println!("skipped: these devices cannot read each other's memory ({error:?})");
            return Ok(());
        }
    }
    for (m, policy) in [1, 16, 77, 300].into_iter().flat_map(|m| [(m, Policy::own()), (m, Policy::own().with_copies())])
    {
        let problem = cases::problem(m, 520, 1032, Layout::NT, Format::BF16, Variant::PLAIN);
        let operands: Operands<bf16> = cases::operands(&problem, 0, Data::Normal, m as u64);
        let expected = here.run(policy, &problem, &operands)?;
        there.queue()?;
        // SAFETY: memory of the current device for all of B, which is freed after D has been read.
        let memory = unsafe { result::malloc_sync(size_of_val(&operands.b[..])) }.map_err(text)?;
        // SAFETY: the memory has the size of B.
        unsafe { result::memcpy_htod_sync(memory, &operands.b) }.map_err(text)?;
        let (plan, queue) = here.plan(policy, &problem)?;
        let got = here.with_operands(false, &operands, |pointers, _| {
            let pointers = Pointers::new(pointers.a, memory as _, pointers.d);
            // SAFETY: as for B here; this device may read the memory.
            unsafe { launch::launch(&plan, pointers, queue) }.map_err(text)
        })?;
        there.queue()?;
        // SAFETY: nothing reads the memory any more.
        unsafe { result::free_sync(memory) }.map_err(text)?;
        let bits = |values: &[bf16]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        if bits(&got) != bits(&expected) {
            return Err(format!("{problem}, by {}: other bits with B on the other device", plan.name()));
        }
    }
    Ok(())
}
