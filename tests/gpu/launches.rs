//! What a launch does beside the product: nothing that ends the capture of another thread, and nothing to CUDA's last error.

use crate::cases;
use crate::device::{by_types, Element, Gpu};
use crate::Test;
use candle::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle::cuda_backend::cudarc::driver::{CudaStream, DevicePtr};
use candle_tilegemm::dispatch::{Planned, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::launch::{self, Pointers, Queue};
use candle_tilegemm::{Format, Layout, Problem};
use std::ffi::c_int;
use std::sync::{Arc, Barrier};

// Of the CUDA runtime that the kernels are linked to.
extern "C" {
    fn cudaSetDevice(ordinal: c_int) -> c_int;
    fn cudaPeekAtLastError() -> c_int;
    fn cudaGetLastError() -> c_int;
}

/// The first of these run before all others: kernels that were launched before prove nothing.
pub fn tests() -> Vec<(String, Test)> {
    vec![
        ("first_products_beside_a_capture".into(), Box::new(first_products_beside_a_capture)),
        ("a_recycled_handle_is_another_stream".into(), Box::new(a_recycled_handle_is_another_stream)),
        ("stale_errors_stay_where_they_are".into(), Box::new(stale_errors_stay_where_they_are)),
    ]
}

fn own_kernels(gpu: &Gpu) -> Vec<&'static KernelDesc> {
    let runs = |kernel: &&KernelDesc| kernel.is_built() && kernel.arch.runs_on(gpu.info.capability);
    KERNELS.iter().filter(|kernel| kernel.role != Role::Vendor).filter(crate::plain).filter(runs).collect()
}

/// A product of ones, which is K everywhere.
struct Product {
    kernel: &'static KernelDesc,
    plan: Arc<Planned>,
    pointers: Pointers,
    stream: Arc<CudaStream>,
    /// Waits for the stream and looks at D.
    check: Box<dyn Fn() -> Result<(), String>>,
}

impl Product {
    fn new(gpu: &Gpu, kernel: &'static KernelDesc, stream: &Arc<CudaStream>) -> Result<Self, String> {
        by_types!(kernel.types, product_of_ones(gpu, kernel, stream))
    }

    fn launch(&self) -> Result<(), String> {
        let queue = Queue::new(self.stream.cu_stream().cast(), std::ptr::null_mut());
        // SAFETY: the operands are those of the problem, and live as long as `check`, which waits for the stream.
        unsafe { launch::launch(&self.plan, self.pointers, queue) }.map_err(|e| format!("{}: {e}", self.kernel))
    }
}

fn product_of_ones<T: Element, Out: Element>(
    gpu: &Gpu,
    kernel: &'static KernelDesc,
    stream: &Arc<CudaStream>,
) -> Result<Product, String> {
    let [m, n, k] = cases::sizes_near(gpu, kernel, [8, 256, 256]);
    let dense = cases::problem(m, n, k, kernel.layout, kernel.types, cases::Variant::PLAIN);
    let problem = dense.with(|p| p.f32_mode = cases::f32_mode(kernel));
    let (plan, _) = gpu.plan(kernel.name, &problem)?;
    let ones = |count: usize| stream.clone_htod(&vec![T::from_f64(1.0); count]).map_err(text);
    let (a, b) = (ones(m * k)?, ones(k * n)?);
    let d = stream.clone_htod(&vec![Out::from_f64(f64::NAN); m * n]).map_err(text)?;
    let at = |slice| DevicePtr::<T>::device_ptr(slice, stream).0;
    let pointers = Pointers::new(at(&a) as _, at(&b) as _, d.device_ptr(stream).0 as _);
    let of_check = stream.clone();
    let check = move || {
        let _inputs = (&a, &b);
        let got = of_check.clone_dtoh(&d).map_err(text)?;
        match got.iter().position(|x| x.to_f64() != k as f64) {
            Some(i) => Err(format!("{kernel}: element {i} of D is {}, expected {k}", got[i].to_f64())),
            None => Ok(()),
        }
    };
    stream.synchronize().map_err(text)?;
    Ok(Product { kernel, plan, pointers, stream: stream.clone(), check: Box::new(check) })
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Products on a stream, which is prepared.
fn products(gpu: &Gpu, stream: &Arc<CudaStream>, kernels: &[&'static KernelDesc]) -> Result<Vec<Product>, String> {
    stream.context().bind_to_thread().map_err(text)?;
    // SAFETY: the stream is one of the device, which is now the current one.
    unsafe { launch::prepare(stream.cu_stream().cast()) }.map_err(|e| e.to_string())?;
    kernels.iter().map(|kernel| Product::new(gpu, kernel, stream)).collect()
}

/// While one thread captures a first product, another one launches first products of other kernels.
fn first_products_beside_a_capture(gpu: &Gpu) -> Result<(), String> {
    let modes = [
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ];
    let kernels = own_kernels(gpu);
    // One for all modes: only the first eight streams of a device have a workspace of their own.
    let stream = gpu.device.cuda_stream().context().new_stream().map_err(text)?;
    for (i, mode) in modes.into_iter().enumerate() {
        // Each mode has kernels of its own, of every family that has as many.
        let some: Vec<_> = kernels.iter().skip(i).step_by(modes.len()).copied().collect();
        let (captured, beside) = some.split_at(2.min(some.len()));
        capture_beside(gpu, &stream, mode, captured, beside).map_err(|e| format!("{mode:?}: {e}"))?;
    }
    Ok(())
}

/// `captured` on this thread's own stream, `beside` on the other one.
fn capture_beside(
    gpu: &Gpu,
    stream: &Arc<CudaStream>,
    mode: CUstreamCaptureMode,
    captured: &[&'static KernelDesc],
    beside: &[&'static KernelDesc],
) -> Result<(), String> {
    // Both threads pass all of these, also after a failure.
    let [ready, begun, launched, ended] = [(); 4].map(|()| Barrier::new(2));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let made = products(gpu, stream, beside);
            ready.wait();
            begun.wait();
            let result = made.as_ref().map_err(Clone::clone).and_then(|products| launch_all(products));
            launched.wait();
            ended.wait();
            result.and(check_all(&made?))
        });
        let own = gpu.device.cuda_stream();
        let made = products(gpu, &own, captured);
        ready.wait();
        let first = made.as_ref().map_err(Clone::clone).and_then(|products| {
            own.begin_capture(mode).map_err(text)?;
            launch_all(products)
        });
        begun.wait();
        launched.wait();
        const FLAGS: CUgraphInstantiate_flags =
            CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = own.end_capture(FLAGS).map_err(text);
        ended.wait();
        let other = other.join().map_err(|_| "the other thread panicked")?;
        first?;
        let products = made?;
        other.map_err(|e| format!("beside the capture: {e}"))?;
        graph?.ok_or("nothing was captured")?.launch().map_err(text)?;
        check_all(&products)
    })
}

/// A stream that CUDA gives the handle of a destroyed stream, and that is captured at once, does not take the other one's workspace.
fn a_recycled_handle_is_another_stream(gpu: &Gpu) -> Result<(), String> {
    let problem = Problem::dense(1024, 1024, 1024, 1, Layout::NT, Format::F32);
    let dispatcher = launch::dispatcher(launch::current_device().map_err(text)?).map_err(text)?;
    let plan = dispatcher.plan(&problem, Policy::own()).map_err(text)?;
    if plan.workspace.least == 0 {
        return Err(format!("{} needs no workspace", plan.kernel));
    }
    let context = gpu.device.cuda_stream().context().clone();
    // SAFETY: a stream of the current device.
    let ready =
        |stream: &CudaStream| unsafe { launch::ready(&plan, stream.cu_stream().cast()).map(|plan| plan.kernel) };
    let ready_in_capture = |stream: &Arc<CudaStream>| {
        const FLAGS: CUgraphInstantiate_flags =
            CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).map_err(text)?;
        let kernel = ready(stream).map_err(text);
        stream.end_capture(FLAGS).map_err(text)?;
        kernel
    };
    let prepared = || {
        let stream = context.new_stream().map_err(text)?;
        // SAFETY: a stream of the current device.
        unsafe { launch::prepare(stream.cu_stream().cast()) }.map_err(text)?;
        Ok::<_, String>(stream)
    };
    let known = prepared()?;
    if ready(&known).map_err(text)? != plan.kernel || ready_in_capture(&known)? != plan.kernel {
        return Err("a stream that was prepared has no workspace".into());
    }
    for _ in 0..4 {
        let handle = prepared()?.cu_stream(); // the stream is destroyed at once
        let mut others = Vec::new();
        for _ in 0..64 {
            let stream = context.new_stream().map_err(text)?;
            if stream.cu_stream() != handle {
                others.push(stream);
                continue;
            }
            let kernel = ready_in_capture(&stream)?;
            return match kernel == plan.kernel {
                true => Err(format!("{kernel} took the workspace of a stream that is gone")),
                false => Ok(()),
            };
        }
    }
    Err("CUDA gave no handle a second time".into())
}

fn launch_all(products: &[Product]) -> Result<(), String> {
    products.iter().try_for_each(Product::launch)
}

fn check_all(products: &[Product]) -> Result<(), String> {
    products.iter().try_for_each(|product| (product.check)())
}

/// An error of the program's own, which it has not looked at yet, is neither a launch's nor forgotten.
fn stale_errors_stay_where_they_are(gpu: &Gpu) -> Result<(), String> {
    for kernel in own_kernels(gpu) {
        let products = products(gpu, &gpu.device.cuda_stream(), &[kernel])?;
        // SAFETY: functions of the CUDA runtime that fail, and that tell why.
        let (provoked, before) = unsafe { (cudaSetDevice(9999), cudaPeekAtLastError()) };
        let launched = launch_all(&products);
        // SAFETY: as above.
        let (after, _cleared) = unsafe { (cudaPeekAtLastError(), cudaGetLastError()) };
        launched?;
        if provoked == 0 || before != provoked || after != before {
            return Err(format!("{kernel}: the last error was {before} of {provoked}, and is {after} after a launch"));
        }
        check_all(&products)?;
    }
    Ok(())
}
