//! Products as large as kernels take: their launch functions refuse nothing that [`KernelDesc::supports`] admits, and what fits in
//! memory comes out right.

use crate::cases;
use crate::device::{by_types, Element, Gpu};
use crate::Test;
use candle::cuda_backend::cudarc::driver::sys::CUstreamCaptureMode;
use candle::cuda_backend::cudarc::driver::{result, CudaSlice, CudaStream, DevicePtr, DriverError, ValidAsZeroBits};
use candle_tilegemm::dispatch::{Dispatcher, Planned, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::launch::{self, Pointers, Queue};
use candle_tilegemm::problem::Operand;
use candle_tilegemm::{workspace, Layout, Problem};
use half::{bf16, f16};
use std::sync::Arc;

pub fn tests() -> Vec<(String, Test)> {
    vec![
        ("no_kernel_refuses_what_it_supports".into(), Box::new(no_kernel_refuses_what_it_supports)),
        ("lines_far_apart".into(), Box::new(lines_far_apart)),
        ("many_columns".into(), Box::new(many_columns)),
        ("a_long_sum".into(), Box::new(a_long_sum)),
        ("a_long_sum_of_a_few_rows".into(), Box::new(a_long_sum_of_a_few_rows)),
        ("the_vendor_at_its_limits".into(), Box::new(the_vendor_at_its_limits)),
    ]
}

/// More than INT_MAX / 2, and a multiple of eight.
const OVER: usize = 1_073_741_832;

fn text(error: DriverError) -> String {
    error.to_string()
}

/// Every kernel is launched into a capture, which computes nothing and looks at no operand.
fn no_kernel_refuses_what_it_supports(gpu: &Gpu) -> Result<(), String> {
    let stream = gpu.device.cuda_stream();
    stream.context().bind_to_thread().map_err(text)?;
    // SAFETY: the stream is one of the device, which is now the current one.
    unsafe { launch::prepare(stream.cu_stream().cast()) }.map_err(|e| e.to_string())?;
    let runs = |kernel: &&KernelDesc| kernel.is_built() && kernel.arch.runs_on(gpu.info.capability);
    for kernel in KERNELS.iter().filter(|kernel| kernel.role != Role::Vendor).filter(crate::plain).filter(runs) {
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(text)?;
        let launched = launch_large(gpu, kernel, &stream);
        // SAFETY: the stream is being captured by this thread, and the graph is destroyed once.
        unsafe {
            let graph = result::stream::end_capture(stream.cu_stream()).map_err(text)?;
            result::graph::destroy(graph).map_err(text)?;
        }
        if launched? < 10 {
            return Err(format!("{kernel}: too few products to try"));
        }
    }
    Ok(())
}

/// The number of large products that `kernel` took.
fn launch_large(gpu: &Gpu, kernel: &'static KernelDesc, stream: &Arc<CudaStream>) -> Result<usize, String> {
    let dispatcher = Dispatcher::new(gpu.info.clone()).without_tuning();
    let policy = Policy::force(kernel.name).map_err(|e| e.to_string())?;
    let bytes = workspace::bytes().map_err(|e| e.to_string())?;
    let queue = Queue::new(stream.cu_stream().cast(), std::ptr::null_mut());
    let anywhere = 0x7f00_0000_0000_usize;
    let pointers = Pointers::new(anywhere as _, anywhere as _, anywhere as _);
    let mut launched = 0;
    for problem in large_problems(gpu, kernel) {
        let canonical = problem.canonical().problem;
        // Not in thousands of pieces.
        let need = kernel.workspace(&canonical);
        if kernel.supports(&canonical, &gpu.info).is_err() || need.least > bytes || need.best > 64 * bytes {
            continue;
        }
        let plan = dispatcher.plan(&problem, policy).map_err(|e| e.to_string())?;
        // SAFETY: nothing runs, so nothing is read or written.
        unsafe { launch::launch(&plan, pointers, queue) }.map_err(|e| format!("{problem}: {e}"))?;
        launched += 1;
    }
    Ok(launched)
}

/// One extent at a time near what 16, 24 and 32 bits hold, and strides near what TMA takes.
fn large_problems(gpu: &Gpu, kernel: &KernelDesc) -> Vec<Problem> {
    let int = i32::MAX as usize;
    let near = [65_535, 65_536, int / 256, int / 64, int / 16, int / 12, int / 8, int / 4, int / 2, int - 1024, int];
    let large = near.into_iter().flat_map(|most| [most / 8 * 8, most, most * 16, most * 64]);
    let [.., k] = cases::sizes_near(gpu, kernel, [4, 64, 64]);
    let dense = |[m, n, k, batch]: [usize; 4]| {
        let problem = Problem::dense(m, n, k, batch, kernel.layout, kernel.types.a);
        problem.with(|p| (p.f32_mode, p.d.format) = (cases::f32_mode(kernel), kernel.types.d))
    };
    let small = [[1, 8, k, 1], [4, 64, k, 2], [8, 128, k, 1]];
    let mut problems: Vec<_> = large
        .flat_map(|extent| (0..4).map(move |dimension| (extent, dimension)))
        .flat_map(|(extent, dimension)| {
            small.map(|mut sizes| {
                sizes[dimension] = extent;
                dense(sizes)
            })
        })
        .collect();
    let far = |operand: &mut Operand, bytes: i64| {
        let stride = bytes / operand.format.bytes(1) as i64;
        if operand.col_stride == 1 {
            operand.row_stride = stride
        } else {
            operand.col_stride = stride
        }
    };
    for bytes in [(1 << 31) + 16, (1 << 33) + 16, (1 << 40) - 16, 1 << 40] {
        for operand in 0..3 {
            let mut problem = dense(small[1]);
            far([&mut problem.a, &mut problem.b, &mut problem.d][operand], bytes);
            problems.push(problem);
        }
    }
    problems
}

/// A product of zeros, but for what is put there.
struct Sparse<T> {
    problem: Problem,
    stream: Arc<CudaStream>,
    a: CudaSlice<T>,
    b: CudaSlice<T>,
    d: CudaSlice<T>,
}

impl<T: Element + ValidAsZeroBits> Sparse<T> {
    fn new(gpu: &Gpu, m: usize, n: usize, k: usize) -> Result<Self, String> {
        let stream = gpu.device.cuda_stream();
        let zeros = |count| stream.alloc_zeros::<T>(count).map_err(text);
        let (a, b, d) = (zeros(m * k)?, zeros(n * k)?, zeros(m * n)?);
        Ok(Self { problem: Problem::dense(m, n, k, 1, Layout::NT, T::KERNEL_DTYPE), stream, a, b, d })
    }

    fn put(stream: &Arc<CudaStream>, to: &mut CudaSlice<T>, at: usize, value: f64) -> Result<(), String> {
        stream.memcpy_htod(&[T::from_f64(value)], &mut to.slice_mut(at..at + 1)).map_err(text)
    }

    /// Numbers of D from `first` on.
    fn run(&self, gpu: &Gpu, plan: &Planned, first: usize, count: usize) -> Result<Vec<f64>, String> {
        let handle = gpu.device.cublas_handle();
        let queue = Queue::new(self.stream.cu_stream().cast(), (*handle.handle()).cast());
        let at = |slice: &CudaSlice<T>| slice.device_ptr(&self.stream).0;
        let (a, b, d) = (at(&self.a) as _, at(&self.b) as _, at(&self.d) as _);
        // SAFETY: the buffers are as large as the problem, and live until the copy below has waited for the stream.
        unsafe { launch::launch(plan, Pointers::new(a, b, d), queue) }.map_err(|e| e.to_string())?;
        let values = self.stream.clone_dtoh(&self.d.slice(first..first + count)).map_err(text)?;
        Ok(values.into_iter().map(|x| x.to_f64()).collect())
    }

    fn plan(&self, gpu: &Gpu, policy: Policy) -> Result<Arc<Planned>, String> {
        Dispatcher::new(gpu.info.clone()).plan(&self.problem, policy).map_err(|e| e.to_string())
    }
}

fn expect(what: &str, got: &[f64], expected: &[f64]) -> Result<(), String> {
    match got.iter().zip(expected).position(|(got, expected)| got != expected) {
        Some(i) => Err(format!("{what}: number {i} is {}, expected {}", got[i], expected[i])),
        None => Ok(()),
    }
}

/// 1 x 1073741832 x 8 in bf16.
fn many_columns(gpu: &Gpu) -> Result<(), String> {
    let mut product = Sparse::<bf16>::new(gpu, 1, OVER, 8)?;
    Sparse::put(&product.stream, &mut product.a, 7, 3.0)?;
    Sparse::put(&product.stream, &mut product.b, OVER * 8 - 1, 5.0)?;
    Sparse::put(&product.stream, &mut product.b, OVER / 2 * 8 + 7, 2.0)?;
    for policy in [Policy::default(), Policy::own()] {
        let plan = product.plan(gpu, policy)?;
        let name = plan.kernel.name;
        expect(name, &product.run(gpu, &plan, OVER - 3, 3)?, &[0.0, 0.0, 15.0])?;
        expect(name, &product.run(gpu, &plan, OVER / 2 - 1, 3)?, &[0.0, 6.0, 0.0])?;
    }
    Ok(())
}

/// 1 x 1 x 1073741832 in f32.
fn a_long_sum(gpu: &Gpu) -> Result<(), String> {
    let mut product = Sparse::<f32>::new(gpu, 1, 1, OVER)?;
    for (at, x) in [(0, 1.0), (OVER / 2, 10.0), (OVER - 1, 100.0)] {
        Sparse::put(&product.stream, &mut product.a, at, x)?;
        Sparse::put(&product.stream, &mut product.b, at, 2.0)?;
    }
    let plan = product.plan(gpu, Policy::default())?;
    expect(plan.kernel.name, &product.run(gpu, &plan, 0, 1)?, &[222.0])
}

/// 16 x 8 x 1073741832 in bf16, by a kernel of ours that takes so long a K.
fn a_long_sum_of_a_few_rows(gpu: &Gpu) -> Result<(), String> {
    let mut product = Sparse::<bf16>::new(gpu, 16, 8, OVER)?;
    for (row, column) in [(15, 7), (3, 2)] {
        Sparse::put(&product.stream, &mut product.a, row * OVER + OVER - 1, row as f64)?;
        Sparse::put(&product.stream, &mut product.b, column * OVER + OVER - 1, column as f64)?;
    }
    let mut expected = [0.0; 128];
    for (row, column) in [(15, 7), (3, 2), (15, 2), (3, 7)] {
        expected[row * 8 + column] = (row * column) as f64;
    }
    let canonical = product.problem.canonical().problem;
    let own = |kernel: &&KernelDesc| kernel.is_built() && kernel.role == Role::Kernel && kernel.layout == Layout::NT;
    let mut kernels = KERNELS.iter().filter(own);
    let kernel = kernels.find(|kernel| kernel.supports(&canonical, &gpu.info).is_ok());
    let kernel = kernel.ok_or("no kernel of this build takes so long a K")?;
    let plan = product.plan(gpu, Policy::force(kernel.name).map_err(|e| e.to_string())?)?;
    expect(kernel.name, &product.run(gpu, &plan, 0, 128)?, &expected)
}

/// cuBLAS, by name, with the largest multiple of eight that its row admits, in each extent: beyond, it reads what is not its own.
fn the_vendor_at_its_limits(gpu: &Gpu) -> Result<(), String> {
    vendor_at_limits::<bf16>(gpu)?;
    vendor_at_limits::<f16>(gpu)?;
    vendor_at_limits::<f32>(gpu)
}

fn vendor_at_limits<T: Element + ValidAsZeroBits>(gpu: &Gpu) -> Result<(), String> {
    const MOST: usize = OVER - 16;
    for (m, n, k) in [(2, MOST, 8), (MOST, 2, 8), (2, 2, MOST)] {
        let mut product = Sparse::<T>::new(gpu, m, n, k)?;
        Sparse::put(&product.stream, &mut product.a, m * k - 1, 3.0)?;
        Sparse::put(&product.stream, &mut product.b, n * k - 1, 5.0)?;
        let canonical = product.problem.canonical().problem;
        let mut kernels =
            KERNELS.iter().filter(|kernel| kernel.role == Role::Vendor && kernel.types == canonical.types());
        let kernel = kernels.find(|kernel| kernel.supports(&canonical, &gpu.info).is_ok()).ok_or("cuBLAS refuses")?;
        let plan = product.plan(gpu, Policy::force(kernel.name).map_err(|e| e.to_string())?)?;
        expect(&product.problem.to_string(), &product.run(gpu, &plan, m * n - 2, 2)?, &[0.0, 15.0])?;
    }
    Ok(())
}

/// Bytes of the memory that lines are spread over: more than 2^32 elements of every type.
const FAR: usize = 40 << 30;

/// Lines of all operands so far apart that 32 bits hold neither bytes nor elements between them.
fn lines_far_apart(gpu: &Gpu) -> Result<(), String> {
    let stream = gpu.device.cuda_stream();
    stream.context().bind_to_thread().map_err(text)?;
    // SAFETY: kernels read no more than what is written here first.
    let memory = unsafe { stream.alloc::<u8>(FAR) }.map_err(text)?;
    let memory = memory.device_ptr(&stream).0;
    let runs = |kernel: &&KernelDesc| kernel.is_built() && kernel.arch.runs_on(gpu.info.capability);
    for kernel in KERNELS.iter().filter(|kernel| kernel.role != Role::Vendor).filter(crate::plain).filter(runs) {
        by_types!(kernel.types, far_apart(gpu, kernel, memory))?;
    }
    Ok(())
}

/// Each row of A picks a row of B.
fn far_apart<T: Element, Out: Element>(gpu: &Gpu, kernel: &'static KernelDesc, memory: u64) -> Result<(), String> {
    let [m, n, k] = cases::sizes_near(gpu, kernel, [8, 64, 64]);
    let dense = Problem::dense(m, n, k, 1, kernel.layout, kernel.types.a).with(|p| p.d.format = kernel.types.d);
    let stride = (FAR / size_of::<T>() / m.max(n).max(k).next_power_of_two()) as i64;
    let far = |o: Operand| match o.col_stride {
        1 => o.with(|o| o.row_stride = stride),
        _ => o.with(|o| o.col_stride = stride),
    };
    let (a, b, d) = (far(dense.a), far(dense.b), far(dense.d));
    let problem = dense.with(|p| {
        p.a = a;
        p.b = b;
        p.d = d;
        p.f32_mode = cases::f32_mode(kernel);
    });
    let (plan, queue) = gpu.plan(kernel.name, &problem)?;
    // One operand behind the other in every line.
    let [of_a, of_b, of_d] = [0, 1, 2].map(|i| memory + (i * 1024 * size_of::<T>()) as u64);
    let at = |base: u64, o: &Operand, row: usize, column: usize| {
        base + o.format.offset(row as i64 * o.row_stride + column as i64 * o.col_stride) as u64
    };
    let picked = |i: usize| i * 21 % k;
    let value = |p: usize, j: usize| ((p * 3 + j * 5) % 17) as f64;
    let write = |base: u64, o: &Operand, rows: usize, columns: usize, value: &dyn Fn(usize, usize) -> f64| {
        (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))).try_for_each(|(row, column)| {
            // SAFETY: inside of the memory.
            unsafe { result::memcpy_htod_sync(at(base, o, row, column), &[T::from_f64(value(row, column))]) }
        })
    };
    write(of_a, &a, m, k, &|i, p| f64::from(p == picked(i))).map_err(text)?;
    write(of_b, &b, k, n, &value).map_err(text)?;
    for i in 0..m {
        // SAFETY: a row of D, which is inside of the memory.
        unsafe { result::memcpy_htod_sync(at(of_d, &d, i, 0), &vec![Out::from_f64(f64::NAN); n]) }.map_err(text)?;
    }
    let pointers = Pointers::new(of_a as _, of_b as _, of_d as _);
    // SAFETY: all lines are inside of the memory, which the caller keeps.
    unsafe { launch::launch(&plan, pointers, queue) }.map_err(|e| e.to_string())?;
    gpu.device.cuda_stream().synchronize().map_err(text)?;
    for i in 0..m {
        let mut row = vec![Out::from_f64(0.0); n];
        // SAFETY: a row of D.
        unsafe { result::memcpy_dtoh_sync(&mut row, at(of_d, &d, i, 0)) }.map_err(text)?;
        let got: Vec<f64> = row.into_iter().map(|x| x.to_f64()).collect();
        let expected: Vec<f64> = (0..n).map(|j| value(picked(i), j)).collect();
        expect(&format!("{kernel}, row {i}"), &got, &expected)?;
    }
    Ok(())
}
